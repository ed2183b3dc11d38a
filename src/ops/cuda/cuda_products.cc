// Products with stored weights and the experts: rows cut in blocks whose working memory is bounded, which changes no
// bit.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/warpgroup_products.h"
#include "ops/cuda/working.h"

namespace verbatim::ops::cuda {

namespace {

constexpr int64_t kPackedColumns = 64;  // what a block of NVFP4 in packed.cuh takes

int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// What multiplies a part's sum.
float part_scale(const Matrix& w) {
  // An operand of packed NVFP4 is 2^-8 of the weight (packed.cuh).
  const float scale = w.form != WeightForm::kNvfp4 ? 1.0f : w.is_packed ? w.matrix_scale * 256.0f : w.matrix_scale;
  return w.input_scale > 0.0f ? w.input_scale * scale : scale;
}

// Whether products go through warpgroup_products.
bool takes_warpgroups(std::span<const Ops::Product> products, int parts) {
  return has_warpgroup_products() && std::all_of(products.begin(), products.end(), [&](const Ops::Product& each) {
           return warpgroup_takes(weights_of(*each.weight), parts);
         });
}

// Whether products of packed weights write what they are for, with no raw sums to add afterwards.
bool writes_results(std::span<const Ops::Product> products, int terms, int parts) {
  return products.front().weight->is_packed && parts == 1 && (terms == 1 || takes_warpgroups(products, parts));
}

}  // namespace

// Activations that were rounded to NVFP4 are exact in one term.
int CudaOps::terms_of(const Matrix& w) const {
  if (w.input_scale > 0.0f) return 1;
  return activations_ == Activations::kSplit3 || w.float_input ? 3 : 1;
}

void CudaOps::matmul(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
                     int64_t y_stride) {
  const OwnProduct product{&w, x, x_stride, y, y_stride};
  multiply({&product, 1}, rows, parts);
}

void CudaOps::matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) {
  std::vector<OwnProduct> own;
  for (const Product& each : products) own.push_back({each.weight, x, x_stride, each.y, each.y_stride});
  multiply(own, rows, 1);
}

void CudaOps::matmul_each(std::span<const OwnProduct> products, int64_t rows) { multiply(products, rows, 1); }

// Packed matrices with few rows are streamed together; those that read the same rows otherwise share what is prepared.
void CudaOps::multiply(std::span<const OwnProduct> products, int64_t rows, int parts) {
  finish_leave();
  if (rows == 0) return;
  std::vector<OwnProduct> streamed;
  struct Tiled {
    const float* x;
    int64_t x_stride;
    bool packed;
    int terms;
    std::vector<Product> products;
  };
  std::vector<Tiled> tiled;
  for (const OwnProduct& each : products) {
    const Matrix& w = *each.weight;
    if (w.rows == 0) continue;
    if (w.is_packed && !can_pack(w.form, w.columns, parts))
      fail(ErrorKind::kUsage, "matmul", "a matrix uploaded for other parts than {}", parts);
    const int terms = terms_of(w);
    if (w.form == WeightForm::kF32) {
      FmaProduct p;
      p.weights = weights_of(w);
      p.outputs = w.rows;
      p.x = each.x;
      p.x_stride = each.x_stride;
      p.rows = rows;
      p.parts = parts;
      p.y = each.y;
      p.y_stride = each.y_stride;
      check(fma_product(stream_.get(), p), "matmul");
    } else if (w.is_packed && rows <= kMostFragmentColumns && (terms == 1 || parts == 1)) {
      // Of several parts each part's terms are added before its parts are, which streams do not hold apart.
      streamed.push_back(each);
    } else {
      const auto same = std::find_if(tiled.begin(), tiled.end(), [&](const Tiled& t) {
        return t.x == each.x && t.x_stride == each.x_stride && t.packed == w.is_packed && t.terms == terms;
      });
      Tiled& group =
          same != tiled.end() ? *same : tiled.emplace_back(Tiled{each.x, each.x_stride, w.is_packed, terms, {}});
      group.products.push_back({each.weight, each.y, each.y_stride});
    }
  }
  stream(streamed, rows, parts);
  for (const Tiled& group : tiled) multiply_blocks(group.products, group.x, group.x_stride, rows, group.terms, parts);
}

