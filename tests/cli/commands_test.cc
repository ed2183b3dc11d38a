// The commands as scripts use them: exit codes, JSON keys, and files that are refused.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/safetensors.h"
#include "tests/checkpoint/test_files.h"

namespace verbatim::cli {
namespace {

using checkpoint::TemporaryDirectory;
using nlohmann::json;

struct Output {
  int code = -1;
  std::string text;  // stdout and stderr
};

Output run(const std::string& arguments) {
  FILE* pipe = ::popen((std::string(VERBATIM_PROGRAM) + " " + arguments + " 2>&1").c_str(), "r");
  Output output;
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) output.text.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

json parsed(const Output& output) {
  EXPECT_EQ(output.code, 0) << output.text;
  return json::parse(output.text, nullptr, false);
}

const std::string kTiny = std::string(VERBATIM_TINY) + "/";
const std::string kInventory = std::string(VERBATIM_FIXTURES) + "/headers/nvfp4.json.gz --config " + VERBATIM_FIXTURES +
                               "/configs/nvfp4/config.json";

TEST(Commands, ExitCodes) {
  EXPECT_EQ(run("version").code, 0);
  EXPECT_EQ(run("--help").code, 0);
  EXPECT_EQ(run("").code, 2);
  EXPECT_EQ(run("nonsense").code, 2);
  EXPECT_EQ(run("inspect").code, 2);
  EXPECT_EQ(run("inspect " + kTiny + "tiny-bf16 --nonsense").code, 2);
  EXPECT_EQ(run("synth /proc/none/out --form fp5").code, 2);
  EXPECT_EQ(run("plan " + kInventory + " --memory much").code, 2);
  EXPECT_EQ(run("inspect " + kTiny + "tiny-bf16 --config x.json").code, 2);  // an option without effect
  EXPECT_EQ(run("generate " + kTiny + "tiny-bf16").code, 2);
  EXPECT_EQ(run("generate " + kTiny + "tiny-bf16 --ids 512").code, 2);
  EXPECT_EQ(run("generate " + kTiny + "tiny-bf16 --ids 1 --temperature -1").code, 2);
  EXPECT_EQ(run("inspect /nonexistent").code, 1);
  EXPECT_EQ(run("plan " + kInventory + " --ranks 3").code, 1);
  EXPECT_EQ(run("generate " + kTiny + "tiny-bf16 --ids 1 --precision checkpoint").code, 1);
  EXPECT_EQ(run("generate " + kTiny + "tiny-bf16 --prompt hello").code, 1);  // it has no tokenizer.json
}

TEST(Commands, InspectPrintsWhatScriptsRead) {
  const json tiny = parsed(run("inspect --json " + kTiny + "tiny-nvfp4"));
  EXPECT_EQ(tiny["tensors"], 1318);
  EXPECT_EQ(tiny["payload_bytes"], 5464904);
  EXPECT_EQ(tiny["form"], "nvfp4");
  EXPECT_EQ(tiny["problems"], json::array());
  const json released = parsed(run("inspect --json " + kInventory));
  EXPECT_EQ(released["tensors"], 147661);
  EXPECT_EQ(released["payload_bytes"], 204419110596);
  EXPECT_EQ(released["groups"]["next_n_experts"]["tensors"], 864);
  EXPECT_EQ(released["groups"]["next_n_experts"]["bytes"], 14495514624);
}

TEST(Commands, InspectNamesProblemsAndFails) {
  const TemporaryDirectory directory;
  std::filesystem::copy(kTiny + "tiny-bf16", directory.path(), std::filesystem::copy_options::recursive);
  json config = json::parse(checkpoint::read_bytes(directory.path() / "config.json"));
  config["text_config"]["n_routed_experts"] = 17;
  checkpoint::write_bytes(directory.path() / "config.json", config.dump());
  const Output output = run("inspect " + directory.path().string());
  EXPECT_EQ(output.code, 1);
  EXPECT_NE(output.text.find("experts.16.gate_proj"), std::string::npos) << output.text;
}

TEST(Commands, PlanPrintsWhatScriptsRead) {
  const json plan = parsed(run("plan --json --ranks 2 --context 300000 --memory 119GiB " + kInventory));
  ASSERT_EQ(plan["ranks"].size(), 2u);
  const json& rank = plan["ranks"][0];
  int64_t sum = 0;
  for (const auto& [group, bytes] : rank["groups"].items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(rank["weights_bytes"], sum);
  EXPECT_NEAR(rank["groups"]["routed_experts"].get<double>() / 0x1p30, 79.735, 0.0005);
  EXPECT_EQ(plan["token_bytes"], 12 * (512 + 32) * 2);
  EXPECT_GT(plan["sequence_bytes"], 136 * 0x100000);
  EXPECT_EQ(plan["fits"], true);
  EXPECT_EQ(parsed(run("plan --json --ranks 2 --memory 80GiB " + kInventory))["fits"], false);
}

TEST(Commands, SynthInspectGenerate) {
  const TemporaryDirectory directory;
  const std::string out = (directory.path() / "out").string();
  EXPECT_EQ(run("synth " + out + " --form w4a4-experts --layers 5 --experts 4 --seed 3").code, 0);
  EXPECT_EQ(run("synth " + out).code, 2);  // it holds a checkpoint
  EXPECT_EQ(parsed(run("inspect --json " + out))["form"], "w4a4-experts");
  const std::string logits = (directory.path() / "logits.safetensors").string();
  const json first = parsed(run("generate " + out + " --json --ids 5,6,7 --tokens 9 --ignore-eos --logits " + logits +
                                " --threads 1 --chunk 1 --isa plain"));
  const json second = parsed(run("generate " + out + " --json --ids 5,6,7 --tokens 9 --ignore-eos --threads 2"));
  EXPECT_EQ(first["prompt_ids"], json({5, 6, 7}));
  EXPECT_EQ(first["ids"].size(), 9u);
  EXPECT_EQ(first["ids"], second["ids"]);
  EXPECT_EQ(first["hash"], second["hash"]);
  const checkpoint::SafetensorsFile file(logits);
  EXPECT_EQ(file.at("ids").shape, (checkpoint::Shape{12}));  // every position fed, prompt and generated
  EXPECT_EQ(file.at("logits").shape, (checkpoint::Shape{12, 512}));
  EXPECT_EQ(parsed(run("generate " + out + " --json --ids 5,6,7 --tokens 0"))["ids"], json::array());
  // Sampled: the seed that was drawn asks for the same reply again, drafted or not.
  const std::string sampled =
      "generate " + out + " --json --ids 5,6,7 --tokens 20 --ignore-eos --temperature 1 --top-p 0.9";
  const json drawn = parsed(run(sampled));
  const json again = parsed(run(sampled + " --drafts 5 --next-n-experts packed --seed " + drawn["seed"].dump()));
  EXPECT_EQ(again["ids"], drawn["ids"]);
  EXPECT_GT(again["drafted_tokens"], 0);
  EXPECT_NE(parsed(run(sampled + " --seed 5"))["ids"], parsed(run(sampled + " --seed 6"))["ids"]);
}

TEST(Commands, Bench) {
  const json bench =
      parsed(run("bench " + kTiny + "tiny-nvfp4 --json --sequences 1,2 --prompt 8 --tokens 4 --repeats 1 --drafts 2"));
  EXPECT_GT(bench["bandwidth_bytes_per_s"], 0);
  ASSERT_EQ(bench["rows"].size(), 2u);
  EXPECT_EQ(bench["rows"][1]["sequences"], 2);
  EXPECT_GT(bench["rows"][1]["decode_tokens_per_s"], 0);
}

TEST(Commands, BenchOfASyntheticModel) {
  const std::string base = "bench --synthetic tiny --layers 4 --experts 8 --tokens 2 --repeats 1 --json ";
  const json bench = parsed(run(base + "--context 128 --sequences 1,3 --prompt-rows 70,20 --prompt-position 64"));
  EXPECT_EQ(bench["layers"], 4);
  ASSERT_EQ(bench["rows"].size(), 2u);
  const json& three = bench["rows"][1];
  EXPECT_EQ(three["sequences"], 3);
  EXPECT_GT(three["step_us"], 0);
  // Four of eight experts a token.
  EXPECT_EQ(bench["rows"][0]["distinct_experts_per_layer"], 4);
  int64_t bytes = 0;
  for (const json& each : three["operators"]) bytes += each["bytes"].get<int64_t>();
  EXPECT_EQ(bytes, three["bytes_per_step"]);
  EXPECT_GT(bytes, 0);
  ASSERT_EQ(bench["prompts"].size(), 2u);
  const json& prompt = bench["prompts"][0];
  EXPECT_EQ(prompt["rows"], 70);
  EXPECT_EQ(prompt["position"], 64);
  EXPECT_GT(prompt["tokens_per_s"], 0);
  int64_t flops = 0;
  for (const json& each : prompt["operators"]) {
    EXPECT_GT(each["us"], 0);
    flops += each["flops"].get<int64_t>();
  }
  EXPECT_EQ(flops, prompt["flops"]);
  // Products of the first layer alone: 64 x 64 weights a row at the least.
  EXPECT_GT(flops, 70 * 2 * 64 * 64);
  EXPECT_TRUE(parsed(run(base + "--prompts-alone --prompt-rows 20"))["rows"].empty());

  EXPECT_EQ(run("bench").code, 2);
  EXPECT_EQ(run("bench " + kTiny + "tiny-nvfp4 --layers 4").code, 2);  // options of synthetic models alone
  EXPECT_EQ(run("bench " + kTiny + "tiny-nvfp4 --sequences 0").code, 2);
  EXPECT_EQ(run(base + "--context 65").code, 2);  // no state can stand there
  EXPECT_EQ(run(base + "--prompts-alone").code, 2);
  EXPECT_EQ(run(base + "--prompt-rows 8 --prompt-position 65").code, 2);
}

TEST(Commands, BenchOfLoading) {
  const std::string tiny = kTiny + "tiny-nvfp4";
  const json bench = parsed(run("bench " + tiny + " --load --repeats 2 --threads 2 --json"));
  uint64_t file_bytes = 0, files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(tiny))
    if (entry.path().extension() == ".safetensors") {
      file_bytes += entry.file_size();
      ++files;
    }
  EXPECT_EQ(bench["threads"], 2);
  EXPECT_EQ(bench["files"], files);
  EXPECT_EQ(bench["file_bytes"], file_bytes);
  EXPECT_EQ(bench["payload_bytes"], 5464904);
  const json &plain = bench["plain_read"], &load = bench["load"];
  EXPECT_EQ(plain["bytes"], file_bytes);
  for (const json& each : {plain, load}) {
    EXPECT_GT(each["seconds"], 0);
    EXPECT_GE(each["slowest_seconds"], each["seconds"]);
    EXPECT_LE(each["slowest_bytes_per_s"], each["bytes_per_s"]);
    EXPECT_GE(each["cached_before"], 0);
    EXPECT_LE(each["cached_before"], 1);
  }
  EXPECT_GT(plain["slowest_bytes_per_s"], 0);
  // The CPU computes on the mapped files. What a load brings into memory of them depends on what the system dropped.
  EXPECT_EQ(load["copies"], false);
  EXPECT_LE(load["bytes"], file_bytes);
  EXPECT_EQ(bench["host_weight_bytes"], 5464904);
  EXPECT_GE(bench["load_beside_plain_read"], 0);
  EXPECT_GT(bench["peak_host_bytes"], 1 << 20);
  EXPECT_LT(bench["peak_host_bytes"], 1 << 30);
  EXPECT_NE(run("bench " + tiny + " --load --repeats 1").text.find("of the plain read's rate"), std::string::npos);
}

TEST(Commands, BenchOfLoadingRefuses) {
  const TemporaryDirectory empty;
  const Output none = run("bench " + empty.path().string() + " --load");
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.text.find("no checkpoint: none of model.safetensors.index.json"), std::string::npos) << none.text;
  EXPECT_EQ(run("bench --load").code, 2);
  EXPECT_EQ(run("bench --load --synthetic tiny").code, 2);
  const std::string tiny = "bench " + kTiny + "tiny-nvfp4 ";
  EXPECT_EQ(run(tiny + "--load --tokens 4").code, 2);  // options without effect
  const Output backend = run(tiny + "--backend cpu");
  EXPECT_EQ(backend.code, 2);
  EXPECT_NE(backend.text.find("is for --synthetic and --load"), std::string::npos) << backend.text;
}

}  // namespace
}  // namespace verbatim::cli
