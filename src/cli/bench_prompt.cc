#include "cli/bench_prompt.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/synthetic.h"
#include "cli/bench_meter.h"
#include "cli/bench_statistics.h"
#include "cli/library_product.h"

namespace verbatim::cli {

namespace {

struct OperatorTime {
  std::string label;
  OperatorCount count;
  double us = 0;
};

struct Prompt {
  int64_t rows = 0, flops = 0;
  double us = 0, slowest_us = 0;  // median and slowest of the repeats
  double distinct_experts = 0;    // of a layer
  std::vector<OperatorTime> operators;
};

Prompt measure(ops::Ops& ops, const model::Model& model, int64_t rows, const PromptBenchOptions& options) {
  using Clock = std::chrono::steady_clock;
  state::Storage storage(ops, model.config, 1, state::pages_for(options.position + rows));
  if (options.position > 0) fill_with_noise(ops, model.config, storage);
  model::Workspace workspace(ops, model.config, rows);
  std::vector<int32_t> pages(static_cast<size_t>(storage.pages())), ids(static_cast<size_t>(rows));
  std::iota(pages.begin(), pages.end(), 0);
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(mix_bits(i + 7) % static_cast<uint64_t>(model.config.vocabulary));
  const state::Sequence sequence(0, pages, options.position);
  const ops::Span span = sequence.next(0, rows, rows);
  const auto pass = [&](ops::Ops& through) {
    model::forward(through, model, storage.state(), {&span, 1}, ids, workspace);
    through.synchronise();
  };
  Prompt result;
  result.rows = rows;
  std::vector<double> us;
  pass(ops);  // working memory grows
  for (int64_t i = 0; i < std::max<int64_t>(options.repeats, 1); ++i) {
    const auto start = Clock::now();
    pass(ops);
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  result.us = median(us);
  result.slowest_us = *std::max_element(us.begin(), us.end());

  // Every operator on its own in the order of the pass, on the values of the pass.
  OperatorMeter meter(ops);
  meter.start_counting();
  pass(meter);
  meter.stop_counting();
  std::map<std::string, std::vector<double>> times;
  for (int64_t i = 0; i < std::clamp<int64_t>(options.repeats, 1, 3); ++i) {
    meter.start_timing();
    pass(meter);
    for (const auto& [label, own] : meter.microseconds()) times[label].push_back(own);
  }
  for (const auto& [label, count] : meter.counts()) {
    result.flops += count.flops;
    result.operators.push_back({label, count, median(times[label])});
  }
  std::sort(result.operators.begin(), result.operators.end(),
            [](const OperatorTime& a, const OperatorTime& b) { return a.us > b.us; });
  for (const int64_t distinct : meter.distinct_experts())
    result.distinct_experts += static_cast<double>(distinct) / static_cast<double>(meter.distinct_experts().size());
  return result;
}

// Of a count of bytes or operations in microseconds, in 10^12 or 10^9 a second.
double tera(int64_t count, double us) { return static_cast<double>(count) / us * 1e-6; }
double giga(int64_t count, double us) { return static_cast<double>(count) / us * 1e-3; }

std::string share_of(double rate, std::optional<double> whole) {
  return whole ? fmt::format("{:.1f}%", 100 * rate / *whole) : "";
}

void print(const Prompt& p, const PromptBenchOptions& options, double bandwidth, std::optional<double> library) {
  const auto rows = static_cast<double>(p.rows);
  const double rate = tera(p.flops, p.us);
  fmt::print(
      "\na prompt of {} tokens behind {}, in one step, head aside: {:.1f} ms (slowest {:.1f}), {:.0f} tokens/s; "
      "{:.2f} GFLOP a token, {:.1f} TFLOP/s{}; {:.1f} distinct experts a layer\n",
      p.rows, options.position, p.us * 1e-3, p.slowest_us * 1e-3, rows * 1e6 / p.us,
      static_cast<double>(p.flops) / rows * 1e-9, rate,
      library ? fmt::format(", {} of {}", share_of(rate * 1e12, library), kLibraryProduct) : "", p.distinct_experts);
  const double total = std::accumulate(p.operators.begin(), p.operators.end(), 0.0,
                                       [](double sum, const OperatorTime& each) { return sum + each.us; });
  fmt::print("{:<28} {:>6} {:>10} {:>7} {:>10} {:>10} {:>9} {:>10} {:>9}\n", "operator, alone", "calls", "us", "share",
             "GFLOP", "TFLOP/s", "library", "GB/s", "memory");
  for (const OperatorTime& each : p.operators) {
    const int64_t bytes = each.count.bytes + each.count.row_bytes;
    const double own = tera(each.count.flops, each.us), moved = giga(bytes, each.us);
    fmt::print("{:<28} {:>6} {:>10.1f} {:>6.1f}% {:>10.1f} {:>10.1f} {:>9} {:>10.1f} {:>8.1f}%\n", each.label,
               each.count.calls, each.us, 100 * each.us / total, static_cast<double>(each.count.flops) * 1e-9, own,
               each.count.flops > 0 ? share_of(own * 1e12, library) : "", moved, 100 * moved * 1e9 / bandwidth);
  }
  fmt::print("{:<28} {:>17.1f}\n", "sum", total);
}

nlohmann::ordered_json as_json(const Prompt& p, const PromptBenchOptions& options, std::optional<double> library) {
  const auto rows = static_cast<double>(p.rows);
  nlohmann::ordered_json out = {{"rows", p.rows},
                                {"position", options.position},
                                {"tokens_per_s", rows * 1e6 / p.us},
                                {"slowest_tokens_per_s", rows * 1e6 / p.slowest_us},
                                {"flops", p.flops},
                                {"flops_per_s", static_cast<double>(p.flops) * 1e6 / p.us},
                                {"distinct_experts_per_layer", p.distinct_experts}};
  if (library) out["library_flops_per_s"] = *library;
  out["operators"] = nlohmann::ordered_json::array();
  for (const OperatorTime& each : p.operators)
    out["operators"].push_back({{"operator", each.label},
                                {"calls", each.count.calls},
                                {"us", each.us},
                                {"flops", each.count.flops},
                                {"bytes", each.count.bytes},
                                {"row_bytes", each.count.row_bytes}});
  return out;
}

}  // namespace

void fill_with_noise(ops::Ops& ops, const model::Config& c, const state::Storage& storage) {
  std::vector<float> noise(size_t{1} << 22);
  const uint64_t key = synthetic_key(1, "caches");
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = 0.25f * synthetic_number(key, static_cast<int64_t>(i));
  const auto cover = [&](void* to, int64_t bytes) {
    const auto most = static_cast<int64_t>(noise.size() * sizeof(float));
    for (int64_t done = 0; done < bytes; done += most)
      ops.copy_in(static_cast<std::byte*>(to) + done, noise.data(), static_cast<size_t>(std::min(most, bytes - done)));
  };
  const ops::IndexShape index = model::index_shape(c);
  // All but the decays of rows since S, of which there are none.
  for (const ops::KdaState& layer : storage.state().linear)
    cover(layer.state, storage.slots() * c.linear_heads * c.linear_head_width * c.linear_head_width * 4);
  // Two bytes of such a float32 are no large bfloat16 either, but for the low halves: so only float32 caches.
  if (ops.cache_element_bytes() != sizeof(float)) {
    std::vector<uint16_t> halves(2 * noise.size());
    for (size_t i = 0; i < halves.size(); ++i)
      halves[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(noise[i / 2]) >> 16);
    std::memcpy(noise.data(), halves.data(), noise.size() * sizeof(float));
  }
  for (const ops::LatentCache& layer : storage.state().sparse) {
    cover(layer.latents, storage.pages() * ops::kPageTokens * c.latent * ops.cache_element_bytes());
    cover(layer.pools, storage.pages() * (ops::kPageTokens / index.pool) * index.width * ops.cache_element_bytes());
  }
}

nlohmann::ordered_json bench_prompts(ops::Ops& ops, const model::Model& model, const std::vector<int64_t>& rows,
                                     const PromptBenchOptions& options, double bandwidth) {
  const std::optional<double> library = library_product_flops_per_s(ops);
  if (!options.json) {
    if (library)
      fmt::print("\n{}: {:.1f} TFLOP/s\n", kLibraryProduct, *library * 1e-12);
    else
      fmt::print("\n{} could not be measured here\n", kLibraryProduct);
  }
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const int64_t each : rows) {
    const Prompt prompt = measure(ops, model, each, options);
    if (!options.json) print(prompt, options, bandwidth, library);
    out.push_back(as_json(prompt, options, library));
  }
  return out;
}

}  // namespace verbatim::cli
