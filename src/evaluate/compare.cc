#include "evaluate/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/formats.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "state/solo.h"

namespace verbatim::evaluate {

namespace {

using checkpoint::Checkpoint;
using checkpoint::DType;
using checkpoint::StoredMatrix;
using checkpoint::TensorView;

constexpr int64_t kBlockElements = 1 << 18;
constexpr int64_t kChunkTokens = 64;

double ratio(double error, double weight) {
  return error == 0 ? 0 : std::sqrt(error / (weight > 0 ? weight : std::numeric_limits<double>::min()));
}

bool same_bytes(const Checkpoint& a, const TensorView* in_a, const Checkpoint& b, const TensorView* in_b) {
  if (in_a == nullptr || in_b == nullptr) return in_a == in_b;
  const auto x = a.data(*in_a), y = b.data(*in_b);
  return in_a->dtype == in_b->dtype && x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size()) == 0;
}

// A tensor of the table as a matrix of rows, so that both kinds are read alike.
StoredMatrix resolve(const Checkpoint& stored, const model::Expected& expected) {
  if (expected.row->kind == model::Kind::kMatrix)
    return checkpoint::resolve_matrix(stored, expected.name, expected.shape[0], expected.shape[1]);
  const TensorView* view = stored.find(expected.name);
  if (view == nullptr || view->shape != expected.shape || (view->dtype != DType::kBF16 && view->dtype != DType::kF32))
    fail(ErrorKind::kFormat, stored.path().string(), "{}: {}; expected BF16 or F32 {}", expected.name,
         view == nullptr ? "missing" : fmt::format("{} {}", checkpoint::dtype_name(view->dtype), view->shape.text()),
         expected.shape.text());
  StoredMatrix matrix;
  matrix.form = view->dtype == DType::kBF16 ? checkpoint::Form::kBf16 : checkpoint::Form::kF32;
  matrix.rows = expected.shape.size() > 1 ? expected.shape[0] : 1;
  matrix.columns = expected.shape.elements() / std::max<int64_t>(matrix.rows, 1);
  matrix.weight = view;
  return matrix;
}

// Sums over one block of rows.
struct Block {
  double error = 0, weight = 0;
  float largest = 0;
};

void compare_values(const Checkpoint& a, const StoredMatrix& in_a, const Checkpoint& b, const StoredMatrix& in_b,
                    ThreadPool& pool, TensorDifference& out) {
  const int64_t rows = std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, in_a.columns));
  std::vector<Block> blocks(static_cast<size_t>((in_a.rows + rows - 1) / rows));
  pool.for_each(static_cast<int64_t>(blocks.size()), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> x, y;
    for (int64_t i = begin; i < end; ++i) {
      Block& block = blocks[static_cast<size_t>(i)];
      const int64_t first = i * rows, count = std::min(rows, in_a.rows - first);
      x.resize(static_cast<size_t>(count * in_a.columns));
      y.resize(x.size());
      checkpoint::dequantise_rows(a, in_a, first, count, x);
      checkpoint::dequantise_rows(b, in_b, first, count, y);
      for (size_t j = 0; j < x.size(); ++j) {
        const double w = static_cast<double>(x[j]), d = w - static_cast<double>(y[j]);
        block.error += d * d;
        block.weight += w * w;
        block.largest = std::max(block.largest, std::fabs(x[j] - y[j]));
      }
    }
  });
  for (const Block& block : blocks) {
    out.squared_error += block.error;
    out.squared_weight += block.weight;
    out.largest_error = std::max(out.largest_error, block.largest);
  }
}

void add_to_group(GroupDifference& group, const TensorDifference& tensor) {
  ++group.tensors;
  group.same_bytes += tensor.same_bytes ? 1 : 0;
  group.squared_error += tensor.squared_error;
  group.squared_weight += tensor.squared_weight;
  group.largest_error = std::max(group.largest_error, tensor.largest_error);
  const float a = tensor.input_scale_a, b = tensor.input_scale_b;
  if ((a > 0) != (b > 0)) ++group.input_scales_of_one;
  if (!(a > 0) || !(b > 0)) return;
  ++group.input_scales;
  group.different_input_scales += std::bit_cast<uint32_t>(a) != std::bit_cast<uint32_t>(b) ? 1 : 0;
  group.largest_scale_ratio =
      std::max(group.largest_scale_ratio, static_cast<double>(std::max(a, b)) / static_cast<double>(std::min(a, b)));
}

// log(sum of exps) of a row, in float64 and in order.
double log_sum(std::span<const float> row) {
  const double most = static_cast<double>(*std::max_element(row.begin(), row.end()));
  double sum = 0;
  for (const float value : row) sum += std::exp(static_cast<double>(value) - most);
  return most + std::log(sum);
}

}  // namespace

double TensorDifference::relative_error() const { return ratio(squared_error, squared_weight); }
double GroupDifference::relative_error() const { return ratio(squared_error, squared_weight); }

