// Norms, activations, hyper-connections, router and the largest logit. Rows are shared out over the pool.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/products.h"
#include "ops/cpu/vector_kernels.h"

namespace verbatim::ops::cpu {

namespace {

// Elements that are worth waking a thread for.
constexpr int64_t kGrainElements = 16384;

int64_t row_grain(int64_t width) { return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, width)); }

// Divides the rows of comb [S, S] by their sums plus epsilon.
void divide_rows(float* comb, int64_t streams, float epsilon) {
  for (int64_t i = 0; i < streams; ++i) {
    float* row = comb + i * streams;
    float sum = row[0];
    for (int64_t j = 1; j < streams; ++j) sum += row[j];
    sum += epsilon;
    for (int64_t j = 0; j < streams; ++j) row[j] /= sum;
  }
}

void divide_columns(float* comb, int64_t streams, float epsilon) {
  for (int64_t j = 0; j < streams; ++j) {
    float sum = comb[j];
    for (int64_t i = 1; i < streams; ++i) sum += comb[i * streams + j];
    sum += epsilon;
    for (int64_t i = 0; i < streams; ++i) comb[i * streams + j] /= sum;
  }
}

// From the dots of fn, already times r, to (pre, post, comb) in place.
void hyper_maps(const VectorKernels& kernels, const HyperShape& shape, const HyperWeights& weights, float* maps) {
  const int64_t streams = shape.streams;
  float* post = maps + streams;
  float* comb = maps + 2 * streams;
  const int64_t count = (2 + streams) * streams;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t group = std::min<int64_t>(i / streams, 2);
    maps[i] = maps[i] * weights.scale[group] + weights.base[i];
  }
  kernels.sigmoid(maps, 2 * streams, maps);
  for (int64_t s = 0; s < streams; ++s) {
    maps[s] += shape.epsilon;
    post[s] *= 2.0f;
  }
  for (int64_t i = 0; i < streams; ++i) {
    float* row = comb + i * streams;
    const float most = *std::max_element(row, row + streams);
    for (int64_t j = 0; j < streams; ++j) row[j] -= most;
  }
  kernels.exp(comb, streams * streams, comb);
  divide_rows(comb, streams, 0.0f);
  for (int64_t i = 0; i < streams * streams; ++i) comb[i] += shape.epsilon;
  divide_columns(comb, streams, shape.epsilon);
  for (int i = 1; i < shape.sinkhorn_iterations; ++i) {
    divide_rows(comb, streams, shape.epsilon);
    divide_columns(comb, streams, shape.epsilon);
  }
}

}  // namespace

void CpuOps::embed(const Matrix& table, const StepIds& ids, int64_t streams, float* out) {
  pool_.for_each(ids.count, row_grain(streams * table.columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* first = out + r * streams * table.columns;
      unpack_row(*kernels_.matmul, table, ids.data[r], first);
      for (int64_t s = 1; s < streams; ++s) std::copy_n(first, table.columns, first + s * table.columns);
    }
  });
}

void CpuOps::rms_norm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows, int64_t width,
                      float* y, int64_t y_stride) {
  pool_.for_each(rows, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      kernels_.vector->rms_norm(x + r * x_stride, weight, epsilon, width, y + r * y_stride);
  });
}

void CpuOps::layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t rows,
                        int64_t width, float* y) {
  pool_.for_each(rows, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      kernels_.vector->layer_norm(x + r * width, weight, bias, epsilon, width, y + r * width);
  });
}

void CpuOps::add(const float* x, int64_t count, float* y) {
  pool_.for_each(count, kGrainElements,
                 [&](int64_t begin, int64_t end) { kernels_.vector->add(x + begin, end - begin, y + begin); });
}

void CpuOps::clear(float* x, int64_t count) {
  pool_.for_each(count, kGrainElements, [&](int64_t begin, int64_t end) { std::fill(x + begin, x + end, 0.0f); });
}

void CpuOps::swiglu(const float* gate, const float* up, float limit, int64_t count, float* h) {
  pool_.for_each(count, kGrainElements, [&](int64_t begin, int64_t end) {
    kernels_.vector->swiglu(gate + begin, up + begin, limit, end - begin, h + begin);
  });
}

