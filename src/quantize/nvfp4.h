// NVFP4 quantisation of weight matrices by ModelOpt's arithmetic (MODEL.md section 9).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace verbatim {
class ThreadPool;
}

namespace verbatim::quantize {

struct Nvfp4Matrix {
  std::vector<uint8_t> codes;         // [rows, columns / 2], even column in the low nibble
  std::vector<uint8_t> block_scales;  // e4m3 [rows, columns / 16]
  float matrix_scale = 0;             // weight_scale_2 = amax / 2688, 0 for an all-zero matrix
};

// `weights` is [rows, columns], columns a multiple of 16, all finite. Rows are shared out over the pool; the result
// does not depend on it. Throws Error(kUsage) for a wrong width, Error(kFormat) for NaN or infinity.
Nvfp4Matrix quantise_nvfp4(std::span<const float> weights, int64_t rows, int64_t columns, ThreadPool& pool);

}  // namespace verbatim::quantize
