// Operators take no more working memory than is counted from headers, and what is counted is not far from it.
#include "model/working_memory.h"

#include <gtest/gtest.h>

#include "engine/backend_model.h"
#include "model/synth.h"
#include "ops/cuda_backend.h"
#include "ops/devices.h"
#include "tests/model/tiny_models.h"

namespace verbatim::model {
namespace {

constexpr int64_t kSequences = 5;

// Steps of every kind: prompts of these rows, then replies and windows of all sequences, heads, samples and drafts.
void run_steps(ops::Ops& ops, const Model& model, std::initializer_list<int64_t> rows, int64_t position) {
  const int64_t most = std::max(rows) + kSequences * ops::kWindowRows;
  engine::BackendModel backend(
      ops, model,
      {.max_rows = most, .slots = kSequences, .pages = kSequences * state::pages_for(position + most + 64)});
  std::vector<state::Sequence> sequences;
  const int64_t own = backend.sizes().pages / kSequences;
  for (int64_t i = 0; i < kSequences; ++i) {
    std::vector<int32_t> pages(static_cast<size_t>(own));
    for (int64_t page = 0; page < own; ++page) pages[static_cast<size_t>(page)] = static_cast<int32_t>(i * own + page);
    sequences.emplace_back(static_cast<int32_t>(i), pages, position);
  }
  const auto step = [&](int64_t count, int64_t each, int64_t certain) {
    std::vector<ops::Span> spans;
    for (int64_t i = 0; i < count; ++i)
      spans.push_back(sequences[static_cast<size_t>(i)].next(i * each, each, certain));
    const std::vector<int32_t> ids(static_cast<size_t>(count * each), 7);
    backend.forward(spans, ids);
    std::vector<int32_t> last;
    for (int64_t i = 0; i < count; ++i) last.push_back(static_cast<int32_t>((i + 1) * each - 1));
    ops::SampleRow how;
    how.temperature = 1.0f;
    how.top_p = 0.9f;
    backend.sample(last, std::vector<ops::SampleRow>(last.size(), how), {});
    backend.greedy(last);
    if (!backend.sizes().has_next_n) return;
    std::vector<int32_t> all(ids.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    backend.next_n(spans, ids, all);
    std::vector<engine::DraftChain> chains;
    for (int64_t i = 0; i < count; ++i) {
      chains.push_back({last[static_cast<size_t>(i)], 3, spans[static_cast<size_t>(i)]});
      chains.back().span.position += each;
      chains.back().span.rows = chains.back().span.certain = 1;
    }
    backend.draft(chains);
  };
  for (const int64_t each : rows) step(1, each, each);
  step(kSequences, 1, 1);
  step(kSequences, ops::kWindowRows, 1);
}

TEST(WorkingMemory, StepsTakeWhatIsCounted) {
  if (ops::cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
  for (const auto& [directory, precision] :
       {std::pair{"tiny-bf16", Precision::kFull}, std::pair{"tiny-nvfp4", Precision::kFull},
        std::pair{"tiny-fp8", Precision::kFull}, std::pair{"tiny-compressed", Precision::kFull},
        std::pair{"tiny-w4a4-experts", Precision::kCheckpoint}}) {
    for (const int64_t position : {int64_t{0}, int64_t{3072}}) {
      Loaded loaded(tiny(directory), precision);
      WorkingOptions options;
      options.rows = 300 + kSequences * ops::kWindowRows;
      options.sequences = kSequences;
      options.positions = position + options.rows + 64;
      options.activation_scales = precision == Precision::kCheckpoint;
      const Config& c = loaded.model.config;
      const int64_t counted = cuda_working_bytes(loaded.checkpoint, c, c, options);
      const auto device = ops::make_cuda_ops({});
      upload_weights(*device, loaded.model);
      ops::cuda_reserve_working(*device, counted);
      const int64_t before = ops::cuda_working_held(*device);
      run_steps(*device, loaded.model, {1, 2, 8, 21, 33, 64, 65, 130, 300}, position);
      std::printf("%s behind %ld: %ld bytes counted, %ld held\n", directory, static_cast<long>(position),
                  static_cast<long>(counted), static_cast<long>(ops::cuda_working_held(*device)));
      EXPECT_EQ(ops::cuda_working_held(*device), before) << directory;
    }
  }
}

// The released widths, a few layers. Without memory reserved a backend holds what a step needed and up to a quarter
// more.
TEST(WorkingMemory, OfTheReleasedWidths) {
  if (ops::cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
  ThreadPool pool(4);
  const SynthOptions synth{.size = SynthSize::kReleased, .form = SynthForm::kNvfp4, .layers = 5, .experts = 16};
  for (const int64_t rows : {int64_t{512}, int64_t{8192}}) {
    int64_t counted = 0, needed = 0;
    for (const bool reserves : {false, true}) {
      const auto device = ops::make_cuda_ops({.records_steps = true});
      const Model model = synthetic_model(*device, synth, true, 1, pool);
      WorkingOptions options;
      options.rows = rows;
      options.sequences = kSequences;
      options.positions = 2 * rows;
      counted = cuda_working_bytes(model, options);
      if (reserves) ops::cuda_reserve_working(*device, counted);
      const int64_t before = ops::cuda_working_held(*device), free = ops::cuda_free_bytes(*device);
      run_steps(*device, model, {1, 8, 64, 65, 128, 512, rows}, 64);
      const int64_t held = ops::cuda_working_held(*device);
      if (!reserves) {
        needed = held;
        // What grows takes a quarter more than asked for, rounded up to 256 bytes.
        EXPECT_LE(held / 5 * 4, std::max(counted, before) + 256) << rows;
        continue;
      }
      std::printf(
          "released widths, %ld rows: %ld MiB counted and never outgrown; %ld MiB held where it grows; %ld MiB "
          "taken beside\n",
          static_cast<long>(rows), static_cast<long>(counted >> 20), static_cast<long>(needed >> 20),
          static_cast<long>((free - ops::cuda_free_bytes(*device)) >> 20));
      EXPECT_EQ(held, before) << rows;
    }
  }
}

}  // namespace
}  // namespace verbatim::model
