#include "quantize/nvfp4_bf16.h"

#include <algorithm>

#include "base/formats.h"
#include "ops/cpu/instruction_sets.h"

namespace verbatim::quantize {

namespace {

constexpr int32_t kLargestFinite = 0x7f7f;

// The largest magnitude for which `holds`, which is monotone and true at 0, is true, looking around `guess` first.
template <typename Holds>
int32_t last_magnitude(int32_t guess, const Holds& holds) {
  int32_t at = std::clamp(guess, 0, kLargestFinite);
  while (at > 0 && !holds(bf16_to_float(static_cast<uint16_t>(at)))) --at;
  while (at < kLargestFinite && holds(bf16_to_float(static_cast<uint16_t>(at + 1)))) ++at;
  return at;
}

// Where bfloat16 magnitudes pass `value` (0 or above).
int32_t magnitude_near(float value) {
  return static_cast<int32_t>(std::min(std::bit_cast<uint32_t>(value) >> 16, uint32_t{kLargestFinite}));
}

uint32_t twice(int32_t cut) { return static_cast<uint32_t>(cut) << 16 | static_cast<uint32_t>(cut); }

uint8_t block_scale(const Bf16Tables& tables, int32_t largest) {
  if (largest <= tables.zero_limit) return 0x38;  // 1.0
  return tables.scales[std::max(largest, tables.lowest) - tables.lowest];
}

uint16_t plain_largest(const uint16_t* weights, int64_t count) {
  uint16_t most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max<uint16_t>(most, weights[i] & 0x7fff);
  return most;
}

void plain_encode(const Bf16Tables& tables, const uint16_t* weights, int64_t blocks, uint8_t* codes, uint8_t* scales) {
  for (int64_t block = 0; block < blocks; ++block, weights += 16, codes += 8) {
    const uint8_t scale = block_scale(tables, plain_largest(weights, 16));
    scales[block] = scale;
    uint16_t cuts[8];
    for (int k = 0; k < 8; ++k) cuts[k] = static_cast<uint16_t>(tables.cuts[scale][k]);
    uint16_t lanes[16];
    for (int i = 0; i < 16; ++i) {
      const uint16_t magnitude = weights[i] & 0x7fff;
      uint16_t code = 0;
      for (int k = 0; k < 7; ++k) code = static_cast<uint16_t>(code + (magnitude > cuts[k] ? 1 : 0));
      lanes[i] = static_cast<uint16_t>(code | (magnitude > cuts[7] ? (weights[i] & 0x8000) >> 12 : 0));
    }
    for (int i = 0; i < 8; ++i) codes[i] = static_cast<uint8_t>(lanes[2 * i] | lanes[2 * i + 1] << 4);
  }
}

ErrorSums plain_errors(const Bf16Tables& tables, const uint16_t* weights, int64_t blocks, const uint8_t* codes,
                       const uint8_t* scales) {
  float error[16] = {}, weight[16] = {};
  for (int64_t block = 0; block < blocks; ++block) {
    const float unit = tables.units[scales[block]];
    for (int i = 0; i < 16; ++i) {
      const uint8_t pair = codes[8 * block + i / 2];
      const float w = bf16_to_float(weights[16 * block + i]);
      const float d = w - e2m1_to_float(i % 2 == 0 ? pair & 15 : pair >> 4) * unit;
      error[i] += d * d;
      weight[i] += w * w;
    }
  }
  double sums[2][16];
  for (int i = 0; i < 16; ++i) sums[0][i] = error[i], sums[1][i] = weight[i];
  for (int step = 8; step > 0; step /= 2)
    for (auto& sum : sums)
      for (int i = 0; i < step; ++i) sum[i] += sum[i + step];
  return {sums[0][0], sums[1][0]};
}

}  // namespace

const Bf16Kernels& plain_bf16_kernels() {
  static constexpr Bf16Kernels kKernels = {plain_largest, plain_encode, plain_errors};
  return kKernels;
}

const Bf16Kernels& bf16_kernels() {
  static const Bf16Kernels& best = ops::cpu::avx512_is_available() ? avx512_bf16_kernels()
                                   : ops::cpu::avx2_is_available() ? avx2_bf16_kernels()
                                                                   : plain_bf16_kernels();
  return best;
}

Bf16Encoder::Bf16Encoder(uint16_t largest, const Bf16Kernels& kernels)
    : kernels_(kernels),
      matrix_scale_(bf16_to_float(largest) / (6.0f * 448.0f)),
      tables_(std::make_unique<Bf16Tables>()) {
  Bf16Tables& t = *tables_;
  const float scale_2 = matrix_scale_;
  t.zero_limit = last_magnitude(0, [&](float most) { return most / (6.0f * scale_2) == 0.0f; });
  t.lowest = std::max(0, largest - Bf16Tables::kSpan);
  for (int32_t i = t.lowest; i <= largest; ++i)
    t.scales[i - t.lowest] = nvfp4_block_scale(bf16_to_float(static_cast<uint16_t>(i)), scale_2, true);

  // Where each code ends, in quotients: the codec decides, these only say where to look.
  static constexpr float kEnds[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  for (int s = 1; s < 127; ++s) {
    const float unit = e4m3_to_float(static_cast<uint8_t>(s)) * scale_2;
    t.units[s] = unit;
    for (int k = 0; k < 7; ++k)
      t.cuts[s][k] = twice(last_magnitude(magnitude_near(kEnds[k] * unit),
                                          [&](float magnitude) { return float_to_e2m1(magnitude / unit) <= k; }));
    t.cuts[s][7] = twice(last_magnitude(0, [&](float magnitude) { return magnitude / unit == 0.0f; }));
  }
}

}  // namespace verbatim::quantize
