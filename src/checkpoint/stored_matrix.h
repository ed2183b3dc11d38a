// A weight matrix as it is stored: its form is decided per matrix, from the dtype and the companions found.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "checkpoint/checkpoint.h"

namespace verbatim::checkpoint {

enum class Form { kBf16, kF32, kNvfp4, kFp8Block };

// "BF16", "F32", "NVFP4", "FP8 blocks".
const char* form_name(Form form);

inline constexpr int64_t kNvfp4BlockColumns = 16;
inline constexpr int64_t kFp8BlockSize = 128;

// Shapes for a matrix [rows n, columns k], row-major:
//     form        weight                 block_scale                                 matrix_scale  input_scale
//     kBf16, F32  BF16 / F32 [n, k]      -                                           -             -
//     kNvfp4      U8 [n, k/2]            F8_E4M3 [n, k/16]                           F32, one      F32, one, or none
//     kFp8Block   F8_E4M3 [n, k]         F32 or BF16 [ceil(n/128), ceil(k/128)]      -             -
struct StoredMatrix {
  Form form = Form::kBf16;
  int64_t rows = 0, columns = 0;
  const TensorView* weight = nullptr;
  const TensorView* block_scale = nullptr;
  const TensorView* matrix_scale = nullptr;
  const TensorView* input_scale = nullptr;
  bool inverse_scales = false;  // compressed-tensors: matrix_scale and input_scale hold 1/scale
};

// `module` is the name without ".weight". Throws Error(kFormat) when nothing is stored under it, a companion is missing
// or superfluous, or a dtype or shape is not as above; the message names the tensor, what was found and expected.
StoredMatrix resolve_matrix(const Checkpoint& checkpoint, std::string_view module, int64_t rows, int64_t columns);

// The scales as multiplied (inverse_scales applied: 1/x in float32). Throws Error(kFormat) for NaN, infinite, zero or
// negative, before or after inversion, naming the tensor; Error(kUsage) when the matrix has no such scale.
float matrix_scale(const Checkpoint& checkpoint, const StoredMatrix& matrix);
float input_scale(const Checkpoint& checkpoint, const StoredMatrix& matrix);

// Reads every block scale. Throws Error(kFormat), naming the matrix, row and block, for an NVFP4 scale that is NaN or
// has its sign set, or an FP8 scale that is not finite or negative. Nothing to check in the other forms.
void check_block_scales(const Checkpoint& checkpoint, const StoredMatrix& matrix);

// The matrix in float32, row-major into out[rows * columns].
//     NVFP4: (e2m1 * e4m3, exact) * matrix_scale, rounded once.   FP8: float(e4m3) * scale, rounded once.
void dequantise(const Checkpoint& checkpoint, const StoredMatrix& matrix, std::span<float> out);
// The same for rows first_row .. first_row + rows - 1 alone, into out[rows * columns].
void dequantise_rows(const Checkpoint& checkpoint, const StoredMatrix& matrix, int64_t first_row, int64_t rows,
                     std::span<float> out);

}  // namespace verbatim::checkpoint
