#include "quantize/nvfp4.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/error.h"
#include "base/formats.h"
#include "base/thread_pool.h"

namespace verbatim::quantize {

Nvfp4Matrix quantise_nvfp4(std::span<const float> weights, int64_t rows, int64_t columns, ThreadPool& pool) {
  if (columns % 16 != 0 || static_cast<int64_t>(weights.size()) != rows * columns)
    fail(ErrorKind::kUsage, "nvfp4", "{} values as [{}, {}]; expected columns in whole blocks of 16", weights.size(),
         rows, columns);
  float amax = 0;
  bool finite = true;
  std::mutex mutex;
  pool.for_each(rows, 64, [&](int64_t begin, int64_t end) {
    float most = 0;
    bool all_finite = true;
    for (int64_t i = begin * columns; i < end * columns; ++i) {
      const float magnitude = std::fabs(weights[static_cast<size_t>(i)]);
      all_finite = all_finite && std::isfinite(magnitude);
      most = std::max(most, magnitude);
    }
    const std::lock_guard lock(mutex);
    amax = std::max(amax, most);
    finite = finite && all_finite;
  });
  if (!finite) fail(ErrorKind::kFormat, "nvfp4", "a weight is NaN or infinite; expected finite weights");

  Nvfp4Matrix out;
  out.matrix_scale = amax / (6.0f * 448.0f);
  out.codes.resize(static_cast<size_t>(rows * columns / 2));
  out.block_scales.resize(static_cast<size_t>(rows * columns / 16));
  pool.for_each(rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin * columns / 16; block < end * columns / 16; ++block) {
      const float* w = weights.data() + 16 * block;
      float most = 0;
      for (int i = 0; i < 16; ++i) most = std::max(most, std::fabs(w[i]));
      // 0 / 0 in an all-zero matrix is the zero block too.
      const uint8_t scale = most == 0 ? float_to_e4m3(1.0f) : nvfp4_block_scale(most, out.matrix_scale, true);
      out.block_scales[static_cast<size_t>(block)] = scale;
      const float unit = e4m3_to_float(scale) * out.matrix_scale;
      for (int i = 0; i < 8; ++i) {
        const uint8_t low = most == 0 ? 0 : float_to_e2m1(w[2 * i] / unit);
        const uint8_t high = most == 0 ? 0 : float_to_e2m1(w[2 * i + 1] / unit);
        out.codes[static_cast<size_t>(8 * block + i)] = static_cast<uint8_t>(low | high << 4);
      }
    }
  });
  return out;
}

}  // namespace verbatim::quantize
