#include "quantize/converter.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/process_memory.h"
#include "model/synth.h"
#include "quantize/calibrate.h"
#include "quantize/conversion_plan.h"
#include "quantize/manifest.h"
#include "quantize/metadata.h"
#include "quantize/nvfp4.h"
#include "quantize/verify.h"
#include "tests/model/tiny_models.h"
#include "tests/quantize/conversion_files.h"

namespace verbatim::quantize {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::DType;
using checkpoint::refusal_of;
using checkpoint::TemporaryDirectory;
using nlohmann::json;

const std::string kFixtures = VERBATIM_FIXTURES;

struct Tiny {
  Checkpoint source = Checkpoint::open(model::tiny("tiny-bf16"));
  model::Config config = model::parse_config(source.config_text(), "tiny-bf16");
};

// Each expert's largest activations follow from its number.
Calibration made_up(const model::Config& config) {
  Calibration calibration = empty_calibration(config);
  for (auto& [key, record] : calibration.sites)
    for (int64_t e = 0; e < record.experts(); ++e)
      record.add(e, std::vector<float>{2.0f + 0.125f * static_cast<float>(e + key.layer), -0.5f});
  calibration.runs = {"made up"};
  return calibration;
}

void convert_tiny(const Recipe& recipe, const fs::path& out, int threads = 2, uint64_t batch_bytes = 128 << 20,
                  const fs::path& from = model::tiny("tiny-bf16")) {
  const Checkpoint source = Checkpoint::open(from);
  const model::Config config = model::parse_config(source.config_text(), from.string());
  const Calibration calibration = made_up(config);
  ThreadPool pool(threads);
  ASSERT_TRUE(prepare_output(source, out, false));
  convert(source, config, recipe, &calibration,
          {.out = out, .resume = false, .tool_version = "test", .batch_bytes = batch_bytes}, pool);
}

// weight, weight_scale and weight_scale_2 of every matrix that `reference` stores quantised have its bits in `made`;
// what neither quantises has the source's, dtype included.
void expect_weights_of(const fs::path& made_at, const char* reference_name, size_t matrices) {
  const Tiny tiny;
  const Checkpoint made = Checkpoint::open(made_at), reference = Checkpoint::open(model::tiny(reference_name));
  auto bytes = [](const Checkpoint& stored, std::string_view name) {
    const auto* view = stored.find(name);
    if (view == nullptr) return std::string("(none)");
    const auto data = stored.data(*view);
    return std::string(reinterpret_cast<const char*>(data.data()), data.size());
  };
  std::set<std::string> quantised;
  for (const auto& view : reference.tensors())
    for (const char* part : {".weight_scale", ".weight_scale_2"})
      if (view.name.ends_with(part)) {
        const std::string module(view.name.substr(0, view.name.size() - std::strlen(part)));
        quantised.insert(module);
        EXPECT_EQ(bytes(made, view.name), bytes(reference, view.name)) << view.name;
        EXPECT_EQ(bytes(made, module + ".weight"), bytes(reference, module + ".weight")) << module;
      }
  EXPECT_EQ(quantised.size(), matrices);
  size_t copied = 0;
  for (const auto& view : tiny.source.tensors()) {
    if (view.name.ends_with(".weight") && quantised.contains(std::string(view.name.substr(0, view.name.size() - 7))))
      continue;
    ASSERT_NE(made.find(view.name), nullptr) << view.name;
    EXPECT_EQ(made.find(view.name)->dtype, view.dtype) << view.name;  // float32 stays float32
    EXPECT_EQ(made.find(view.name)->shape, view.shape) << view.name;
    EXPECT_EQ(bytes(made, view.name), bytes(tiny.source, view.name)) << view.name;
    ++copied;
  }
  EXPECT_EQ(copied + 4 * matrices, made.tensors().size());
}

TEST(Convert, ReproducesTheTinyCheckpoints) {
  const TemporaryDirectory scratch;
  convert_tiny(find_recipe("nvfp4-experts-and-dense-mlp"), scratch.path() / "nvfp4");
  expect_weights_of(scratch.path() / "nvfp4", "tiny-nvfp4", 5 * 16 * 3 + 3 * 3);
  convert_tiny(find_recipe("nvfp4-experts-w4a4"), scratch.path() / "w4a4");
  expect_weights_of(scratch.path() / "w4a4", "tiny-w4a4-experts", 5 * 16 * 3);
}

// The same keys at the same places, values aside; lists and maps by layer are compared by their first member.
json structure_of(const json& value) {
  if (value.is_object()) {
    json out = json::object();
    for (const auto& [key, member] : value.items()) {
      if (key.starts_with("model.")) {
        out["model..."] = structure_of(member);
        continue;
      }
      out[key] = structure_of(member);
    }
    return out;
  }
  if (value.is_array()) return value.empty() ? json::array() : json::array({structure_of(value[0])});
  return value.type_name();
}

TEST(Convert, MetadataHasTheReleasedStructure) {
  const struct {
    const char *recipe, *released, *form;
  } kCases[] = {{"nvfp4-experts-w4a4", "w4a4_experts", "w4a4-experts"},
                {"nvfp4-experts-and-dense-mlp", "nvfp4", "nvfp4"}};
  for (const auto& [recipe, released, form] : kCases) {
    const TemporaryDirectory scratch;
    convert_tiny(find_recipe(recipe), scratch.path() / "out");
    const auto parse = [](const fs::path& path) { return json::parse(checkpoint::read_bytes(path)); };
    const fs::path theirs = fs::path(kFixtures) / "configs" / released, ours = scratch.path() / "out";
    EXPECT_EQ(structure_of(parse(ours / "config.json")["quantization_config"]),
              structure_of(parse(theirs / "config.json")["quantization_config"]));
    EXPECT_EQ(structure_of(parse(ours / "hf_quant_config.json")), structure_of(parse(theirs / "hf_quant_config.json")));
    // The rest of config.json is the source's.
    json config = parse(ours / "config.json");
    config.erase("quantization_config");
    EXPECT_EQ(config, parse(model::tiny("tiny-bf16") / "config.json"));
    const Checkpoint stored = Checkpoint::open(ours);
    EXPECT_EQ(stored.notes(), std::vector<std::string>());  // what is stored is what the metadata says
    const model::Census census = model::take_census(stored, model::parse_config(stored.config_text(), released));
    EXPECT_EQ(census.problems, std::vector<std::string>());
    EXPECT_EQ(census.form, form);
  }
}

// At the released size, from headers: the released metadata itself.
TEST(Convert, ReleasedMetadataIsTheReleasedOne) {
  const auto inventory = [&](const std::string& form) {
    return Checkpoint::from_inventory(kFixtures + "/headers/" + form + ".json.gz",
                                      kFixtures + "/configs/" + form + "/config.json");
  };
  const Checkpoint source = inventory("bf16");
  const model::Config config = model::parse_config(source.config_text(), "bf16");
  const Recipe recipe = find_recipe("nvfp4-experts-w4a4");
  const ConversionPlan plan = plan_conversion(source, config, recipe, true);
  EXPECT_EQ(plan.tensors, 147634u);
  EXPECT_EQ(plan.payload_bytes, 205063596408u);
  EXPECT_EQ(plan.matrices, 36288u);
  EXPECT_EQ(plan.scale_items.size(), 36288u);

  // Tensor by tensor, as released.
  const Checkpoint released = inventory("w4a4_experts");
  std::set<std::string> made;
  auto same = [&](const std::string& name, DType dtype, const checkpoint::Shape& shape) {
    const auto* view = released.find(name);
    return view != nullptr && view->dtype == dtype && view->shape == shape && made.insert(name).second;
  };
  for (const ConversionItem& item : plan.items)
    for (const auto& spec : item.specs) ASSERT_TRUE(same(spec.name, spec.dtype, spec.shape)) << spec.name;
  for (const size_t i : plan.scale_items) ASSERT_TRUE(same(plan.items[i].module + ".input_scale", DType::kF32, {}));
  EXPECT_EQ(made.size(), released.tensors().size());

  const MetadataTexts texts = make_metadata(recipe, true, config, source.config_text(), "bf16");
  const auto parse = [&](const char* name) {
    return json::parse(checkpoint::read_bytes(kFixtures + "/configs/w4a4_experts/" + name));
  };
  EXPECT_EQ(json::parse(texts.config)["quantization_config"], parse("config.json")["quantization_config"]);
  EXPECT_EQ(json::parse(texts.hf_quant_config), parse("hf_quant_config.json"));

  // NVIDIA's release keeps the taps in float32 and the hyper-connections in BF16; here the source's dtypes stay.
  const ConversionPlan nvidia = plan_conversion(source, config, find_recipe("nvfp4-experts-and-dense-mlp"), true);
  EXPECT_EQ(nvidia.tensors, 147661u);
  EXPECT_EQ(nvidia.payload_bytes, 204419110596u - 34 * 3 * 8192 * 4 * 2 + 45 * 2 * 27 * 2);
}

// Batches, threads: the same bytes. Shards cut elsewhere: the same tensors.
TEST(Convert, BatchesAndThreadsChangeNothing) {
  const TemporaryDirectory scratch;
  const Recipe recipe = find_recipe("nvfp4-experts-and-dense-mlp");
  convert_tiny(recipe, scratch.path() / "whole", 2);
  const auto reference = contents_of(scratch.path() / "whole");
  int number = 0;
  for (const uint64_t batch_bytes : {20000u, 150000u})
    for (const int threads : {1, 3}) {
      const fs::path out = scratch.path() / std::to_string(number++);
      convert_tiny(recipe, out, threads, batch_bytes);
      EXPECT_EQ(first_difference(contents_of(out), reference), "") << batch_bytes << " " << threads;
    }
  json own = json::parse(recipe.text);
  own["shards"] = 300000;
  convert_tiny(parse_recipe(own.dump(), "own"), scratch.path() / "cut", 2, 70000);
  const Checkpoint cut = Checkpoint::open(scratch.path() / "cut"), whole = Checkpoint::open(scratch.path() / "whole");
  EXPECT_GT(cut.shard_count(), 15u);
  ASSERT_EQ(cut.tensors().size(), whole.tensors().size());
  for (size_t i = 0; i < cut.tensors().size(); ++i) {
    const auto a = cut.data(cut.tensors()[i]), b = whole.data(whole.tensors()[i]);
    EXPECT_TRUE(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0) << cut.tensors()[i].name;
  }
}

TEST(Convert, ManifestSaysWhatWasDone) {
  const TemporaryDirectory scratch;
  const fs::path out = scratch.path() / "out";
  convert_tiny(find_recipe("nvfp4-experts-w4a4"), out);
  const json manifest = json::parse(checkpoint::read_bytes(out / kManifestName));
  EXPECT_EQ(manifest["recipe"], json::parse(find_recipe("nvfp4-experts-w4a4").text));
  EXPECT_EQ(manifest["tool"]["version"], "test");
  EXPECT_EQ(manifest["source"]["files"]["model.safetensors"]["sha256"],
            hash_file(model::tiny("tiny-bf16") / "model.safetensors").sha256);
  std::set<std::string> listed;
  for (const auto& [name, record] : manifest["files"].items()) {
    const FileRecord found = hash_file(out / name);
    EXPECT_EQ(record["sha256"], found.sha256) << name;
    EXPECT_EQ(record["bytes"], found.bytes) << name;
    listed.insert(name);
  }
  for (const auto& [name, bytes] : contents_of(out))
    EXPECT_TRUE(listed.contains(name) || name == kManifestName) << name;
  EXPECT_EQ(manifest["tensors"], Checkpoint::open(out).tensors().size());
  EXPECT_EQ(manifest["payload_bytes"], Checkpoint::open(out).payload_bytes());

  // Errors, matrix by matrix, in float64.
  const Tiny tiny;
  const Checkpoint made = Checkpoint::open(out);
  double error = 0, weight = 0, worst = 0;
  std::string worst_name;
  for (const auto& view : made.tensors()) {
    if (!view.name.ends_with(".weight_scale_2")) continue;
    const std::string module(view.name.substr(0, view.name.size() - 15));
    const auto shape = tiny.source.find(module + ".weight")->shape;
    std::vector<float> before(static_cast<size_t>(shape.elements())), after(before.size());
    for (const auto& [stored, values] : {std::pair{&tiny.source, &before}, std::pair{&made, &after}})
      checkpoint::dequantise(*stored, checkpoint::resolve_matrix(*stored, module, shape[0], shape[1]), *values);
    double e = 0, w = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      const double d = static_cast<double>(before[i]) - static_cast<double>(after[i]);
      e += d * d;
      w += static_cast<double>(before[i]) * static_cast<double>(before[i]);
    }
    if (std::sqrt(e / w) > worst) worst = std::sqrt(e / w), worst_name = module;
    error += e;
    weight += w;
  }
  const json& group = manifest["errors"]["routed_experts"];
  EXPECT_EQ(group["matrices"], 240);
  EXPECT_NEAR(group["relative_error"].get<double>() / std::sqrt(error / weight), 1, 1e-5);
  EXPECT_EQ(group["worst"][0]["matrix"], worst_name);
  EXPECT_NEAR(group["worst"][0]["relative_error"].get<double>() / worst, 1, 1e-5);
  EXPECT_EQ(group["worst"].size(), 10u);