WeightComparison compare_weights(const Checkpoint& a, const Checkpoint& b, const model::Config& config,
                                 ThreadPool& pool) {
  WeightComparison out;
  uint64_t done = 0;
  Progress progress("comparing", a.tensors().size(), "tensors");
  model::for_each_expected(config, [&](const model::Expected& expected) {
    const StoredMatrix in_a = resolve(a, expected), in_b = resolve(b, expected);
    TensorDifference difference;
    difference.name = expected.name;
    difference.group = expected.group;
    difference.form_a = in_a.form;
    difference.form_b = in_b.form;
    difference.same_bytes = in_a.form == in_b.form && in_a.inverse_scales == in_b.inverse_scales &&
                            same_bytes(a, in_a.weight, b, in_b.weight) &&
                            same_bytes(a, in_a.block_scale, b, in_b.block_scale) &&
                            same_bytes(a, in_a.matrix_scale, b, in_b.matrix_scale);
    compare_values(a, in_a, b, in_b, pool, difference);
    if (in_a.input_scale != nullptr) difference.input_scale_a = checkpoint::input_scale(a, in_a);
    if (in_b.input_scale != nullptr) difference.input_scale_b = checkpoint::input_scale(b, in_b);
    for (const auto& [stored, matrix] : {std::pair{&a, &in_a}, std::pair{&b, &in_b}})
      for (const TensorView* part : {matrix->weight, matrix->block_scale})
        if (part != nullptr) stored->release(*part);
    add_to_group(out.groups[static_cast<size_t>(expected.group)], difference);
    out.tensors.push_back(std::move(difference));
    progress.advance(++done);
  });
  return out;
}

RowComparison compare_rows(std::span<const float> a, std::span<const float> b, int64_t target) {
  const double sum_a = log_sum(a), sum_b = log_sum(b);
  RowComparison out;
  for (size_t i = 0; i < a.size(); ++i) {
    const double log_p = static_cast<double>(a[i]) - sum_a, log_q = static_cast<double>(b[i]) - sum_b;
    out.divergence += std::exp(log_p) * (log_p - log_q);
  }
  out.divergence = std::max(out.divergence, 0.0);  // rounding may leave it a hair below
  out.same_first = std::max_element(a.begin(), a.end()) - a.begin() == std::max_element(b.begin(), b.end()) - b.begin();
  if (target >= 0) {
    out.log_a = static_cast<double>(a[static_cast<size_t>(target)]) - sum_a;
    out.log_b = static_cast<double>(b[static_cast<size_t>(target)]) - sum_b;
  }
  return out;
}

PredictionComparison compare_predictions(ops::Ops& ops, const model::Model& a, const model::Model& b,
                                         std::span<const std::vector<int32_t>> prompts, int64_t limit) {
  if (a.config.vocabulary != b.config.vocabulary || limit < 1 || limit > a.config.vocabulary)
    fail(ErrorKind::kUsage, "compare", "vocabularies of {} and {}, of which {} are compared; expected the same",
         a.config.vocabulary, b.config.vocabulary, limit);
  PredictionComparison out;
  double divergence = 0, log_a = 0, log_b = 0;
  int64_t same = 0, total = 0;
  for (const std::vector<int32_t>& ids : prompts) total += static_cast<int64_t>(ids.size());
  Progress progress("predicting", static_cast<uint64_t>(total), "tokens");
  const auto vocabulary = static_cast<size_t>(a.config.vocabulary), width = static_cast<size_t>(limit);
  for (const std::vector<int32_t>& ids : prompts) {
    const auto length = static_cast<int64_t>(ids.size());
    if (length == 0) continue;
    state::Solo solo_a(ops, a, length, std::min(kChunkTokens, length)),
        solo_b(ops, b, length, std::min(kChunkTokens, length));
    std::vector<float> logits_a, logits_b;
    for (int64_t first = 0; first < length; first += kChunkTokens) {
      const auto rows = static_cast<size_t>(std::min(kChunkTokens, length - first));
      logits_a.clear();
      logits_b.clear();
      solo_a.feed(std::span(ids).subspan(static_cast<size_t>(first), rows), &logits_a);
      solo_b.feed(std::span(ids).subspan(static_cast<size_t>(first), rows), &logits_b);
      for (size_t row = 0; row < rows; ++row) {
        const size_t next = static_cast<size_t>(first) + row + 1;
        const int64_t target = next < ids.size() && ids[next] < limit ? ids[next] : -1;
        const RowComparison compared = compare_rows(std::span(logits_a).subspan(row * vocabulary, width),
                                                    std::span(logits_b).subspan(row * vocabulary, width), target);
        ++out.positions;
        divergence += compared.divergence;
        out.largest_divergence = std::max(out.largest_divergence, compared.divergence);
        same += compared.same_first ? 1 : 0;
        if (target < 0) continue;
        ++out.targets;
        log_a += compared.log_a;
        log_b += compared.log_b;
      }
      progress.advance(static_cast<uint64_t>(out.positions));
    }
  }
  if (out.positions == 0) fail(ErrorKind::kUsage, "compare", "no tokens; expected prompts");
  out.mean_divergence = divergence / static_cast<double>(out.positions);
  out.same_first = static_cast<double>(same) / static_cast<double>(out.positions);
  if (out.targets > 0) {
    out.perplexity_a = std::exp(-log_a / static_cast<double>(out.targets));
    out.perplexity_b = std::exp(-log_b / static_cast<double>(out.targets));
  }
  return out;
}

}  // namespace verbatim::evaluate