// One launch prepares the fragments of all; those that multiply run beside each other.
void CudaOps::stream(std::span<const OwnProduct> products, int64_t rows, int parts) {
  if (products.empty()) return;
  std::vector<StreamedProduct> all;
  for (const OwnProduct& each : products) {
    const Matrix& w = *each.weight;
    all.push_back({each.x, each.x_stride, w.rows, w.columns, w.form, terms_of(w), w.input_scale});
  }
  const StreamPlan plan = plan_stream(all, rows, limits_.shared_bytes);
  std::vector<Fragments> sets;
  int64_t bytes = 0;
  for (const StreamPlan::Set& set : plan.sets) {
    const OwnProduct& own = products[static_cast<size_t>(set.product)];
    sets.push_back({own.x + set.first_row * own.x_stride, own.x_stride, set.rows, own.weight->columns, set.terms,
                    set.tiles, own.weight->input_scale, nullptr});
    bytes += own.weight->columns * set.tiles * 16;
  }
  std::byte* to = bytes > 0 ? scratch_.take(bytes, stream_) : nullptr;
  for (Fragments& set : sets) {
    set.to = reinterpret_cast<uint16_t*>(to);
    to += set.columns * set.tiles * 16;
  }
  for (size_t i = 0; i < sets.size(); i += kMostGroup)
    check(prepare_fragments(stream_.get(), &sets[i], static_cast<int>(std::min<size_t>(sets.size() - i, kMostGroup))),
          "matmul");
  StreamTurn turn;
  for (const StreamPlan::Launch& launch : plan.launches) {
    if (!launch.fits_beside) turn.shared_bytes = 0;
    std::vector<RowsProduct> together;
    for (const StreamPlan::Piece& piece : launch.pieces) {
      const OwnProduct& own = products[static_cast<size_t>(piece.product)];
      RowsProduct p;
      p.weights = weights_of(*own.weight);
      p.parts = parts;
      p.terms = all[static_cast<size_t>(piece.product)].terms;
      p.rows = piece.rows;
      p.scale = part_scale(*own.weight);
      p.block_rows = piece.block_rows;
      p.ring_rows = piece.ring_rows;
      p.x = own.x + piece.first_row * own.x_stride;
      p.x_stride = own.x_stride;
      p.y = own.y + piece.first_row * own.y_stride;
      p.y_stride = own.y_stride;
      if (piece.set >= 0) p.prepared = sets[static_cast<size_t>(piece.set)].to;
      together.push_back(p);
    }
    check(stream_products(stream_.get(), limits_, together.data(), static_cast<int>(together.size()), turn), "matmul");
    turn.beside = true;
  }
  if (plan.launches.size() == 1 && sets.empty() && products.size() == 1) settled_input_ = products.front().x;
}

void CudaOps::multiply_blocks(std::span<const Product> left, const float* x, int64_t x_stride, int64_t rows, int terms,
                              int parts) {
  while (!left.empty()) {
    const auto group = left.first(std::min<size_t>(left.size(), kMostGroup));
    left = left.subspan(group.size());
    const bool direct = writes_results(group, terms, parts);
    int64_t row_bytes = 0, columns = 0;
    for (const Product& each : group) {
      const Matrix& w = *each.weight;
      const bool prepared = w.columns == columns && w.input_scale == 0.0f;
      row_bytes += terms * ((direct ? 0 : 4 * parts * w.rows) + (prepared ? 0 : 2 * w.columns));
      columns = w.input_scale == 0.0f ? w.columns : 0;
    }
    const int64_t block = product_block_rows(row_bytes);
    for (int64_t begin = 0; begin < rows; begin += block) {
      std::vector<Product> moved(group.begin(), group.end());
      for (Product& each : moved) each.y += begin * each.y_stride;
      multiply_block(moved, x + begin * x_stride, x_stride, std::min(block, rows - begin), terms, parts);
    }
  }
}

