#include "cli/bench_synthetic.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/synthetic.h"
#include "base/thread_pool.h"
#include "cli/bench_bandwidth.h"
#include "cli/bench_meter.h"
#include "cli/bench_prompt.h"
#include "cli/bench_statistics.h"
#include "model/glm.h"
#include "model/synth.h"
#include "ops/cuda_backend.h"
#include "ops/devices.h"
#include "state/storage.h"

namespace verbatim::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kOperatorReplays = 5;
// Tags of Ops::step: whole steps, and steps of which one operator is let through.
constexpr uint64_t kWholeStep = 1, kOneOperator = 1000;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct OperatorTime {
  std::string label;
  OperatorCount count;
  int64_t launches = 0;
  double us = 0;
};

struct Measured {
  int64_t sequences = 0, bytes = 0, launches = 0;
  double step_us = 0, slowest_us = 0;                // median and slowest of the repeats' means
  double distinct_experts = 0, uniform_experts = 0;  // of a layer
  std::vector<OperatorTime> operators;
};

// Sequences that stand at `context` tokens, their caches and states filled with noise as a prompt would leave them.
class Decoder {
 public:
  Decoder(ops::Ops& ops, const model::Model& model, int64_t sequences, int64_t context, int64_t steps)
      : ops_(ops),
        model_(model),
        storage_(ops, model.config, sequences, sequences * state::pages_for(context + steps + 1)),
        workspace_(ops, model.config, sequences),
        logits_(ops, sizeof(float) * static_cast<size_t>(sequences * model.config.vocabulary)),
        greedy_(ops, sizeof(int32_t) * static_cast<size_t>(sequences)) {
    const int64_t pages = state::pages_for(context + steps + 1);
    for (int64_t i = 0; i < sequences; ++i) {
      std::vector<int32_t> own(static_cast<size_t>(pages));
      std::iota(own.begin(), own.end(), static_cast<int32_t>(i * pages));
      sequences_.emplace_back(static_cast<int32_t>(i), std::move(own), context);
      ids_.push_back(static_cast<int32_t>(mix_bits(static_cast<uint64_t>(i) + 1) %
                                          static_cast<uint64_t>(model.config.vocabulary)));
    }
    fill_with_noise(ops, model.config, storage_);
  }

  // One token for every sequence; on a backend that records, in one launch.
  void step() {
    make_spans();
    ops_.step(kWholeStep, spans_, ids_, [&] { pass(ops_); });
    ops_.copy_out(ids_.data(), greedy_.ints(), ids_.size() * sizeof(int32_t));
    for (size_t i = 0; i < sequences_.size(); ++i) sequences_[i].accept(spans_[i], 1);
  }

  // What the next step would ask of each operator, and the time of each alone.
  void measure_operators(bool times, Measured& result) {
    make_spans();
    OperatorMeter meter(ops_);
    meter.start_counting();
    pass(meter);
    meter.stop_counting();
    for (const auto& [label, count] : meter.counts()) result.bytes += count.bytes;
    for (const int64_t distinct : meter.distinct_experts())
      result.distinct_experts += static_cast<double>(distinct) / static_cast<double>(meter.distinct_experts().size());
    if (!times) return;
    // Intermediate results share memory, so an operator that reads ids runs behind the one that chooses them, whose
    // time is taken off; experts read those of the last layer of a whole pass.
    const auto time_of = [&](uint64_t tag, std::set<std::string> labels) {
      meter.let_through(std::move(labels));
      const auto run = [&] { ops_.step(tag, spans_, ids_, [&] { pass(meter); }); };
      run();
      run();
      ops_.synchronise();
      const auto start = Clock::now();
      for (int i = 0; i < kOperatorReplays; ++i) run();
      ops_.synchronise();
      return microseconds_since(start) / kOperatorReplays;
    };
    uint64_t tag = kOneOperator;
    for (const auto& [label, count] : meter.counts()) {
      pass(ops_);
      std::pair<double, int64_t> own;
      if (label == "sparse_attention") {
        const double before = time_of(tag++, {"select_pools"});
        const int64_t launches = ops_.launches();
        own.first = time_of(tag++, {"select_pools", label}) - before;
        own.second = ops_.launches() - launches;
      } else {
        own.first = time_of(tag++, {label});
        own.second = ops_.launches();
      }
      result.operators.push_back({label, count, own.second, own.first});
    }
    std::sort(result.operators.begin(), result.operators.end(),
              [](const OperatorTime& a, const OperatorTime& b) { return a.us > b.us; });
  }

