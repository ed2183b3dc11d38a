#include "model/synth.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "model/tensors.h"
#include "tests/checkpoint/test_files.h"
#include "tests/model/tiny_models.h"

namespace verbatim::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::read_bytes;
using checkpoint::TemporaryDirectory;

const std::pair<SynthForm, const char*> kForms[] = {
    {SynthForm::kBf16, "bf16"}, {SynthForm::kNvfp4, "nvfp4"}, {SynthForm::kW4a4Experts, "w4a4-experts"}};

TEST(Synth, WritesSoundCheckpointsThatRun) {
  for (const auto& [form, name] : kForms) {
    const TemporaryDirectory directory;
    ThreadPool pool(2);
    synthesise(directory.path() / "out", {.form = form, .seed = 5}, pool);
    const Loaded loaded(directory.path() / "out");
    EXPECT_EQ(take_census(loaded.checkpoint, loaded.model.config).form, name);
    Cpu cpu;
    const std::vector<float> logits = prompt_logits(*cpu.ops, loaded.model, random_ids(40, 1));
    for (const float logit : logits) ASSERT_TRUE(std::isfinite(logit));
    if (form != SynthForm::kBf16) {
      EXPECT_NO_THROW(Loaded(directory.path() / "out", Precision::kCheckpoint));
    }
  }
}

// Made in memory, a model is the one that the files give.
TEST(Synth, ModelsInMemoryAreTheFiles) {
  for (const SynthForm form : {SynthForm::kBf16, SynthForm::kNvfp4}) {
    const TemporaryDirectory directory;
    ThreadPool pool(2);
    const SynthOptions options{.form = form, .layers = 5, .experts = 6, .seed = 8};
    synthesise(directory.path() / "out", options, pool);
    const Loaded loaded(directory.path() / "out");
    Cpu cpu;
    const Model made = synthetic_model(*cpu.ops, options, true, 1, pool);
    ASSERT_TRUE(made.weights.next_n);
    const std::vector<int32_t> ids = random_ids(40, 2);
    EXPECT_EQ(first_difference(prompt_logits(*cpu.ops, made, ids), prompt_logits(*cpu.ops, loaded.model, ids)), "");
  }
}

// The bytes follow from the options: threads and shards do not matter, another seed does.
TEST(Synth, DependsOnItsOptionsAlone) {
  const TemporaryDirectory directory;
  ThreadPool one(1), three(3);
  const SynthOptions options{.form = SynthForm::kNvfp4, .layers = 4, .experts = 4, .seed = 9};
  SynthOptions sharded = options, other = options;
  sharded.shard_bytes = 100000;
  other.seed = 10;
  synthesise(directory.path() / "a", options, one);
  synthesise(directory.path() / "b", options, three);
  synthesise(directory.path() / "c", sharded, three);
  synthesise(directory.path() / "d", other, one);
  for (const auto& entry : std::filesystem::directory_iterator(directory.path() / "a"))
    EXPECT_EQ(read_bytes(entry.path()), read_bytes(directory.path() / "b" / entry.path().filename())) << entry.path();
  const Checkpoint a = Checkpoint::open(directory.path() / "a"), c = Checkpoint::open(directory.path() / "c"),
                   d = Checkpoint::open(directory.path() / "d");
  EXPECT_EQ(a.shard_count(), 1u);
  EXPECT_GT(c.shard_count(), 3u);
  ASSERT_EQ(a.tensors().size(), c.tensors().size());
  size_t differing = 0;
  for (const checkpoint::TensorView& view : a.tensors()) {
    const auto bytes = a.data(view), same = c.data(*c.find(view.name)), changed = d.data(*d.find(view.name));
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), same.begin(), same.end())) << view.name;
    differing += !std::equal(bytes.begin(), bytes.end(), changed.begin(), changed.end());
  }
  EXPECT_GT(differing, a.tensors().size() / 2);
}

// The released widths, from the config alone: writing them takes gigabytes.
TEST(Synth, ReleasedWidths) {
  const Config c = parse_config(synth_config({.size = SynthSize::kReleased, .layers = 45, .experts = 288}), "synth");
  const Config released =
      parse_config(checkpoint::read_bytes(std::string(VERBATIM_FIXTURES) + "/configs/bf16/config.json"), "bf16");
  EXPECT_TRUE(c.notes.empty());
  std::vector<std::string> ours, theirs;
  auto list = [](std::vector<std::string>& to) {
    return [&to](const Expected& expected) {
      if (expected.group != Group::kVision) to.push_back(expected.name + expected.shape.text());
    };
  };
  for_each_expected(c, list(ours));
  for_each_expected(released, list(theirs));
  EXPECT_EQ(ours, theirs);
}

TEST(Synth, NeverWritesOverACheckpoint) {
  const TemporaryDirectory directory;
  checkpoint::write_bytes(directory.path() / "config.json", "{}");
  ThreadPool pool(1);
  EXPECT_THROW(synthesise(directory.path(), {}, pool), Error);
  EXPECT_EQ(read_bytes(directory.path() / "config.json"), "{}");
  checkpoint::write_bytes(directory.path() / "file", "x");
  EXPECT_THROW(synthesise(directory.path() / "file" / "below", {}, pool), Error);
}

}  // namespace
}  // namespace verbatim::model