  // One value a layer and site, in the manifest as in the shard of scales.
  EXPECT_EQ(manifest["activation_scales"].size(), 10u);
  for (const json& site : manifest["activation_scales"]) {
    const bool down = site["site"] == "w2";
    for (int e = 0; e < 16; ++e)
      for (const std::string projection : {"gate_proj", "up_proj", "down_proj"}) {
        if ((projection == "down_proj") != down) continue;
        const auto* view = made.find(site["container"].get<std::string>() + "." + std::to_string(e) + "." + projection +
                                     ".input_scale");
        ASSERT_NE(view, nullptr);
        EXPECT_EQ(made.file_of(view->raw).filename(), "activation-scales.safetensors");
        float stored = 0;
        std::memcpy(&stored, made.data(*view).data(), 4);
        EXPECT_EQ(stored, site["input_scale"].get<float>());
      }
    EXPECT_EQ(site["percentile"], down ? 98 : 99);  // layers 3 to 7
  }
  ThreadPool pool(2);
  const Verification verified = verify_conversion(out, pool);
  EXPECT_EQ(verified.problems, std::vector<std::string>());
  EXPECT_EQ(verified.matrices, 240u);
}

TEST(Convert, RunsInBothPrecisions) {
  const TemporaryDirectory scratch;
  const auto ids = model::random_ids(40, 4);
  for (const char* recipe : {"nvfp4-experts-w4a4", "nvfp4-experts-and-dense-mlp"}) {
    const fs::path out = scratch.path() / recipe;
    convert_tiny(find_recipe(recipe), out);
    const model::Cpu cpu;
    const model::Loaded source(model::tiny("tiny-bf16")), full(out), w4a4(out, model::Precision::kCheckpoint);
    const auto before = model::prompt_logits(*cpu.ops, source.model, ids);
    for (const model::Loaded* made : {&full, &w4a4}) {
      const double error = model::relative_error(model::prompt_logits(*cpu.ops, made->model, ids), before);
      EXPECT_GT(error, 1e-3);
      EXPECT_LT(error, 1.5);  // random weights: chaotic, but not another model altogether
    }
  }
}