 private:
  void make_spans() {
    spans_.clear();
    for (const state::Sequence& sequence : sequences_) spans_.push_back(sequence.next(std::ssize(spans_), 1, 1));
  }

  void pass(ops::Ops& ops) {
    const model::Config& c = model_.config;
    const int64_t rows = std::ssize(ids_);
    model::forward(ops, model_, storage_.state(), spans_, ids_, workspace_);
    model::head(ops, model_, workspace_.hidden, rows, logits_.floats());
    ops.argmax(logits_.floats(), rows, c.vocabulary, c.vocabulary, greedy_.ints());
  }

  ops::Ops& ops_;
  const model::Model& model_;
  state::Storage storage_;
  model::Workspace workspace_;
  ops::Buffer logits_, greedy_;
  std::vector<state::Sequence> sequences_;
  std::vector<int32_t> ids_;
  std::vector<ops::Span> spans_;
};

Measured measure(ops::Ops& ops, const model::Model& model, const SyntheticBenchOptions& options, int64_t sequences) {
  constexpr int64_t kWarm = 3;
  Decoder decoder(ops, model, sequences, options.context, kWarm + options.repeats * options.tokens);
  Measured result;
  result.sequences = sequences;
  for (int64_t i = 0; i < kWarm; ++i) decoder.step();
  std::vector<double> times;
  for (int64_t repeat = 0; repeat < options.repeats; ++repeat) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < options.tokens; ++i) decoder.step();
    times.push_back(microseconds_since(start) / static_cast<double>(options.tokens));
  }
  result.launches = ops.launches();
  result.step_us = median(times);
  result.slowest_us = *std::max_element(times.begin(), times.end());
  decoder.measure_operators(options.operators, result);
  const auto experts = static_cast<double>(model.config.experts);
  const double missed = 1 - static_cast<double>(model.config.experts_per_token) / experts;
  result.uniform_experts = experts * (1 - std::pow(missed, static_cast<double>(sequences)));
  return result;
}

// Sequences whose states and pages fit in what is free, less a reserve for working memory.
int64_t most_sequences(ops::Ops& ops, const model::Config& config, const SyntheticBenchOptions& options) {
  constexpr int64_t kReserve = int64_t{3} << 30, kMost = 64;
  if (options.backend != "cuda") return kMost;
  const model::StateSizes sizes = model::state_sizes(config, ops.cache_element_bytes());
  const int64_t pages = state::pages_for(options.context + options.repeats * options.tokens + 4);
  const int64_t each = sizes.sequence_bytes + pages * sizes.page_bytes + model::Workspace::bytes(config, 1) +
                       config.vocabulary * static_cast<int64_t>(sizeof(float));
  return std::clamp<int64_t>((ops::cuda_free_bytes(ops) - kReserve) / each, 1, kMost);
}

void print(const Measured& m, double bandwidth) {
  const double limit_us = static_cast<double>(m.bytes) / bandwidth * 1e6;
  fmt::print(
      "\n{} sequences: {:.0f} us a step (slowest {:.0f}), {:.1f} tokens/s; {:.2f} GB a step, {:.1f} % of the "
      "read bandwidth; {} launches; {:.1f} distinct experts a layer (uniform {:.1f})\n",
      m.sequences, m.step_us, m.slowest_us, 1e6 * static_cast<double>(m.sequences) / m.step_us,
      static_cast<double>(m.bytes) / 1e9, 100 * limit_us / m.step_us, m.launches, m.distinct_experts,
      m.uniform_experts);
  if (m.operators.empty()) return;
  const double total = std::accumulate(m.operators.begin(), m.operators.end(), 0.0,
                                       [](double sum, const OperatorTime& each) { return sum + each.us; });
  fmt::print("{:<28} {:>6} {:>8} {:>10} {:>10} {:>7} {:>11}\n", "operator, alone", "calls", "launches", "MB", "us",
             "share", "bandwidth");
  for (const OperatorTime& each : m.operators)
    fmt::print("{:<28} {:>6} {:>8} {:>10.1f} {:>10.1f} {:>6.1f}% {:>10.1f}%\n", each.label, each.count.calls,
               each.launches, static_cast<double>(each.count.bytes) / 1e6, each.us, 100 * each.us / total,
               100 * static_cast<double>(each.count.bytes) / bandwidth * 1e6 / each.us);
  fmt::print("{:<28} {:>37.1f}\n", "sum", total);
}

