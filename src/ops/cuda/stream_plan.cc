#include "ops/cuda/stream_plan.h"

#include <algorithm>

#include "ops/cuda/shapes.h"

namespace verbatim::ops::cuda {

namespace {

// Two rows in three terms are six columns.
constexpr int kThriceRows = 2;
// Matrices that layers of two rows may read again and again.
constexpr int64_t kFewOutputs = 512, kFewColumns = 512, kMostLayeredRows = 8;

// A launch of fewer bytes is no longer than what would run beside it in a narrow shape.
constexpr int64_t kLongBytes = 32'000'000;

// So many inputs come in the ring even where they would fit whole: the weights stream more evenly.
constexpr int64_t kManyColumns = 8192;

bool takes_ring_rows(const StreamedProduct& p, int64_t rows) {
  return rows <= kMostRingRows && p.terms == 1 && p.input_scale == 0.0f && p.columns >= kManyColumns &&
         p.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
}

bool takes_layers(const StreamedProduct& p, int64_t rows) {
  return p.outputs <= kFewOutputs || (p.columns <= kFewColumns && rows <= kMostLayeredRows);
}

}  // namespace

StreamPlan plan_stream(std::span<const StreamedProduct> products, int64_t rows, int64_t shared_bytes) {
  StreamPlan plan;
  std::vector<StreamPlan::Piece> left;
  int inputs = 1;
  for (const StreamedProduct& each : products) inputs = each.x != products.front().x ? 2 : inputs;
  for (size_t i = 0; i < products.size(); ++i) {
    const StreamedProduct& own = products[i];
    int most_terms = 1;
    for (const StreamedProduct& each : products)
      if (each.x == own.x && each.columns == own.columns) most_terms = std::max(most_terms, each.terms);
    const bool in_layers = own.terms == 3 && rows > kThriceRows && takes_layers(own, rows) && own.input_scale == 0.0f &&
                           streams_inputs(shared_bytes, kThriceRows, own.terms, own.columns, inputs);
    const bool whole = in_layers || (own.input_scale == 0.0f &&
                                     streams_inputs(shared_bytes, rows, rows <= kThriceRows ? most_terms : own.terms,
                                                    own.columns, inputs));
    const int64_t block = own.terms == 1 || in_layers ? rows : kMostFragmentColumns / 3;
    for (int64_t begin = 0; begin < rows; begin += block) {
      StreamPlan::Piece piece;
      piece.product = static_cast<int>(i);
      piece.first_row = begin;
      piece.rows = std::min(block, rows - begin);
      piece.block_rows = in_layers ? kThriceRows : 0;
      piece.ring_rows = (!whole || own.columns >= kManyColumns) && takes_ring_rows(own, rows);
      if (!whole && !piece.ring_rows) {
        const auto same = std::find_if(plan.sets.begin(), plan.sets.end(), [&](const StreamPlan::Set& set) {
          const StreamedProduct& other = products[static_cast<size_t>(set.product)];
          return other.x == own.x && other.x_stride == own.x_stride && other.columns == own.columns &&
                 other.input_scale == own.input_scale && set.first_row == begin && set.rows == piece.rows;
        });
        StreamPlan::Set& set = same != plan.sets.end()
                                   ? *same
                                   : plan.sets.emplace_back(StreamPlan::Set{piece.product, begin, piece.rows, 1, 1});
        set.terms = std::max(set.terms, own.terms);
        set.tiles = fragment_tiles(set.rows, set.terms);
        piece.set = static_cast<int>(&set - plan.sets.data());
      }
      left.push_back(piece);
    }
  }
  while (!left.empty()) {
    StreamPlan::Launch launch;
    std::vector<StreamPlan::Piece> others;
    std::vector<const void*> seen;
    const StreamPlan::Piece any = left.front();
    const auto product_of = [&](const StreamPlan::Piece& p) -> const StreamedProduct& {
      return products[static_cast<size_t>(p.product)];
    };
    const auto tiles_of = [&](const StreamPlan::Piece& p) {
      constexpr int kRingRows = -1000;
      return p.ring_rows ? kRingRows : p.set < 0 ? -p.block_rows : fragment_tiles(p.rows, product_of(p).terms);
    };
    for (const StreamPlan::Piece& p : left) {
      const StreamedProduct& own = product_of(p);
      const bool fits = launch.pieces.size() < kMostGroup && own.form == product_of(any).form &&
                        own.columns == product_of(any).columns && tiles_of(p) == tiles_of(any);
      const bool is_new = std::find(seen.begin(), seen.end(), own.x) == seen.end();
      if (!fits || (p.set < 0 && is_new && seen.size() == 2)) {
        others.push_back(p);
        continue;
      }
      if (is_new) seen.push_back(own.x);
      launch.pieces.push_back(p);
      launch.bytes += own.outputs * own.columns * (own.form == WeightForm::kBf16 ? 32 : 9) / 16;
    }
    plan.launches.push_back(std::move(launch));
    left = std::move(others);
  }
  std::stable_sort(plan.launches.begin(), plan.launches.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  for (StreamPlan::Launch& launch : plan.launches)
    launch.fits_beside = plan.launches.front().bytes >= kLongBytes ||
                         products[static_cast<size_t>(launch.pieces.front().product)].columns <= kFewColumns;
  return plan;
}

}  // namespace verbatim::ops::cuda
