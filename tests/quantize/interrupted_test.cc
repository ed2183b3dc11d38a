// The converter as a process that dies, or whose disk does: it goes on to the same bytes, and never leaves half a file
// under a final name.
#include <random>

#include "tests/quantize/conversion_files.h"

namespace verbatim::quantize {
namespace {

namespace fs = std::filesystem;
using checkpoint::TemporaryDirectory;

// A source of many small shards, made once.
class Interrupted : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory;
    ASSERT_EQ(run_program({VERBATIM_PROGRAM, "synth", source().string(), "--form", "bf16", "--experts", "64",
                           "--shard-size", "2MB", "--seed", "5"})
                  .code,
              0);
    std::string prompts;
    for (int i = 0; i < 6; ++i)
      prompts += R"({"ids": [5, 9, 200, 31, 7, 8, 490, 77, 102, 30, 44, 91, 18]})"
                 "\n";
    checkpoint::write_bytes(directory_->path() / "prompts.jsonl", prompts);
    // Shards that begin in the middle of the source's.
    checkpoint::write_bytes(
        directory_->path() / "own-shards.json",
        R"({"name": "own-shards", "form": "NVFP4", "producer": {"name": "modelopt", "version": "0.47.0"},
 "quantise": [{"group": "routed_experts"}, {"group": "dense_mlp"}], "weights": {"rule": "largest"},
 "activations": {"rule": "largest"}, "shards": 1400000})");
  }
  static void TearDownTestSuite() { delete directory_; }

  static fs::path source() { return directory_->path() / "source"; }

  static std::vector<std::string> command(const std::string& recipe, const fs::path& out) {
    return {VERBATIM_PROGRAM,
            "convert",
            source().string(),
            out.string(),
            "--recipe",
            recipe == "own-shards" ? (directory_->path() / "own-shards.json").string() : recipe,
            "--calibrate",
            (directory_->path() / "prompts.jsonl").string(),
            "--all-experts",
            "--threads",
            "2"};
  }
  static std::vector<std::string> resumed(std::vector<std::string> arguments) {
    arguments.emplace_back("--resume");
    return arguments;
  }

  static TemporaryDirectory* directory_;
};
TemporaryDirectory* Interrupted::directory_ = nullptr;

TEST_F(Interrupted, FiftyKillsThenResumeGivesTheSameBytes) {
  const auto source_before = contents_of(source());
  std::mt19937 random(11);
  int kills = 0, resumed_runs = 0;
  for (const std::string recipe : {"nvfp4-experts-w4a4", "own-shards"}) {
    const TemporaryDirectory scratch;
    const Finished whole = run_program(command(recipe, scratch.path() / "whole"));
    ASSERT_EQ(whole.code, 0) << whole.text;
    const auto reference = contents_of(scratch.path() / "whole");
    ASSERT_GT(reference.size(), 12u);  // many shards
    const int wanted = kills + 25;
    for (int chain = 0; kills < wanted; ++chain) {
      ASSERT_LT(chain, 400);
      const fs::path out = scratch.path() / ("out" + std::to_string(chain));
      std::vector<std::string> arguments = command(recipe, out);
      for (int step = 0;; ++step) {
        // Early kills too: the first ones fall into calibration and the first shard.
        const bool let_finish = kills >= wanted || step > 6;
        const double after = std::uniform_real_distribution<double>(0, 1.1 * whole.seconds)(random);
        const Finished run = run_program(arguments, let_finish ? -1 : after);
        if (fs::exists(out)) arguments = resumed(command(recipe, out));
        if (run.code == 0) break;
        ASSERT_EQ(run.code, -1) << run.text;
        ++kills;
        ++resumed_runs;
        for (const auto& [name, bytes] : fs::exists(out) ? contents_of(out) : decltype(reference){})
          if (!name.ends_with(".partial") && name != "conversion_journal.jsonl") {
            ASSERT_TRUE(reference.contains(name) && reference.at(name) == bytes) << name;
          }
      }
      ASSERT_EQ(first_difference(contents_of(out), reference), "") << recipe << " chain " << chain;
      fs::remove_all(out);
    }
  }
  EXPECT_GE(kills, 50);
  EXPECT_EQ(first_difference(contents_of(source()), source_before), "");
}