void CudaOps::multiply_block(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows,
                             int terms, int parts) {
  const auto count = static_cast<int>(products.size());
  const bool direct = writes_results(products, terms, parts);
  Preparation preparations[kMostGroup];
  Bf16Product parts_of[kMostGroup];
  Finish finishes[kMostGroup];
  int prepared = 0, which[kMostGroup] = {};
  int64_t bytes = 0, x_at[kMostGroup] = {}, raw_at[kMostGroup] = {};
  for (int i = 0; i < count; ++i) {
    const Matrix& w = *products[static_cast<size_t>(i)].weight;
    Preparation p;
    p.x = x;
    p.x_stride = x_stride;
    p.rows = rows;
    p.columns = w.columns;
    p.terms = terms;
    p.input_scale = w.input_scale;
    p.first_column_in_block = w.input_scale > 0.0f ? static_cast<int32_t>(w.first_column_in_block) : 0;
    p.stride = rounded_up(w.columns, 8);
    int same = 0;
    while (same < prepared &&
           !(preparations[same].input_scale == p.input_scale && preparations[same].columns == p.columns &&
             preparations[same].first_column_in_block == p.first_column_in_block))
      ++same;
    if (same == prepared) {
      preparations[prepared] = p;
      x_at[prepared++] = bytes;
      bytes += rounded_up(2 * terms * rows * p.stride, 256);
    }
    which[i] = same;
    Bf16Product& product = parts_of[i];
    product.weights = weights_of(w);
    product.x_stride = p.stride;
    product.rows = rows;
    product.terms = terms;
    product.parts = parts;
    Finish& finish = finishes[i];
    finish.slices = splits_slices(rows, terms) && !w.is_packed ? slices_of(product.weights, parts) : 1;
    finish.rows = rows;
    finish.outputs = w.rows;
    finish.terms = terms;
    finish.parts = parts;
    finish.scale = part_scale(w);
    finish.y = products[static_cast<size_t>(i)].y;
    finish.y_stride = products[static_cast<size_t>(i)].y_stride;
    raw_at[i] = bytes;
    if (!direct) bytes += rounded_up(4 * parts * finish.slices * terms * rows * w.rows, 256);
  }
  std::byte* base = scratch_.take(bytes, stream_);
  for (int i = 0; i < prepared; ++i) {
    preparations[i].to = reinterpret_cast<uint16_t*>(base + x_at[i]);
    check(prepare(stream_.get(), preparations[i]), "matmul");
  }
  for (int i = 0; i < count; ++i) {
    parts_of[i].x = reinterpret_cast<const uint16_t*>(base + x_at[which[i]]);
    parts_of[i].raw = reinterpret_cast<float*>(base + raw_at[i]);
    finishes[i].raw = parts_of[i].raw;
  }
  if (!products.front().weight->is_packed) {
    check(bf16_products(stream_.get(), parts_of, count), "matmul");
  } else {
    for (int i = 0; i < count && direct; ++i) {
      parts_of[i].raw = finishes[i].y;
      parts_of[i].raw_stride = finishes[i].y_stride;
      parts_of[i].scale = finishes[i].scale;
      parts_of[i].adds_terms = true;
    }
    check(takes_warpgroups(products, parts) ? warpgroup_products(stream_.get(), parts_of, count)
                                            : packed_tile_products(stream_.get(), parts_of, count),
          "matmul");
    if (direct) return;
  }
  check(finish_products(stream_.get(), finishes, count), "matmul");
}

// ---- experts --------------------------------------------------------------------------------------------------------
const ExpertTable* CudaOps::expert_table(std::span<const ExpertWeights> experts, const ExpertWeights& shared) {
  std::vector<std::byte> source(experts.size_bytes() + sizeof(shared));
  if (!experts.empty()) std::memcpy(source.data(), static_cast<const void*>(experts.data()), experts.size_bytes());
  std::memcpy(source.data() + experts.size_bytes(), static_cast<const void*>(&shared), sizeof(shared));
  ExpertMirror& mirror = expert_tables_[experts.empty() ? &shared : experts.data()];
  if (mirror.source == source) return reinterpret_cast<const ExpertTable*>(mirror.table.data());
  std::vector<ExpertTable> table;
  for (const ExpertWeights& e : experts) table.push_back({weights_of(e.gate), weights_of(e.up), weights_of(e.down)});
  table.push_back({weights_of(shared.gate), weights_of(shared.up), weights_of(shared.down)});
  const size_t bytes = table.size() * sizeof(ExpertTable);
  stream_.synchronise();
  if (mirror.table.bytes() < static_cast<int64_t>(bytes)) mirror.table = DeviceMemory(static_cast<int64_t>(bytes));
  copy_in(mirror.table.data(), table.data(), bytes);
  mirror.source = std::move(source);
  ++tables_made_;
  return reinterpret_cast<const ExpertTable*>(mirror.table.data());
}

