// The commands of conversion as scripts use them.
#include <nlohmann/json.hpp>

#include "tests/quantize/conversion_files.h"

namespace verbatim::quantize {
namespace {

namespace fs = std::filesystem;
using checkpoint::TemporaryDirectory;
using nlohmann::json;

const std::string kProgram = VERBATIM_PROGRAM, kTiny = std::string(VERBATIM_TINY) + "/tiny-bf16",
                  kInventory = std::string(VERBATIM_FIXTURES) + "/headers/bf16.json.gz",
                  kConfig = std::string(VERBATIM_FIXTURES) + "/configs/bf16/config.json";

json parsed(const std::vector<std::string>& arguments) {
  const Finished run = run_program(arguments);
  EXPECT_EQ(run.code, 0) << run.text;
  return json::parse(run.text, nullptr, false);
}

TEST(ConvertCommands, DryRunAtTheReleasedSize) {
  const json plan = parsed({kProgram, "convert", kInventory, "--config", kConfig, "--dry-run", "--json"});
  EXPECT_EQ(plan["tensors"], 147634);
  EXPECT_EQ(plan["payload_bytes"], 205063596408);
  EXPECT_EQ(plan["source_bytes"], 642646653816);
  EXPECT_EQ(plan["matrices"], 36288);
  EXPECT_EQ(plan["groups"]["routed_experts"]["tensors"], 4 * 36288);
  EXPECT_EQ(plan["groups"]["next_n_experts"]["bytes"], 14495514624);
  EXPECT_FALSE(plan.contains("shards"));  // an inventory has none
  const json dense = parsed({kProgram, "convert", kInventory, "--config", kConfig, "--dry-run", "--json", "--recipe",
                             "nvfp4-experts-and-dense-mlp"});
  EXPECT_EQ(dense["tensors"], 147661);
  EXPECT_EQ(dense["shards"], 32);
  EXPECT_EQ(dense["scale_shards"], 0);
  EXPECT_EQ(
      parsed({kProgram, "convert", kInventory, "--config", kConfig, "--dry-run", "--json", "--weight-only"})["tensors"],
      147634 - 36288);
  EXPECT_EQ(run_program({kProgram, "convert", kInventory, "/tmp/x", "--config", kConfig, "--weight-only"}).code, 2);
}

// The source's shards become as many and one of activation scales: 120 and one for the released source.
TEST(ConvertCommands, ShardsAreTheSourcesAndOneOfScales) {
  const TemporaryDirectory scratch;
  const std::string source = (scratch.path() / "source").string(), out = (scratch.path() / "out").string();
  ASSERT_EQ(run_program({kProgram, "synth", source, "--form", "bf16", "--experts", "32", "--layers", "5",
                         "--shard-size", "600KB"})
                .code,
            0);
  checkpoint::write_bytes(scratch.path() / "prompts.jsonl", "{\"ids\": [1, 2, 3, 4, 5]}\n");
  const json plan = parsed({kProgram, "convert", source, "--dry-run", "--json"});
  ASSERT_EQ(run_program({kProgram, "convert", source, out, "--calibrate", (scratch.path() / "prompts.jsonl").string(),
                         "--all-experts"})
                .code,
            0);
  const auto made = checkpoint::Checkpoint::open(out), from = checkpoint::Checkpoint::open(source);
  EXPECT_GT(from.shard_count(), 10u);
  EXPECT_EQ(plan["shards"], from.shard_count());
  EXPECT_EQ(made.shard_count(), from.shard_count() + 1);
  EXPECT_EQ(made.raw_count(), plan["tensors"]);
  EXPECT_EQ(made.payload_bytes(), plan["payload_bytes"]);
  for (const auto& tensor : from.tensors())  // each tensor stands in the shard of the same number
    EXPECT_EQ(made.file_of(made.find(tensor.name)->raw).filename(), from.file_of(tensor.raw).filename()) << tensor.name;
  for (const char* precision : {"full", "checkpoint"})
    EXPECT_EQ(parsed({kProgram, "generate", out, "--ids", "5,6,7", "--tokens", "5", "--ignore-eos", "--json",
                      "--precision", precision})["ids"]
                  .size(),
              5u);
  EXPECT_EQ(parsed({kProgram, "verify", out, "--json"})["problems"], json::array());
  EXPECT_EQ(parsed({kProgram, "inspect", out, "--json"})["form"], "w4a4-experts");
}

TEST(ConvertCommands, CalibrationRunMergeInspect) {
  const TemporaryDirectory scratch;
  auto path = [&](const char* name) { return (scratch.path() / name).string(); };
  checkpoint::write_bytes(path("one.jsonl"), "{\"ids\": [1, 2, 3]}\n\n{\"ids\": [9, 8, 7, 6]}\n");
  checkpoint::write_bytes(path("two.jsonl"), "{\"ids\": [400, 41, 42, 43, 44]}\n");
  auto run = [&](const char* prompts, const char* out, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {kProgram, "calibration", "run", kTiny, path(out), "--prompts", path(prompts)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  };
  ASSERT_EQ(run("one.jsonl", "one.safetensors").code, 0);
  ASSERT_EQ(run("two.jsonl", "two.safetensors").code, 0);
  EXPECT_EQ(run("two.jsonl", "two.safetensors").code, 2);  // it is there
  ASSERT_EQ(run_program({kProgram, "calibration", "merge", path("sum.safetensors"), path("one.safetensors"),
                         path("two.safetensors")})
                .code,
            0);
  EXPECT_EQ(run_program({kProgram, "calibration", "merge", path("twice.safetensors"), path("one.safetensors"),
                         path("one.safetensors")})
                .code,
            2);
  const json sum = parsed({kProgram, "calibration", "inspect", path("sum.safetensors"), "--json"});
  EXPECT_EQ(sum["tokens"], 12);
  EXPECT_EQ(sum["sequences"], 3);
  EXPECT_EQ(sum["sites"].size(), 26u);
  EXPECT_NE(run_program({kProgram, "calibration", "inspect", path("sum.safetensors")})
                .text.find("12 tokens of 3 prompts in 2 runs"),
            std::string::npos);
  ASSERT_EQ(run("one.jsonl", "cut.safetensors", {"--token-budget", "5"}).code, 0);
  EXPECT_EQ(parsed({kProgram, "calibration", "inspect", path("cut.safetensors"), "--json"})["tokens"], 5);
  // Of another model.
  ASSERT_EQ(run_program({kProgram, "synth", path("other"), "--form", "bf16", "--experts", "4", "--layers", "5"}).code,
            0);
  const Finished other =
      run_program({kProgram, "convert", path("other"), path("out"), "--calibration", path("sum.safetensors")});
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.text.find("is of the model"), std::string::npos) << other.text;
}

TEST(ConvertCommands, Prompts) {
  const TemporaryDirectory scratch;
  auto path = [&](const char* name) { return (scratch.path() / name).string(); };
  fs::copy(kTiny, path("model"));
  fs::copy(std::string(VERBATIM_FIXTURES) + "/text/tokenizer.json", path("model") + "/tokenizer.json");
  checkpoint::write_bytes(
      path("model") + "/chat_template.jinja",
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}H{% endif %}");
  int number = 0;
  auto run_of = [&](const std::string& lines) {
    checkpoint::write_bytes(path("p.jsonl"), lines);
    return run_program({kProgram, "calibration", "run", path("model"), path(std::to_string(number++).c_str()),
                        "--prompts", path("p.jsonl")});
  };
  auto hash_of = [&](const std::string& lines) {
    const Finished run = run_of(lines);
    EXPECT_EQ(run.code, 0) << run.text;
    return parsed({kProgram, "calibration", "inspect", path(std::to_string(number - 1).c_str()), "--json"})["runs"];
  };
  if (run_of("{\"text\": \"Hi\"}").text.find("this build has no tokenizer") != std::string::npos)
    GTEST_SKIP() << "built without the text library";
  const json ids = hash_of("{\"ids\": [39, 72]}");
  EXPECT_EQ(hash_of("{\"text\": \"Hi\"}"), ids);
  EXPECT_EQ(hash_of(R"({"messages": [{"role": "user", "content": "H"}, {"role": "assistant", "content": "i"}]})"), ids);
  EXPECT_EQ(hash_of(R"({"messages": [{"role": "user", "content": "Hi"}]})"), hash_of("{\"ids\": [39, 72, 39]}"));
  for (const char* wrong : {"", "{", "[]", "{\"text\": 1}", "{\"ids\": [512]}", "{\"ids\": [-1]}", "{\"ids\": 3}", "{}",
                            "{\"ids\": [1], \"text\": \"a\"}"})
    EXPECT_NE(run_of(wrong).code, 0) << wrong;
  EXPECT_NE(run_of("{\"ids\": [1]}\n{\"ids\": [600]}\n").text.find("p.jsonl:2] token id 600; expected 0 to 511"),
            std::string::npos);
}

}  // namespace
}  // namespace verbatim::quantize