// Weights alone: no input_scale anywhere, and the metadata says so.
TEST(Convert, WeightOnly) {
  for (const char* name : {"nvfp4-experts-w4a4", "nvfp4-experts-and-dense-mlp"}) {
    const TemporaryDirectory scratch;
    const Tiny tiny;
    ThreadPool pool(2);
    ASSERT_TRUE(prepare_output(tiny.source, scratch.path() / "out", false));
    convert(tiny.source, tiny.config, find_recipe(name), nullptr, {.out = scratch.path() / "out", .tool_version = "t"},
            pool);
    const Checkpoint made = Checkpoint::open(scratch.path() / "out");
    for (const auto& view : made.tensors()) EXPECT_FALSE(view.name.ends_with("input_scale"));
    EXPECT_TRUE(made.quantisation().is_weight_only("model.language_model.layers.4.mlp.experts.0.up_proj"));
    EXPECT_EQ(made.notes(), std::vector<std::string>());
    EXPECT_TRUE(json::parse(checkpoint::read_bytes(scratch.path() / "out" / kManifestName))["calibration"].is_null());
    EXPECT_NO_THROW(model::Loaded(scratch.path() / "out"));
  }
}

// Memory follows the batch, not the source.
TEST(Convert, MemoryIsBounded) {
  const TemporaryDirectory scratch;
  const fs::path from = scratch.path() / "from", out = scratch.path() / "out";
  ThreadPool pool(2);
  model::synthesise(from, {.size = model::SynthSize::kTiny, .form = model::SynthForm::kBf16, .experts = 256}, pool);
  const Checkpoint source = Checkpoint::open(from);
  EXPECT_GT(source.payload_bytes(), 75u << 20);
  const model::Config config = model::parse_config(source.config_text(), "synth");
  ASSERT_TRUE(prepare_output(source, out, false));
  if (!reset_peak_resident()) GTEST_SKIP() << "no /proc/self/clear_refs";
  const uint64_t before = peak_resident_bytes();
  convert(source, config, find_recipe("nvfp4-experts-w4a4"), nullptr,
          {.out = out, .tool_version = "t", .batch_bytes = 1 << 20}, pool);
  const uint64_t grown = peak_resident_bytes() - before;
  // 3 batches of 1 MiB with their results, the reader's 8 MiB at most, 5,600 tensors in plan, index and manifest.
  EXPECT_LT(grown, 28u << 20) << grown;

  // At the released size the same sum stays far below 8 GiB.
  const Checkpoint released =
      Checkpoint::from_inventory(kFixtures + "/headers/bf16.json.gz", kFixtures + "/configs/bf16/config.json");
  for (const std::string& recipe : shipped_recipes()) {
    const ConversionPlan plan =
        plan_conversion(released, model::parse_config(released.config_text(), "bf16"), find_recipe(recipe), true);
    const uint64_t batch = std::max<uint64_t>(ConvertOptions().batch_bytes, plan.largest_matrix_source_bytes);
    EXPECT_LT(3 * (batch + batch / 2), uint64_t{1} << 30);
  }
}