TEST_F(Interrupted, FailingDisks) {
  const TemporaryDirectory scratch;
  const std::string recipe = "nvfp4-experts-w4a4";
  ASSERT_EQ(run_program(command(recipe, scratch.path() / "whole")).code, 0);
  const auto reference = contents_of(scratch.path() / "whole");
  const struct {
    const char *fault, *expected;
  } kCases[] = {
      {"write,28,0", "No space left on device"},
      {"write,28,300000", "No space left on device"},
      {"write,28,5000000", "No space left on device"},
      {"write,5,2500000", "Input/output error"},
      {"pread,5,0", "Input/output error"},
      {"pread,5,3000000", "cannot read at byte"},
      {"pread,5,12000000", "Input/output error"},
      {"fsync,5,0", "cannot sync"},
      {"fsync,5,7", "cannot sync"},
      {"fsync,28,20", "cannot sync"},
      {"statvfs,0,1000000", "bytes are free; expected"},
  };
  int number = 0;
  for (const auto& [fault, expected] : kCases) {
    const fs::path out = scratch.path() / ("out" + std::to_string(number++));
    const Finished run = run_program(command(recipe, out), -1,
                                     {std::string("LD_PRELOAD=") + VERBATIM_FAULTY_IO,
                                      std::string("VERBATIM_FAULT=") + fault, "ASAN_OPTIONS=verify_asan_link_order=0"});
    EXPECT_EQ(run.code, 1) << fault << ": " << run.text;
    EXPECT_NE(run.text.find(expected), std::string::npos) << fault << ": " << run.text;
    EXPECT_EQ(first_unwhole(out, reference), "") << fault;
    EXPECT_FALSE(fs::exists(out / "conversion_manifest.json")) << fault;
    const Finished again = run_program(resumed(command(recipe, out)));
    EXPECT_EQ(again.code, 0) << fault << ": " << again.text;
    EXPECT_EQ(first_difference(contents_of(out), reference), "") << fault;
  }
}

TEST_F(Interrupted, DamagedSources) {
  const TemporaryDirectory scratch;
  const std::string recipe = "nvfp4-experts-w4a4";
  ASSERT_EQ(run_program(command(recipe, scratch.path() / "whole")).code, 0);
  const auto reference = contents_of(scratch.path() / "whole");
  const fs::path copy = scratch.path() / "copy", out = scratch.path() / "out";
  auto convert_copy = [&] {
    fs::remove_all(out);
    std::vector<std::string> arguments = command(recipe, out);
    arguments[2] = copy.string();
    return run_program(arguments);
  };
  auto fresh_copy = [&] {
    fs::remove_all(copy);
    fs::copy(source(), copy);
  };
  auto shard = [&](int number) {
    for (const auto& entry : fs::directory_iterator(copy))
      if (entry.path().filename().string().starts_with(fmt::format("model-{:05}-of", number))) return entry.path();
    return fs::path();
  };
  auto refused = [&](const std::string& expected) {
    const Finished run = convert_copy();
    EXPECT_EQ(run.code, 1) << run.text;
    EXPECT_NE(run.text.find(expected), std::string::npos) << expected << ": " << run.text;
    if (fs::exists(out)) {
      EXPECT_EQ(first_unwhole(out, reference), "");
    }
    EXPECT_FALSE(fs::exists(out / "conversion_manifest.json"));
  };

  fresh_copy();  // the last shard cut short
  std::string bytes = checkpoint::read_bytes(shard(9));
  checkpoint::write_bytes(shard(9), bytes.substr(0, bytes.size() - 1000));
  refused("perhaps an incomplete download");

  fresh_copy();  // a header that is none
  bytes = checkpoint::read_bytes(shard(4));
  bytes[9] = '!';
  checkpoint::write_bytes(shard(4), bytes);
  refused("not valid JSON");

  fresh_copy();  // a shard that is not there
  fs::remove(shard(3));
  refused("is not there");

  fresh_copy();  // a tensor that is not there: renamed in shard and index, to the same length
  const fs::path index = copy / "model.safetensors.index.json";
  const std::string name = "experts.7.up_proj.weight", other = "experts.7.up_prok.weight";
  for (const auto& entry : fs::directory_iterator(copy)) {
    std::string text = checkpoint::read_bytes(entry.path());
    bool found = false;
    for (size_t at = 0; (at = text.find("layers.4.mlp." + name, at)) != std::string::npos; found = true)
      text.replace(at + 13, other.size(), other);
    if (found) checkpoint::write_bytes(entry.path(), text);
  }
  refused("layers.4.mlp.experts.7.up_proj.weight': missing");

  fresh_copy();  // a weight that is no number, late in the source; what came before stays
  const auto stored = checkpoint::Checkpoint::open(copy);
  const auto* tensor = stored.find("model.language_model.layers.7.mlp.experts.50.down_proj.weight");
  ASSERT_NE(tensor, nullptr);
  const fs::path file = stored.file_of(tensor->raw);
  bytes = checkpoint::read_bytes(file);
  bytes[stored.file_offset(*tensor) + 2001] = '\x7f';
  bytes[stored.file_offset(*tensor) + 2000] = '\xc0';
  checkpoint::write_bytes(file, bytes);
  {
    const Finished run = [&] {
      fs::remove_all(out);
      return run_program({VERBATIM_PROGRAM, "convert", copy.string(), out.string(), "--weight-only"});
    }();
    EXPECT_EQ(run.code, 1) << run.text;
    EXPECT_NE(run.text.find("experts.50.down_proj.weight] a weight is NaN"), std::string::npos) << run.text;
    EXPECT_FALSE(fs::exists(out / "conversion_manifest.json"));
    for (const auto& [left, contents] : contents_of(out)) EXPECT_FALSE(left.ends_with(".partial")) << left;
  }
}

