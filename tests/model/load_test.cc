// Checkpoints that must not start, changed from the tiny ones tensor by tensor: each refusal names what is wrong.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/tensors.h"
#include "tests/checkpoint/test_files.h"
#include "tests/model/tiny_models.h"

namespace verbatim::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::DType;
using checkpoint::TemporaryDirectory;
using checkpoint::TensorSpec;

struct Tensor {
  TensorSpec spec;
  std::string bytes;
};
// Changes the list of tensors of a checkpoint.
using Change = std::function<void(std::vector<Tensor>&)>;

// A copy of a tiny checkpoint in one file, its metadata kept, with its tensors changed.
void write_changed(const std::string& from, const std::filesystem::path& to, const Change& change) {
  const Checkpoint stored = Checkpoint::open(tiny(from));
  std::vector<Tensor> tensors;
  for (const checkpoint::TensorView& view : stored.tensors()) {
    const auto bytes = stored.data(view);
    tensors.push_back({{std::string(view.name), view.dtype, view.shape},
                       {reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
  }
  change(tensors);
  std::vector<TensorSpec> specs;
  for (const Tensor& tensor : tensors) specs.push_back(tensor.spec);
  checkpoint::SafetensorsWriter writer(to / "model.safetensors", specs);
  for (const Tensor& tensor : tensors) writer.append(std::as_bytes(std::span(tensor.bytes)));
  writer.finish();
  for (const char* text : {"config.json", "hf_quant_config.json"})
    if (std::filesystem::exists(tiny(from) / text)) std::filesystem::copy_file(tiny(from) / text, to / text);
}

Tensor& named(std::vector<Tensor>& tensors, const std::string& name) {
  for (Tensor& tensor : tensors)
    if (tensor.spec.name == name) return tensor;
  throw std::runtime_error("the tiny checkpoint has no " + name);
}

Change remove(const std::string& name) {
  return [name](std::vector<Tensor>& tensors) {
    named(tensors, name);
    std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.spec.name == name; });
  };
}

Change set_float(const std::string& name, float value) {
  return [=](std::vector<Tensor>& tensors) { std::memcpy(named(tensors, name).bytes.data(), &value, 4); };
}

Change set_byte(const std::string& name, size_t at, uint8_t value) {
  return [=](std::vector<Tensor>& tensors) { named(tensors, name).bytes.at(at) = static_cast<char>(value); };
}

Change reshape(const std::string& name, checkpoint::Shape shape) {
  return [=](std::vector<Tensor>& tensors) { named(tensors, name).spec.shape = shape; };
}

// The same bytes called something else, two bytes an element.
Change retype(const std::string& name, DType dtype) {
  return [=](std::vector<Tensor>& tensors) { named(tensors, name).spec.dtype = dtype; };
}

Change add(const std::string& name) {
  return [=](std::vector<Tensor>& tensors) { tensors.push_back({{name, DType::kBF16, {2}}, std::string(4, '\0')}); };
}

struct Damage {
  const char* what;
  const char* from;
  Precision precision;
  Change change;
  std::vector<std::string> message;  // all in it
};

const std::string kExpert = "model.language_model.layers.5.mlp.experts.7.gate_proj";
const std::string kLayer = "model.language_model.layers.";
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<Damage> damages() {
  constexpr Precision kFull = Precision::kFull, kOwn = Precision::kCheckpoint;
  return {
      {"missing expert", "tiny-bf16", kFull, remove(kExpert + ".weight"), {kExpert, "[64, 128]"}},
      {"missing norm",
       "tiny-bf16",
       kFull,
       remove(kLayer + "2.input_layernorm.weight"),
       {"layers.2.input_layernorm.weight is missing", "[128]"}},
      {"missing head", "tiny-bf16", kFull, remove("lm_head.weight"), {"lm_head"}},
      {"missing bias of the vision tower",
       "tiny-bf16",
       kFull,
       remove("model.visual.blocks.0.attn.qkv.bias"),
       {"model.visual.blocks.0.attn.qkv.bias is missing"}},
      {"missing router bias",
       "tiny-bf16",
       kFull,
       remove(kLayer + "4.mlp.gate.e_score_correction_bias"),
       {"layers.4.mlp.gate.e_score_correction_bias is missing", "[16]"}},
      {"missing next-n projection",
       "tiny-bf16",
       kFull,
       remove(kLayer + "8.eh_proj.weight"),
       {"layers.8.eh_proj", "[128, 256]"}},
      {"unknown tensor",
       "tiny-bf16",
       kFull,
       add(kLayer + "0.self_attn.q_norm.weight"),
       {"layers.0.self_attn.q_norm.weight BF16 [2] is not a tensor of this model"}},
      {"tensor of a layer that is not there",
       "tiny-bf16",
       kFull,
       add(kLayer + "9.input_layernorm.weight"),
       {"layers.9.input_layernorm.weight"}},
      {"transposed matrix",
       "tiny-bf16",
       kFull,
       reshape(kExpert + ".weight", {128, 64}),
       {kExpert, "[128, 64]", "[64, 128]"}},
      {"flattened matrix", "tiny-bf16", kFull, reshape("lm_head.weight", {512 * 128}), {"lm_head", "[65536]"}},
      {"wrong dtype of a norm",
       "tiny-bf16",
       kFull,
       retype("model.language_model.norm.weight", DType::kF16),
       {"model.language_model.norm.weight is F16 [128]; expected BF16 or F32 [128]"}},
      {"wrong dtype of a matrix", "tiny-bf16", kFull, retype(kExpert + ".weight", DType::kI16), {kExpert, "I16"}},
      {"wrong shape of taps",
       "tiny-bf16",
       kFull,
       reshape(kLayer + "0.self_attn.q_conv1d.weight", {128, 4}),
       {"q_conv1d.weight is BF16 [128, 4]", "[128, 1, 4]"}},
      {"missing scale_2", "tiny-nvfp4", kFull, remove(kExpert + ".weight_scale_2"), {kExpert, "weight_scale_2"}},
      {"missing block scales", "tiny-nvfp4", kFull, remove(kExpert + ".weight_scale"), {kExpert, "weight_scale"}},
      {"NaN scale_2",
       "tiny-nvfp4",
       kFull,
       set_float(kExpert + ".weight_scale_2", kNan),
       {kExpert + ".weight_scale_2", "nan"}},
      {"infinite scale_2",
       "tiny-nvfp4",
       kFull,
       set_float(kExpert + ".weight_scale_2", kInf),
       {kExpert + ".weight_scale_2", "inf"}},
      {"zero scale_2",
       "tiny-nvfp4",
       kFull,
       set_float(kExpert + ".weight_scale_2", 0),
       {kExpert + ".weight_scale_2", "0"}},
      {"negative scale_2",
       "tiny-nvfp4",
       kFull,
       set_float(kExpert + ".weight_scale_2", -1),
       {kExpert + ".weight_scale_2", "-1"}},
      {"NaN block scale",
       "tiny-nvfp4",
       kFull,
       set_byte(kExpert + ".weight_scale", 37, 0x7f),
       {kExpert, "row 4", "NaN"}},
      {"negative block scale", "tiny-nvfp4", kFull, set_byte(kExpert + ".weight_scale", 37, 0xb8), {kExpert, "row 4"}},
      {"NaN input_scale",
       "tiny-nvfp4",
       kFull,
       set_float(kExpert + ".input_scale", kNan),
       {kExpert + ".input_scale", "nan"}},
      {"missing input_scale when W4A4 is asked",
       "tiny-nvfp4",
       kOwn,
       remove(kExpert + ".input_scale"),
       {kExpert, "without input_scale", "W4A4", "--precision full"}},
      {"W4A4 of a file without any rounding of its own",
       "tiny-bf16",
       kOwn,
       [](std::vector<Tensor>&) {},
       {"no matrix stores input_scale", "--precision full"}},
      {"missing FP8 scales", "tiny-fp8", kFull, remove(kExpert + ".weight_scale_inv"), {kExpert, "weight_scale_inv"}},
      {"NaN FP8 scale", "tiny-fp8", kFull, set_float(kExpert + ".weight_scale_inv", kNan), {kExpert}},
      {"wrong shape of FP8 scales",
       "tiny-fp8",
       kFull,
       reshape(kLayer + "0.mlp.gate_proj.weight_scale_inv", {1, 2}),
       {"layers.0.mlp.gate_proj", "[1, 2]", "[2, 1]"}},
      {"missing global scale",
       "tiny-compressed",
       kFull,
       remove(kExpert + ".weight_global_scale"),
       {kExpert, "weight_global_scale"}},
      {"zero global scale",
       "tiny-compressed",
       kFull,
       set_float(kExpert + ".weight_global_scale", 0),
       {kExpert + ".weight_global_scale"}},
  };
}

TEST(Load, EveryDamageIsRefusedByName) {
  for (const Damage& damage : damages()) {
    const TemporaryDirectory directory;
    write_changed(damage.from, directory.path(), damage.change);
    try {
      const Loaded loaded(directory.path(), damage.precision);
      ADD_FAILURE() << damage.what << " was accepted";
    } catch (const Error& error) {
      for (const std::string& part : damage.message)
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << damage.what << ": no \"" << part << "\" in\n"
            << error.what();
    }
  }
}

// The copies are sound before they are damaged, and a missing input_scale alone does not stop W4A16.
TEST(Load, UndamagedCopiesLoad) {
  for (const char* from : {"tiny-bf16", "tiny-nvfp4", "tiny-fp8", "tiny-compressed", "tiny-w4a4-experts"}) {
    const TemporaryDirectory directory;
    write_changed(from, directory.path(), [](std::vector<Tensor>&) {});
    EXPECT_NO_THROW(Loaded(directory.path())) << from;
  }
  const TemporaryDirectory directory;
  write_changed("tiny-nvfp4", directory.path(), [](std::vector<Tensor>& tensors) {
    std::erase_if(tensors, [](const Tensor& tensor) { return tensor.spec.name.ends_with(".input_scale"); });
  });
  EXPECT_NO_THROW(Loaded(directory.path()));
  EXPECT_THROW(Loaded(directory.path(), Precision::kCheckpoint), Error);
}

TEST(Load, SumPartsMustCutEverySumEvenly) {
  for (const int parts : {1, 2, 4, 8}) EXPECT_NO_THROW(Loaded(tiny("tiny-bf16"), Precision::kFull, parts));
  for (const int parts : {0, -1, 3, 64, 128}) EXPECT_THROW(Loaded(tiny("tiny-bf16"), Precision::kFull, parts), Error);
}

TEST(Load, ConfigOfAnotherModel) {
  const TemporaryDirectory directory;
  write_changed("tiny-bf16", directory.path(), [](std::vector<Tensor>&) {});
  auto config = nlohmann::json::parse(read_text_file(tiny("tiny-bf16") / "config.json", 1 << 20));
  config["text_config"]["n_routed_experts"] = 17;
  write_file_atomically(directory.path() / "config.json", config.dump());
  try {
    const Loaded loaded(directory.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("experts.16.gate_proj"), std::string::npos) << error.what();
  }
}

// Steps that make no sense are refused before anything is written.
TEST(Forward, RefusesBadSteps) {
  const Loaded loaded(tiny("tiny-bf16"));
  Cpu cpu;
  state::Storage storage(*cpu.ops, loaded.model.config, 1, 1);
  Workspace workspace(*cpu.ops, loaded.model.config, 16);
  const int32_t page = 0;
  auto run = [&](ops::Span span, std::vector<int32_t> ids) {
    span.pages = &page;
    forward(*cpu.ops, loaded.model, storage.state(), {&span, 1}, ids, workspace);
  };
  EXPECT_NO_THROW(run({0, 2, 0, 2}, {1, 2}));
  EXPECT_THROW(run({0, 1, 2, 1}, {512}), Error);                          // id past the vocabulary
  EXPECT_THROW(run({0, 1, 2, 1}, {-1}), Error);                           // negative id
  EXPECT_THROW(run({0, 2, 2, 2}, {1}), Error);                            // rows without ids
  EXPECT_THROW(run({1, 1, 2, 1}, {1}), Error);                            // not from row 0
  EXPECT_THROW(run({0, 1, -1, 1}, {1}), Error);                           // negative position
  EXPECT_THROW(run({0, 1, 2, 0}, {1}), Error);                            // nothing certain
  EXPECT_THROW(run({0, 17, 2, 17}, std::vector<int32_t>(17, 1)), Error);  // more than the workspace holds
  EXPECT_THROW(run({0, 9, 2, 1}, std::vector<int32_t>(9, 1)), Error);     // a window past kWindowRows
  EXPECT_THROW(run({0, 0, 2, 0}, {}), Error);
}

}  // namespace
}  // namespace verbatim::model
