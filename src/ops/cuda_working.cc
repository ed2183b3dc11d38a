#include "ops/cuda_working.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/cuda/kda_split.h"
#include "ops/cuda/working_bounds.h"

namespace verbatim::ops {

namespace {

using cuda::product_block_rows;
using cuda::working_rounded;

constexpr int64_t kFloat = sizeof(float);

// Slices of a part: of 256 columns, or for FP8 ended at every 128 too.
int64_t slices_of(const Matrix& w, int parts) {
  const int64_t length = w.columns / parts;
  return w.form == WeightForm::kFp8Block ? length / 128 + 2 : (length + 255) / 256;
}

bool can_pack(const Matrix& m, int parts) {
  const int64_t length = m.columns / parts;
  return m.columns % parts == 0 && m.first_column_in_block == 0 &&
         ((m.form == WeightForm::kBf16 && length % 16 == 0) || (m.form == WeightForm::kNvfp4 && length % 64 == 0));
}

}  // namespace

void* CudaWorking::allocate(size_t) { return reinterpret_cast<void*>(uintptr_t{1} << 20); }

Matrix CudaWorking::upload(const Matrix& stored, const WeightUse& use) {
  take(cuda::kUploadWorkingBytes);
  Matrix m = stored;
  m.is_packed = use.only_products && can_pack(stored, use.parts);
  return m;
}

void CudaWorking::matmul(const Matrix& w, const float*, int64_t, int64_t rows, int parts, float* y, int64_t y_stride) {
  const Product product{&w, y, y_stride};
  multiply({&product, 1}, rows, parts);
}

void CudaWorking::matmul_group(std::span<const Product> products, const float*, int64_t, int64_t rows) {
  multiply(products, rows, 1);
}

// Groups of kMostGroup matrices of as many terms; rows that were rounded alike stand once.
void CudaWorking::multiply(std::span<const Product> products, int64_t rows, int parts) {
  for (const int terms : {1, 3})
    for (const bool packed : {false, true}) {
      std::vector<const Matrix*> group;
      // Kernels write results where they can, or else sums that are added afterwards.
      const auto count = [&](bool adds) {
        int64_t row_bytes = 0, bytes = 0, columns = 0;
        for (const Matrix* w : group) {
          row_bytes += terms * ((adds ? kFloat * parts * w->rows : 0) + (w->columns == columns ? 0 : 2 * w->columns));
          columns = w->input_scale == 0.0f ? w->columns : 0;
        }
        const int64_t block = std::min(rows, product_block_rows(row_bytes));
        columns = 0;
        for (const Matrix* w : group) {
          const int64_t slices = !packed && block * terms <= cuda::kMostSplitColumns ? slices_of(*w, parts) : 1;
          if (w->columns != columns) bytes += working_rounded(2 * terms * block * ((w->columns + 7) / 8 * 8));
          columns = w->input_scale == 0.0f ? w->columns : 0;
          if (adds) bytes += working_rounded(kFloat * parts * slices * terms * block * w->rows);
          // Few rows of packed weights: fragments of eight tiles of columns at most.
          if (packed) bytes = std::max(bytes, w->columns * 8 * 16);
        }
        take(bytes);
      };
      const auto finish = [&] {
        if (group.empty()) return;
        count(true);
        if (packed) count(false);
        group.clear();
      };
      for (const Product& each : products) {
        const Matrix& w = *each.weight;
        const int own = w.input_scale == 0.0f && w.float_input ? 3 : 1;
        if (w.form == WeightForm::kF32 || w.rows == 0 || own != terms || w.is_packed != packed) continue;
        group.push_back(&w);
        if (std::ssize(group) == cuda::kMostProducts) finish();
      }
      finish();
    }
}

void CudaWorking::hyper_enter(const HyperShape& shape, const HyperWeights&, const float*, const float*, int64_t rows,
                              float*, float*) {
  take(kFloat * rows * cuda::kHyperPitch * shape.streams * shape.width / 256);
}

void CudaWorking::kda(const KdaShape& shape, const KdaWeights&, const KdaInputs&, const KdaState&,
                      std::span<const Span> spans, int64_t, float*) {
  const auto sides = std::count_if(spans.begin(), spans.end(), [](const Span& span) { return span.rows > 1; });
  take(kFloat * sides * shape.heads * shape.width * shape.width);
  if (!cuda::kda_takes_chunks(shape)) return;
  for (const Span& span : spans) take(cuda::kda_chunks_bytes(shape, cuda::split_for_chunks(span).chunks));
}

void CudaWorking::select_pools(const IndexShape& shape, const float*, const float*, std::span<const Span> spans,
                               const LatentCache&, const Selection&) {
  int64_t last = 0, rows = 0;
  for (const Span& span : spans) {
    last = std::max(last, span.position + span.rows);
    rows += span.rows;
  }
  take(cuda::score_working_bytes(shape.pool, shape.budget_pools(), last, rows));
}

void CudaWorking::sparse_attention(const IndexShape& shape, int64_t heads, int64_t latent_width, float, const float*,
                                   std::span<const Span> spans, const LatentCache&, const Selection&, float*) {
  int64_t rows = 0;
  for (const Span& span : spans) rows += span.rows;
  const int64_t groups = (shape.top + shape.pool - 1 + 63) / 64;
  if (rows <= cuda::kMostAttentionRows) take(kFloat * rows * groups * heads * (latent_width + 2));
}

void CudaWorking::experts(std::span<const ExpertWeights> experts, const ExpertWeights& shared, float, const float*,
                          int64_t rows, int64_t top, const int32_t*, const float*, int parts, float*) {
  cuda::ExpertsShape shape;
  const ExpertWeights& any = experts.empty() ? shared : experts.front();
  shape.experts = std::ssize(experts);
  shape.top = top;
  shape.columns = any.gate.columns;
  shape.width = any.down.rows;
  shape.has_shared = shared.down.rows > 0;
  shape.parts = parts;
  cuda::PlainExperts plain;
  const auto see = [&](const ExpertWeights& e) {
    shape.inner = std::max(shape.inner, e.down.columns);
    plain.gate_slices = std::max(plain.gate_slices, slices_of(e.gate, 1));
    plain.down_slices = std::max(plain.down_slices, slices_of(e.down, parts));
    plain.is_packed = plain.is_packed && e.gate.is_packed && e.up.is_packed && e.down.is_packed;
    plain.rounds_places = plain.rounds_places || e.gate.input_scale > 0 || e.up.input_scale > 0;
    plain.has_f32 = plain.has_f32 || e.gate.form == WeightForm::kF32;
  };
  for (const ExpertWeights& each : experts) see(each);
  if (shape.has_shared) see(shared);
  take(cuda::experts_working_bytes(shape, rows));
  const auto plain_bytes = [&](int64_t count) { return cuda::plain_experts_bytes(shape, plain, count); };
  take(plain_bytes(cuda::experts_block_rows(rows, plain_bytes)));
}

void CudaWorking::argmax(const float*, int64_t rows, int64_t, int64_t, int32_t*) { take(rows * 32 * 8); }

void CudaWorking::sample(float*, int64_t rows, int64_t, int64_t limit, std::span<const SampleRow>,
                         std::span<const LogitAdjustment>, int32_t*) {
  take(cuda::sample_working_bytes(rows, limit));
}

}  // namespace verbatim::ops