// Sources stored otherwise: float32 matrices, zeros, fused tensors of transformers, misaligned data.
TEST(Convert, OtherSources) {
  const TemporaryDirectory scratch;
  const Tiny tiny;
  const fs::path from = scratch.path() / "from", out = scratch.path() / "out";
  fs::create_directories(from);
  fs::copy(model::tiny("tiny-bf16") / "config.json", from / "config.json");
  fs::copy(kFixtures + "/README.md", from / "README.md");
  checkpoint::write_bytes(from / "tokenizer.json", "{}");
  const std::string wide = "model.language_model.layers.3.mlp.experts.1.gate_proj.weight",
                    zero = "model.language_model.layers.3.mlp.experts.2.down_proj.weight",
                    experts = "model.language_model.layers.4.mlp.experts.";
  std::vector<checkpoint::TensorSpec> specs;
  std::vector<std::string> data;
  auto add = [&](const std::string& name, DType dtype, const checkpoint::Shape& shape, std::string bytes) {
    specs.push_back({name, dtype, shape});
    data.push_back(std::move(bytes));
  };
  auto raw = [&](std::string_view name) {
    const auto bytes = tiny.source.data(*tiny.source.find(name));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  std::string gate_up, down;
  for (int e = 0; e < 16; ++e) {
    const std::string prefix = experts + std::to_string(e);
    gate_up += raw(prefix + ".gate_proj.weight") + raw(prefix + ".up_proj.weight");
    down += raw(prefix + ".down_proj.weight");
  }
  for (const auto& view : tiny.source.tensors()) {
    const std::string name(view.name);
    if (name.starts_with(experts)) continue;
    if (name == wide) {
      std::vector<float> values(static_cast<size_t>(view.shape.elements()));
      checkpoint::dequantise(
          tiny.source,
          checkpoint::resolve_matrix(tiny.source, name.substr(0, name.size() - 7), view.shape[0], view.shape[1]),
          values);
      add(name, DType::kF32, view.shape, checkpoint::bytes_of(values));
    } else {
      add(name, view.dtype, view.shape, name == zero ? std::string(view.bytes, '\0') : raw(name));
    }
  }
  add(experts + "gate_up_proj", DType::kBF16, {16, 128, 128}, gate_up);
  add(experts + "down_proj", DType::kBF16, {16, 128, 64}, down);
  checkpoint::SafetensorsWriter writer(from / "model.safetensors", specs, {}, {.data_begin_modulo_8 = 4});
  for (const std::string& bytes : data) writer.append(std::as_bytes(std::span(bytes)));
  writer.finish();

  convert_tiny(find_recipe("nvfp4-experts-w4a4"), out, 2, 10000, from);
  EXPECT_TRUE(fs::exists(out / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(out / "README.md"));
  const Checkpoint made = Checkpoint::open(out), reference = Checkpoint::open(model::tiny("tiny-w4a4-experts"));
  for (const auto& view : reference.tensors()) {
    if (view.name.ends_with("input_scale")) continue;
    const auto* found = made.find(view.name);
    ASSERT_NE(found, nullptr) << view.name;
    const auto a = made.data(*found), b = reference.data(view);
    if (!view.name.starts_with(zero.substr(0, zero.size() - 7))) {
      EXPECT_TRUE(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0) << view.name;
    } else if (view.name.ends_with("_scale_2")) {
      EXPECT_EQ(std::memcmp(a.data(), checkpoint::f32(1).data(), 4), 0);  // any scale does for zeros, but 0
    } else if (view.name.ends_with("weight")) {
      for (const std::byte byte : a) EXPECT_EQ(byte, std::byte{0});
    }
  }
  ThreadPool pool(2);
  EXPECT_EQ(verify_conversion(out, pool).problems, std::vector<std::string>());
}

// scripts/oracle_converted.py: what safetensors and ModelOpt read out of the same conversions, calibrated on the same
// prompts: every name, dtype, shape and byte.
TEST(Convert, PythonReadersFindEveryTensor) {
  const auto parse = [](const char* name) {
    return json::parse(checkpoint::read_bytes(kFixtures + "/quantize/" + name));
  };
  const json vectors = parse("converted.json");
  const auto prompts = parse("calibration.json")["prompts"].get<std::vector<std::vector<int32_t>>>();
  const Tiny tiny;
  ThreadPool pool(2);
  const auto ops = ops::make_cpu_ops(pool);
  const Calibration calibration = calibrate(tiny.source, tiny.config, prompts, {}, *ops);
  for (const std::string& recipe : shipped_recipes()) {
    const TemporaryDirectory scratch;
    const fs::path out = scratch.path() / "out";
    ASSERT_TRUE(prepare_output(tiny.source, out, false));
    convert(tiny.source, tiny.config, find_recipe(recipe), &calibration, {.out = out, .tool_version = "t"}, pool);
    const Checkpoint made = Checkpoint::open(out);
    Sha256 digest;
    for (const auto& view : made.tensors()) {
      Sha256 bytes;
      bytes.update(made.data(view));
      const std::string line = fmt::format("{} {} {} {}\n", view.name, checkpoint::dtype_name(view.dtype),
                                           view.shape.text(), to_hex(bytes.finish()));
      digest.update(std::as_bytes(std::span(line)));
    }
    EXPECT_EQ(made.tensors().size(), vectors[recipe]["tensors"]);
    EXPECT_EQ(to_hex(digest.finish()), vectors[recipe]["sha256"]) << recipe;
  }
}

TEST(Convert, RefusesSourcesAndCalibrations) {
  const Recipe recipe = find_recipe("nvfp4-experts-w4a4");
  for (const char* form : {"tiny-nvfp4", "tiny-fp8", "tiny-compressed"}) {
    const Checkpoint source = Checkpoint::open(model::tiny(form));
    EXPECT_EQ(refusal_of([&] {
                plan_conversion(source, model::parse_config(source.config_text(), form), recipe, true);
              }).kind,
              ErrorKind::kUnsupported);
  }
  const Tiny tiny;
  json elsewhere = json::parse(recipe.text);
  elsewhere["quantise"][0]["layers"] = {40, 44};
  EXPECT_NE(refusal_of([&] {
              plan_conversion(tiny.source, tiny.config, parse_recipe(elsewhere.dump(), "r"), true);
            }).message.find("none of its targets"),
            std::string::npos);
  Calibration other = made_up(tiny.config);
  other.sites.erase({model::Group::kRoutedExperts, 5, Site::kW2});
  EXPECT_NE(refusal_of([&] { choose_all_scales(recipe, tiny.config, other); }).message.find("of another model"),
            std::string::npos);
}

}  // namespace
}  // namespace verbatim::quantize