nlohmann::ordered_json as_json(const Measured& m, double bandwidth) {
  nlohmann::ordered_json row = {{"sequences", m.sequences},
                                {"step_us", m.step_us},
                                {"slowest_step_us", m.slowest_us},
                                {"decode_tokens_per_s", 1e6 * static_cast<double>(m.sequences) / m.step_us},
                                {"bytes_per_step", m.bytes},
                                {"share_of_bandwidth", static_cast<double>(m.bytes) / bandwidth * 1e6 / m.step_us},
                                {"launches", m.launches},
                                {"distinct_experts_per_layer", m.distinct_experts},
                                {"uniform_experts_per_layer", m.uniform_experts}};
  row["operators"] = nlohmann::ordered_json::array();
  for (const OperatorTime& each : m.operators)
    row["operators"].push_back({{"operator", each.label},
                                {"calls", each.count.calls},
                                {"launches", each.launches},
                                {"bytes", each.count.bytes},
                                {"us", each.us}});
  return row;
}

}  // namespace

void bench_synthetic(const SyntheticBenchOptions& options) {
  if (options.backend == "cuda" && !ops::cuda_is_built())
    fail(ErrorKind::kUnsupported, "--backend", "this build has no CUDA; build with VERBATIM_CUDA=ON or use cpu");
  if (options.context % ops::kPageTokens != 0)
    fail(ErrorKind::kUsage, "--context", "{}; expected a multiple of {}, where a state can stand", options.context,
         ops::kPageTokens);
  if (options.prompt_position % ops::kPageTokens != 0)
    fail(ErrorKind::kUsage, "--prompt-position", "{}; expected a multiple of {}, where a state can stand",
         options.prompt_position, ops::kPageTokens);
  ThreadPool pool(options.threads > 0 ? options.threads
                                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const std::unique_ptr<ops::Ops> ops = options.backend == "cuda" ? ops::make_cuda_ops({.records_steps = true})
                                                                  : ops::make_cpu_ops(pool, ops::CpuIsa::kBest);
  const double bandwidth = options.backend == "cuda" ? ops::cuda_read_bandwidth(*ops) : cpu_read_bandwidth(pool);
  model::SynthOptions synth;
  synth.size = options.size == "tiny" ? model::SynthSize::kTiny : model::SynthSize::kReleased;
  synth.form = options.form == "bf16" ? model::SynthForm::kBf16 : model::SynthForm::kNvfp4;
  synth.layers = options.layers;
  synth.experts = options.experts;
  const auto start = Clock::now();
  model::Model model = model::synthetic_model(*ops, synth, false, 1, pool);
  // Random biases would draw all tokens to the same experts; without them routing is near uniform, as trained.
  for (model::Layer& layer : model.weights.layers) layer.moe.bias = nullptr;
  ops->synchronise();
  const double made_s = microseconds_since(start) * 1e-6;
  if (options.context + options.tokens * options.repeats + 4 > model.config.max_positions)
    fail(ErrorKind::kUsage, "--context", "{} and the steps pass the model's {} positions", options.context,
         model.config.max_positions);
  for (const int64_t rows : options.prompt_rows)
    if (options.prompt_position + rows > model.config.max_positions)
      fail(ErrorKind::kUsage, "--prompt-rows", "{} behind {} pass the model's {} positions", rows,
           options.prompt_position, model.config.max_positions);

  if (!options.json)
    fmt::print(
        "{}; memory is read at {:.1f} GB/s; {} layers, {} experts, {}; made in {:.1f} s; context {}, {} tokens, "
        "median and slowest of {}\n",
        ops->name(), bandwidth / 1e9, model.config.layers, model.config.experts, options.form, made_s, options.context,
        options.tokens, options.repeats);
  nlohmann::ordered_json out;
  out["backend"] = ops->name();
  out["bandwidth_bytes_per_s"] = bandwidth;
  out["layers"] = model.config.layers;
  out["experts"] = model.config.experts;
  out["context"] = options.context;
  out["rows"] = nlohmann::ordered_json::array();
  for (const int64_t asked : options.decodes ? options.sequences : std::vector<int64_t>()) {
    const Measured m = measure(*ops, model, options, asked > 0 ? asked : most_sequences(*ops, model.config, options));
    if (!options.json) print(m, bandwidth);
    out["rows"].push_back(as_json(m, bandwidth));
  }
  if (!options.prompt_rows.empty()) {
    const PromptBenchOptions prompt{options.prompt_position, options.repeats, options.json};
    out["prompts"] = bench_prompts(*ops, model, options.prompt_rows, prompt, bandwidth);
  }
  if (options.json) fmt::print("{}\n", out.dump(2));
}

}  // namespace verbatim::cli
