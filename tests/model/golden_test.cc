// Whole tiny models against what Hugging Face transformers computes on them (golden.json says what each name is).
// The bound is the project's: 1e-4 by ||a - b|| / ||b||. float32 sums in another order give about 3e-6 here.
#include <gtest/gtest.h>

#include "tests/model/tiny_models.h"

namespace verbatim::model {
namespace {

constexpr double kBound = 1e-4;

void expect_close(const std::string& name, std::span<const float> ours, std::span<const float> golden) {
  const double error = relative_error(ours, golden);
  std::printf("%-28s %.2e\n", name.c_str(), error);
  EXPECT_LT(error, kBound) << name;
}

TEST(Golden, TextLogits) {
  const Golden golden;
  const Loaded loaded(tiny("tiny-bf16"));
  Cpu cpu;
  for (const char* length : {"1", "2", "5", "16", "33", "100", "300"}) {
    const std::string name = std::string("text.") + length;
    const std::vector<float> expected = golden.floats(name + ".logits");
    const auto logits = prompt_logits(*cpu.ops, loaded.model, golden.ids(name + ".ids"));
    expect_close(name + ".logits", last_rows(logits, 100, loaded.model.config.vocabulary), expected);
  }
}

TEST(Golden, StreamsAfterEveryLayer) {
  const Golden golden;
  const Loaded loaded(tiny("tiny-bf16"));
  const Config& c = loaded.model.config;
  Cpu cpu;
  for (const char* length : {"5", "33"}) {
    const std::string name = std::string("text.") + length;
    const std::vector<int32_t> ids = golden.ids(name + ".ids");
    const auto rows = static_cast<int64_t>(ids.size());
    const std::vector<float> expected = golden.floats(name + ".streams");
    state::Storage storage(*cpu.ops, c, 1, state::pages_for(rows));
    const std::vector<int32_t> pages(static_cast<size_t>(state::pages_for(rows)), 0);
    state::Sequence sequence(0, pages);
    Workspace workspace(*cpu.ops, c, rows);
    const ops::Span span = sequence.next(0, rows, rows);
    std::vector<float> streams;
    forward(*cpu.ops, loaded.model, storage.state(), {&span, 1}, ids, workspace,
            [&](int64_t, const float* x) { streams.insert(streams.end(), x, x + rows * c.streams * c.hidden); });
    const auto size = static_cast<size_t>(rows * c.streams * c.hidden);
    for (size_t layer = 0; layer < static_cast<size_t>(c.layers); ++layer)
      expect_close(name + ".streams layer " + std::to_string(layer), std::span(streams).subspan(layer * size, size),
                   std::span(expected).subspan(layer * size, size));
  }
}

TEST(Golden, Decode) {
  const Golden golden;
  const Loaded loaded(tiny("tiny-bf16"));
  Cpu cpu;
  const std::vector<int32_t> ids = golden.ids("decode.ids");
  state::Solo solo(*cpu.ops, loaded.model, 64, 64);
  std::vector<float> logits;
  solo.feed(std::span(ids).first(40));
  logits.insert(logits.end(), solo.logits().begin(), solo.logits().end());
  for (size_t i = 40; i < 64; ++i) solo.feed(std::span(ids).subspan(i, 1), &logits);
  expect_close("decode.logits", logits, golden.floats("decode.logits"));
  expect_close("decode.full_logits", logits, golden.floats("decode.full_logits"));
}

TEST(Golden, GreedyIds) {
  const Golden golden;
  const Loaded loaded(tiny("tiny-bf16"));
  Cpu cpu;
  const std::vector<int32_t> expected = golden.ids("greedy.ids");
  state::Solo solo(*cpu.ops, loaded.model, 60, 60);
  solo.feed(std::span(expected).first(20));
  std::vector<int32_t> ids(expected.begin(), expected.begin() + 20);
  while (ids.size() < 60) {
    ids.push_back(solo.greedy(loaded.model.config.vocabulary));
    solo.feed(std::span(ids).last(1));
  }
  EXPECT_EQ(ids, expected);
}

TEST(Golden, NextNLayer) {
  const Golden golden;
  const Loaded loaded(tiny("tiny-bf16"));
  const Config& c = loaded.model.config;
  Cpu cpu;
  const std::vector<int32_t> ids = golden.ids("mtp.ids");
  const std::vector<float> expected = golden.floats("mtp.output");
  for (const int64_t chunk : {49, 1, 7}) {
    state::Storage storage(*cpu.ops, c, 1, 1);
    state::Sequence sequence(0, {0}), drafts(0, {0});
    Workspace workspace(*cpu.ops, c, 50);
    const ops::Span span = sequence.next(0, 50, 50);
    forward(*cpu.ops, loaded.model, storage.state(), {&span, 1}, ids, workspace);
    const std::vector<float> hidden(workspace.hidden, workspace.hidden + 50 * c.hidden);
    expect_close("mtp.hidden", hidden, golden.floats("mtp.hidden"));

    std::vector<float> output;
    for (int64_t row = 0; row < 49; row += chunk) {
      const ops::Span part = drafts.next(0, std::min(chunk, 49 - row), std::min(chunk, 49 - row));
      next_n(*cpu.ops, loaded.model, storage.state(), {&part, 1},
             std::span(ids).subspan(static_cast<size_t>(row + 1), static_cast<size_t>(part.rows)),
             hidden.data() + row * c.hidden, workspace);
      drafts.accept(part, part.rows);
      output.insert(output.end(), workspace.output, workspace.output + part.rows * c.hidden);
    }
    expect_close("mtp.output in chunks of " + std::to_string(chunk), output, expected);
    std::vector<float> logits(49 * static_cast<size_t>(c.vocabulary));
    head(*cpu.ops, loaded.model, output.data(), 49, logits.data());
    expect_close("mtp.logits", logits, golden.floats("mtp.logits"));
  }
}

TEST(Golden, QuantisedForms) {
  const Golden golden;
  Cpu cpu;
  auto check = [&](const char* directory, Precision precision, const std::string& ids, const std::string& logits) {
    const Loaded loaded(tiny(directory), precision);
    expect_close(std::string(directory) + " " + logits, prompt_logits(*cpu.ops, loaded.model, golden.ids(ids)),
                 golden.floats(logits));
  };
  check("tiny-bf16", Precision::kFull, "nvfp4.ids", "nvfp4.bf16_logits");
  check("tiny-nvfp4", Precision::kFull, "nvfp4.ids", "nvfp4.w4a16_logits");
  check("tiny-nvfp4", Precision::kCheckpoint, "nvfp4.w4a4.ids", "nvfp4.w4a4_logits");
  check("tiny-w4a4-experts", Precision::kFull, "mixed.w4a16.ids", "mixed.w4a16_logits");
  check("tiny-w4a4-experts", Precision::kCheckpoint, "mixed.w4a4.ids", "mixed.w4a4_logits");
}

// The routed experts' inputs rounded, the dense feed-forward's not.
TEST(Golden, W4A4InTheExpertsAlone) {
  const Golden golden;
  Loaded loaded(tiny("tiny-nvfp4"), Precision::kCheckpoint);
  for (Layer& layer : loaded.model.weights.layers)
    for (Matrix* matrix : {&layer.mlp.gate, &layer.mlp.up, &layer.mlp.down}) matrix->input_scale = 0;
  Cpu cpu;
  expect_close("nvfp4.w4a4_experts_logits", prompt_logits(*cpu.ops, loaded.model, golden.ids("nvfp4.w4a4_experts.ids")),
               golden.floats("nvfp4.w4a4_experts_logits"));
}

// tiny-compressed holds tiny-w4a4-experts' matrices with inverted scales (and FP8 next-n experts, which logits do not
// read), so transformers' outputs on that one hold for it.
TEST(Golden, CompressedTensors) {
  const Golden golden;
  Cpu cpu;
  const Loaded full(tiny("tiny-compressed"));
  expect_close("compressed w4a16", prompt_logits(*cpu.ops, full.model, golden.ids("mixed.w4a16.ids")),
               golden.floats("mixed.w4a16_logits"));
  const Loaded own(tiny("tiny-compressed"), Precision::kCheckpoint);
  expect_close("compressed w4a4", prompt_logits(*cpu.ops, own.model, golden.ids("mixed.w4a4.ids")),
               golden.floats("mixed.w4a4_logits"));
}

// float64 logits of the numpy reference on tiny-fp8 (tests/fixtures/make_fp8_golden.py).
TEST(Golden, Fp8Blocks) {
  const Golden golden;
  Cpu cpu;
  const Loaded loaded(tiny("tiny-fp8"));
  const checkpoint::SafetensorsFile file(std::filesystem::path(VERBATIM_FIXTURES) / "fp8_golden.safetensors");
  const auto bytes = file.data(file.at("logits"));
  std::vector<float> expected(bytes.size() / sizeof(float));
  std::memcpy(expected.data(), bytes.data(), bytes.size());
  expect_close("fp8 logits", prompt_logits(*cpu.ops, loaded.model, golden.ids("nvfp4.ids")), expected);
}

}  // namespace
}  // namespace verbatim::model
