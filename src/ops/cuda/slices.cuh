// Slices of a product's sums (ops.h) in packed weights, and their totals: slices of a part left to right, times the
// scale, terms left to right, parts as a balanced tree.
#pragma once

#include "ops/cuda/kernels.h"

namespace verbatim::ops::cuda {

struct Slices {
  int length, of_part, total;  // columns of a part; slices of a part and of all
  // One part is by far the most frequent: no divisions.
  __device__ int part(int slice) const { return total == of_part ? 0 : slice / of_part; }
  __device__ int in_part(int slice) const { return total == of_part ? slice : slice % of_part; }
  __device__ __host__ Slices(int64_t columns, int parts)
      : length(static_cast<int>(columns / parts)),
        of_part((length + static_cast<int>(kSliceColumns) - 1) / static_cast<int>(kSliceColumns)),
        total(of_part * parts) {}
  __device__ int64_t column(int slice) const {
    return static_cast<int64_t>(part(slice)) * length + in_part(slice) * static_cast<int>(kSliceColumns);
  }
  // Of 16 columns.
  __device__ int tiles(int slice) const {
    const int left = length - in_part(slice) * static_cast<int>(kSliceColumns);
    return (left < static_cast<int>(kSliceColumns) ? left : static_cast<int>(kSliceColumns)) / 16;
  }
};

// Totals of kCount elements of one thread; slices must come in order.
template <int kCount, int kTerms>
class SliceTotals {
 public:
  __device__ SliceTotals(int parts, float scale) : parts_(parts), scale_(scale) {}
  // New totals, of a matrix of another scale and as many parts.
  __device__ void begin(float scale) { scale_ = scale; }

  __device__ void add(int j, const Slices& slices, int slice, const float (&terms)[kTerms]) {
    const int in_part = slices.in_part(slice);
#pragma unroll
    for (int t = 0; t < kTerms; ++t) totals_[j][t] = in_part == 0 ? terms[t] : totals_[j][t] + terms[t];
    if (in_part + 1 < slices.of_part) return;
    float sum = totals_[j][0] * scale_;
#pragma unroll
    for (int t = 1; t < kTerms; ++t) sum = sum + totals_[j][t] * scale_;
    if (parts_ == 1) {
      done_[j] = sum;
      return;
    }
    // Finished subtrees: bit b of the number of parts so far says whether one of 2^b parts waits.
    const int part = slices.part(slice);
    int level = 0;
    for (; part >> level & 1; ++level) sum = waiting_[j][level] + sum;
    waiting_[j][level] = sum;
    done_[j] = sum;
  }
  // The same of one term and part, in less code.
  __device__ void add_to_part(int j, bool begins, float sum) {
    totals_[j][0] = begins ? sum : totals_[j][0] + sum;
    done_[j] = totals_[j][0] * scale_;
  }
  __device__ float value(int j) const { return done_[j]; }

 private:
  int parts_;
  float scale_;
  float totals_[kCount][kTerms] = {}, done_[kCount] = {};
  float waiting_[kCount][7];
};

}  // namespace verbatim::ops::cuda
