// NVFP4 quantisation of bfloat16 weights at the speed of memory, with the codec's bits (quantize/nvfp4.h).
//
// A bfloat16 magnitude is a 15-bit integer in the order of its values, and quotient, rounding and code are monotone in
// it. So under one block scale a code is the number of seven cuts that the magnitude lies above: no division is left in
// the loop. The cuts are found by running the scalar codec itself (base/formats.h).
#pragma once

#include <cstdint>
#include <memory>

namespace verbatim::quantize {

// Sums over weights w and what their codes stand for, q.
struct ErrorSums {
  double error = 0;   // sum (w - q)^2
  double weight = 0;  // sum w^2
};

// What the kernels read: everything that follows from the matrix's largest magnitude.
struct Bf16Tables {
  static constexpr int kSpan = 24 * 128;  // bfloat16 steps below the largest magnitude that scales still tell apart

  int32_t zero_limit = 0;          // block magnitudes up to here: the scale is 1 (ModelOpt's rule for a zero quotient)
  int32_t lowest = 0;              // block magnitudes below are taken as this one: the smallest scale
  uint8_t scales[kSpan + 1] = {};  // e4m3 of block magnitude lowest + i
  // Of e4m3 scale s: codes 1 to 7 lie above cuts 0 to 6; magnitudes up to cut 7 have quotient 0 and lose their sign.
  // Each cut stands twice in a word, so that one load fills a register with it.
  uint32_t cuts[128][8] = {};
  float units[128] = {};  // e4m3 x matrix scale
};

struct Bf16Kernels {
  // The largest magnitude of `count` weights, as bits without sign: 0x7f80 and above are infinity and NaN.
  uint16_t (*largest)(const uint16_t* weights, int64_t count);
  // codes [8 x blocks], even element in the low nibble; scales [blocks].
  void (*encode)(const Bf16Tables& tables, const uint16_t* weights, int64_t blocks, uint8_t* codes, uint8_t* scales);
  // In 16 float32 lanes, added pairwise (l and l + 8, l + 4, l + 2, l + 1) in float64.
  ErrorSums (*errors)(const Bf16Tables& tables, const uint16_t* weights, int64_t blocks, const uint8_t* codes,
                      const uint8_t* scales);
};

const Bf16Kernels& plain_bf16_kernels();
// The same as plain where the processor is another; call only if ops::cpu::avx2_is_available(), avx512_is_available().
const Bf16Kernels& avx2_bf16_kernels();
const Bf16Kernels& avx512_bf16_kernels();
// The best this machine runs. All give the same bits.
const Bf16Kernels& bf16_kernels();

// One matrix. Rows are encoded in any order, from any thread.
class Bf16Encoder {
 public:
  // `largest`: of the whole matrix, finite, above 0. An all-zero matrix has no scale: callers write zeros for it.
  explicit Bf16Encoder(uint16_t largest, const Bf16Kernels& kernels = bf16_kernels());

  float matrix_scale() const { return matrix_scale_; }  // weight_scale_2 = largest / 2688
  void encode(const uint16_t* weights, int64_t blocks, uint8_t* codes, uint8_t* scales) const {
    kernels_.encode(*tables_, weights, blocks, codes, scales);
  }
  ErrorSums errors(const uint16_t* weights, int64_t blocks, const uint8_t* codes, const uint8_t* scales) const {
    return kernels_.errors(*tables_, weights, blocks, codes, scales);
  }

 private:
  const Bf16Kernels& kernels_;
  float matrix_scale_ = 0;
  std::unique_ptr<Bf16Tables> tables_;
};

}  // namespace verbatim::quantize