void CudaOps::experts(std::span<const ExpertWeights> experts, const ExpertWeights& shared, float limit, const float* x,
                      int64_t rows, int64_t top, const int32_t* chosen, const float* weights, int parts, float* y) {
  const bool settled = settled_input_ == x;
  finish_leave();
  if (rows == 0) return;
  const ExpertWeights& any = experts.empty() ? shared : experts.front();
  ExpertsProblem p;
  p.table = expert_table(experts, shared);
  p.experts = static_cast<int64_t>(experts.size());
  p.has_shared = shared.down.rows > 0;
  p.top = top;
  p.columns = any.gate.columns;
  p.width = any.down.rows;
  p.terms = activations_ == Activations::kSplit3 ? 3 : 1;
  p.parts = parts;
  p.limit = limit;
  bool packed = true, warpgroups = p.terms == 1 && has_warpgroup_products();
  const auto see = [&](const ExpertWeights& e) {
    p.inner = std::max(p.inner, e.down.columns);
    for (const Matrix* m : {&e.gate, &e.up, &e.down}) {
      (m->form == WeightForm::kF32 ? p.has_f32 : p.has_bf16) = true;
      int64_t& slices = m == &e.down ? p.down_slices : p.inner_slices;
      slices = std::max(slices, slices_of(weights_of(*m), m == &e.down ? parts : 1));
    }
    packed = packed && e.gate.is_packed && e.up.is_packed && e.down.is_packed && e.gate.form == e.up.form &&
             can_pack(e.down.form, e.down.columns, parts);
    warpgroups = warpgroups && warpgroup_takes(weights_of(e.gate), 1) && warpgroup_takes(weights_of(e.down), parts);
    p.down_by_place = p.down_by_place || e.down.input_scale > 0.0f;
    p.gate_by_place = p.gate_by_place || e.gate.input_scale > 0.0f;
    p.up_by_place = p.up_by_place || e.up.input_scale > 0.0f;
  };
  for (const ExpertWeights& e : experts) see(e);
  if (p.has_shared) see(shared);
  p.packed = packed && p.columns % 2 == 0;
  warpgroups = warpgroups && p.packed && !p.gate_by_place && !p.up_by_place && !p.down_by_place;

  const auto is_like = [&](const ExpertWeights& e, const ExpertWeights& first) {
    return e.gate.form == first.gate.form && e.down.form == first.gate.form && e.gate.columns == p.columns &&
           e.gate.rows == first.gate.rows && e.up.rows == first.gate.rows && e.down.columns == first.gate.rows &&
           e.down.rows == p.width && first.gate.rows % kPackedColumns == 0;
  };
  p.uniform = !experts.empty() && p.columns % kPackedColumns == 0 && (!p.has_shared || is_like(shared, shared)) &&
              std::all_of(experts.begin(), experts.end(), [&](const auto& e) { return is_like(e, any); });
  p.routed_form = any.gate.form, p.shared_form = shared.gate.form;
  p.routed_inner = any.gate.rows, p.shared_inner = shared.gate.rows;

  const auto shape = [&](int64_t count) {
    p.rows = count;
    p.split = !p.packed && splits_expert_slices(count, top, p.terms);
    p.warpgroups = warpgroups && !experts_have_few_rows(p);
    return ExpertsScratch::bytes(p);
  };
  const int64_t block = experts_block_rows(rows, shape);
  for (int64_t begin = 0; begin < rows; begin += block) {
    const int64_t bytes = shape(std::min(block, rows - begin));
    p.x = x + begin * p.columns;
    p.chosen = chosen + begin * top;
    p.weights = weights + begin * top;
    p.y = y + begin * p.width;
    p.settled = settled;
    if (streams_experts(limits_, p)) {
      check(stream_experts(stream_.get(), limits_, p, scratch_.take(stream_experts_bytes(p), stream_),
                           reinterpret_cast<unsigned*>(expert_counters_.data())),
            "experts");
      continue;
    }
    const ExpertsScratch scratch(p, scratch_.take(bytes, stream_));
    check(experts_have_few_rows(p) ? few_rows_experts(stream_.get(), p, scratch)
          : p.warpgroups           ? warpgroup_experts(stream_.get(), p, scratch)
                                   : cuda::experts(stream_.get(), p, scratch),
          "experts");
  }
}

}  // namespace verbatim::ops::cuda