void CpuOps::hyper_enter(const HyperShape& shape, const HyperWeights& weights, const float* norm, const float* streams,
                         int64_t rows, float* maps, float* h) {
  const int64_t map_width = (2 + shape.streams) * shape.streams;
  const int64_t flat = shape.streams * shape.width;
  matmul(weights.fn, streams, flat, rows, 1, maps, map_width);
  const VectorKernels& kernels = *kernels_.vector;
  pool_.for_each(rows, row_grain(flat), [&](int64_t begin, int64_t end) {
    std::vector<const float*> terms(static_cast<size_t>(shape.streams));
    for (int64_t r = begin; r < end; ++r) {
      const float* x = streams + r * flat;
      float* map = maps + r * map_width;
      const float inverse = 1.0f / std::sqrt(kernels.dot16(x, x, flat) / static_cast<float>(flat) + shape.norm_epsilon);
      for (int64_t i = 0; i < map_width; ++i) map[i] *= inverse;
      hyper_maps(kernels, shape, weights, map);
      for (int64_t s = 0; s < shape.streams; ++s) terms[static_cast<size_t>(s)] = x + s * shape.width;
      float* out = h + r * shape.width;
      kernels.weighted_sum(terms.data(), map, shape.streams, nullptr, shape.width, out);
      kernels.rms_norm(out, norm, shape.norm_epsilon, shape.width, out);
    }
  });
}

void CpuOps::hyper_leave(const HyperShape& shape, const float* maps, const float* y, int64_t rows, float* streams) {
  const int64_t map_width = (2 + shape.streams) * shape.streams;
  const int64_t flat = shape.streams * shape.width;
  pool_.for_each(rows, row_grain(flat), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* map = maps + r * map_width;
      kernels_.vector->hyper_leave(map + shape.streams, map + 2 * shape.streams, shape.streams, shape.width,
                                   y + r * shape.width, streams + r * flat);
    }
  });
}

void CpuOps::hyper_mean(const HyperShape& shape, const float* streams, int64_t rows, float* h) {
  const int64_t flat = shape.streams * shape.width;
  pool_.for_each(rows, row_grain(flat), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      kernels_.vector->hyper_mean(streams + r * flat, shape.streams, shape.width, h + r * shape.width);
  });
}

void CpuOps::route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top, float scale,
                   int32_t* chosen, float* weights) {
  pool_.for_each(rows, row_grain(experts * top), [&](int64_t begin, int64_t end) {
    std::vector<float> scores(static_cast<size_t>(experts)), keys(static_cast<size_t>(experts));
    std::vector<char> taken(static_cast<size_t>(experts));
    for (int64_t r = begin; r < end; ++r) {
      kernels_.vector->sigmoid(logits + r * experts, experts, scores.data());
      for (size_t e = 0; e < keys.size(); ++e) keys[e] = bias == nullptr ? scores[e] : scores[e] + bias[e];
      std::fill(taken.begin(), taken.end(), 0);
      float sum = 0.0f;
      for (int64_t slot = 0; slot < top; ++slot) {
        // The first of the largest; a NaN is taken only when nothing else is left, lowest id first.
        size_t best = keys.size();
        for (size_t e = 0; e < keys.size(); ++e) {
          if (taken[e] != 0) continue;
          if (best == keys.size() || keys[e] > keys[best] || (std::isnan(keys[best]) && !std::isnan(keys[e]))) best = e;
        }
        taken[best] = 1;
        chosen[r * top + slot] = static_cast<int32_t>(best);
        weights[r * top + slot] = scores[best];
        sum = slot == 0 ? scores[best] : sum + scores[best];
      }
      sum += 1e-20f;
      for (int64_t slot = 0; slot < top; ++slot) weights[r * top + slot] = weights[r * top + slot] / sum * scale;
    }
  });
}

void CpuOps::argmax(const float* logits, int64_t rows, int64_t stride, int64_t limit, int32_t* ids) {
  pool_.for_each(rows, row_grain(limit), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = logits + r * stride;
      const float* found = std::find(row, row + limit, kernels_.vector->largest(row, limit));
      ids[r] = found == row + limit ? 0 : static_cast<int32_t>(found - row);
    }
  });
}

}  // namespace verbatim::ops::cpu