TEST_F(Interrupted, Refusals) {
  const TemporaryDirectory scratch;
  const fs::path out = scratch.path() / "out";
  const std::string recipe = "nvfp4-experts-w4a4";
  auto code_of = [&](const std::vector<std::string>& arguments, const std::string& expected) {
    const Finished run = run_program(arguments);
    EXPECT_NE(run.text.find(expected), std::string::npos) << expected << ": " << run.text;
    return run.code;
  };
  const std::string from = source().string(), to = out.string();
  EXPECT_EQ(code_of(command(recipe, source()), "never written to"), 2);
  EXPECT_EQ(code_of(command(recipe, source() / "inside"), "never written to"), 2);
  EXPECT_EQ(code_of(command(recipe, directory_->path()), "never written to"), 2);
  EXPECT_FALSE(fs::exists(source() / "inside"));
  EXPECT_EQ(code_of({VERBATIM_PROGRAM, "convert", from}, "no OUT"), 2);
  EXPECT_EQ(code_of({VERBATIM_PROGRAM, "convert", from, to}, "--calibrate DATA.jsonl"), 2);
  EXPECT_EQ(code_of({VERBATIM_PROGRAM, "convert", from, to, "--recipe", "nvfp5"}, "nvfp4-experts-w4a4"), 2);
  EXPECT_EQ(code_of({VERBATIM_PROGRAM, "convert", from, to, "--weight-only", "--all-experts"}, "no effect"), 2);
  EXPECT_EQ(code_of({VERBATIM_PROGRAM, "convert", from, "--dry-run", "--resume"}, "writes nothing"), 2);
  EXPECT_EQ(code_of({VERBATIM_PROGRAM, "verify", from}, "conversion_manifest.json"), 1);
  EXPECT_FALSE(fs::exists(out));

  ASSERT_EQ(run_program(command(recipe, out)).code, 0);
  EXPECT_EQ(code_of(command(recipe, out), "is not empty"), 2);
  EXPECT_EQ(code_of(resumed(command(recipe, out)), "finished already"), 0);
  EXPECT_EQ(code_of({VERBATIM_PROGRAM, "convert", to, to + "2", "--weight-only"}, "unquantised source"), 1);

  // Begun with one recipe, gone on with another.
  const fs::path begun = scratch.path() / "begun";
  EXPECT_EQ(run_program(command(recipe, begun), -1,
                        {std::string("LD_PRELOAD=") + VERBATIM_FAULTY_IO, "VERBATIM_FAULT=fsync,5,10",
                         "ASAN_OPTIONS=verify_asan_link_order=0"})
                .code,
            1);
  EXPECT_EQ(code_of(resumed(command("own-shards", begun)), "begun with another"), 2);
  EXPECT_EQ(code_of({VERBATIM_PROGRAM, "verify", begun.string()}, "convert again with --resume"), 1);
}

TEST_F(Interrupted, VerifyNamesWhatIsWrong) {
  const TemporaryDirectory scratch;
  const fs::path out = scratch.path() / "out";
  ASSERT_EQ(run_program(command("nvfp4-experts-w4a4", out)).code, 0);
  const std::vector<std::string> verify = {VERBATIM_PROGRAM, "verify", out.string()};
  EXPECT_EQ(run_program(verify).code, 0);
  auto spoilt = [&](const std::string& tensor, const std::string& value, const std::string& expected) {
    const auto stored = checkpoint::Checkpoint::open(out);
    const auto* view = stored.find(tensor);
    ASSERT_NE(view, nullptr) << tensor;
    const fs::path file = stored.file_of(view->raw);
    const std::string before = checkpoint::read_bytes(file);
    std::string bytes = before;
    bytes.replace(stored.file_offset(*view), value.size(), value);
    checkpoint::write_bytes(file, bytes);
    const Finished run = run_program(verify);
    EXPECT_EQ(run.code, 1);
    EXPECT_NE(run.text.find(expected), std::string::npos) << run.text;
    EXPECT_NE(run.text.find(file.filename().string() + ": SHA-256"), std::string::npos) << run.text;
    checkpoint::write_bytes(file, before);
  };
  const std::string matrix = "model.language_model.layers.5.mlp.experts.3.up_proj";
  spoilt(matrix + ".weight", "x", "SHA-256");
  spoilt(matrix + ".weight_scale", std::string(1, '\0'), ".weight_scale: block 0 is e4m3 0x00");
  spoilt(matrix + ".weight_scale", "\x7f", "block 0 is e4m3 0x7f");
  spoilt(matrix + ".weight_scale", "\x90", "block 0 is e4m3 0x90");
  spoilt(matrix + ".weight_scale_2", checkpoint::f32(-1), ".weight_scale_2: -1");
  spoilt(matrix + ".input_scale", checkpoint::f32(0), ".input_scale: 0");
  spoilt(matrix + ".input_scale", checkpoint::f32(1.0f / 0.0f), ".input_scale: inf");
  fs::copy(out / "activation-scales.safetensors", out / "more.safetensors");
  EXPECT_NE(run_program(verify).text.find("more.safetensors: the manifest does not list it"), std::string::npos);
  fs::remove(out / "more.safetensors");
  fs::remove(out / "generation_config.json");
  EXPECT_NE(run_program(verify).text.find("generation_config.json: not there"), std::string::npos);
}

}  // namespace
}  // namespace verbatim::quantize
