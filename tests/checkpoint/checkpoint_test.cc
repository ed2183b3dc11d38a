#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"
#include "tests/checkpoint/test_files.h"

namespace verbatim::checkpoint {
namespace {

namespace fs = std::filesystem;

const fs::path kTiny(VERBATIM_TINY);

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Checkpoint, ReleasedInventories) {
  struct Row {
    const char* form;
    size_t tensors;
    uint64_t payload_bytes;
  };
  const fs::path fixtures(VERBATIM_FIXTURES);
  for (const Row& row : {Row{"bf16", 38770, 642646653816}, Row{"fp8", 76108, 328326771576},
                         Row{"nvfp4", 147661, 204419110596}, Row{"w4a4_experts", 147634, 205063596408}}) {
    const Checkpoint c = Checkpoint::from_inventory(fixtures / "headers" / (std::string(row.form) + ".json.gz"),
                                                    fixtures / "configs" / row.form / "config.json");
    EXPECT_EQ(c.raw_count(), row.tensors) << row.form;
    EXPECT_EQ(c.tensors().size(), row.tensors) << row.form;
    EXPECT_EQ(c.payload_bytes(), row.payload_bytes) << row.form;
    EXPECT_FALSE(c.has_data());
    EXPECT_NE(c.config_text().find("glm5_next"), std::string::npos);
    EXPECT_TRUE(c.generation_config_text().has_value());
    EXPECT_TRUE(c.processor_config_text().has_value());
    const TensorView* head = c.find("lm_head.weight");
    ASSERT_NE(head, nullptr);
    EXPECT_EQ(head->shape, (Shape{154880, 4096}));
    EXPECT_EQ(head->bytes, 154880u * 4096 * 2);
    const Refusal refusal = refusal_of([&] { c.data(*head); });
    EXPECT_NE(refusal.message.find("'lm_head.weight': an inventory holds no data; expected"), std::string::npos);
  }
}

TEST(Checkpoint, OpensTheTinyOnes) {
  struct Row {
    const char* name;
    size_t tensors, shards;
  };
  for (const Row& row : {Row{"tiny-bf16", 571, 1}, Row{"tiny-nvfp4", 1318, 1}, Row{"tiny-w4a4-experts", 1291, 4},
                         Row{"tiny-fp8", 898, 1}, Row{"tiny-compressed", 1339, 1}}) {
    const Checkpoint c = Checkpoint::open(kTiny / row.name);
    EXPECT_TRUE(c.has_data());
    EXPECT_EQ(c.raw_count(), row.tensors) << row.name;
    EXPECT_EQ(c.shard_count(), row.shards) << row.name;
    EXPECT_TRUE(std::is_sorted(c.tensors().begin(), c.tensors().end(),
                               [](const TensorView& a, const TensorView& b) { return a.name < b.name; }));
    uint64_t bytes = 0;
    for (const TensorView& tensor : c.tensors()) {
      EXPECT_EQ(c.data(tensor).size(), tensor.bytes);
      EXPECT_EQ(c.find(tensor.name), &tensor);
      bytes += tensor.bytes;
    }
    EXPECT_EQ(bytes, c.payload_bytes());
    EXPECT_EQ(c.find("lm_head"), nullptr);
    EXPECT_EQ(c.find("lm_head.weightx"), nullptr);
    EXPECT_EQ(c.with_prefix("lm_head.").size(), 1u);
    EXPECT_TRUE(c.with_prefix("none.").empty());
  }
}

// The forms that leave a tensor as it is hold the same bits for it, whatever file and offset they stand at: tiny-fp8's
// data begins at 4 modulo 8, tiny-w4a4-experts spreads its tensors over shards.
TEST(Checkpoint, ReadsTheSameBitsFromEveryLayout) {
  const Checkpoint reference = Checkpoint::open(kTiny / "tiny-bf16");
  for (const char* name : {"tiny-fp8", "tiny-compressed", "tiny-w4a4-experts"}) {
    const Checkpoint c = Checkpoint::open(kTiny / name);
    size_t same = 0;
    for (const TensorView& tensor : c.tensors()) {
      const TensorView* other = reference.find(tensor.name);
      if (other == nullptr || other->dtype != tensor.dtype) continue;
      ASSERT_EQ(text_of(c.data(tensor)), text_of(reference.data(*other))) << tensor.name;
      ++same;
    }
    EXPECT_GT(same, 200u) << name;
  }
  const SafetensorsFile fp8(kTiny / "tiny-fp8" / "model.safetensors");
  EXPECT_EQ(fp8.header().data_begin % 8, 4u);
}

TEST(Checkpoint, ShardsInAnyOrderAndPartsApart) {
  const TemporaryDirectory directory;
  fs::create_directory(directory.path() / "sub");
  write_bytes(directory.path() / "config.json", "{}");
  write_bytes(directory.path() / "z.safetensors",
              safetensors({{"m.weight", "U8", {1}, "a"}, {"extra", "U8", {1}, "e"}}));
  write_bytes(directory.path() / "sub" / "a.safetensors", safetensors({{"m.weight_scale", "U8", {2}, "bc"}}, 1));
  write_bytes(directory.path() / "stale.safetensors", safetensors({{"m.weight", "U8", {1}, "x"}}));  // not in the index
  write_index(directory.path(), {{"m.weight_scale", "sub/a.safetensors"}, {"m.weight", "z.safetensors"}}, 99);
  const Checkpoint c = Checkpoint::open(directory.path());
  EXPECT_EQ(text_of(c.data(*c.find("m.weight"))), "a");
  EXPECT_EQ(text_of(c.data(*c.find("m.weight_scale"))), "bc");
  EXPECT_EQ(text_of(c.data(*c.find("extra"))), "e");
  EXPECT_EQ(c.shard_count(), 2u);
  EXPECT_EQ(c.file_of(c.find("m.weight")->raw).filename(), "z.safetensors");
  ASSERT_EQ(c.notes().size(), 2u);
  EXPECT_NE(c.notes()[0].find("1 tensors are in the shards but not in the index (the first: 'extra')"),
            std::string::npos);
  EXPECT_NE(c.notes()[1].find("declares 99 bytes in all, the shards hold 4"), std::string::npos);
}

TEST(Checkpoint, ShardMayBeALinkToElsewhere) {
  const TemporaryDirectory directory, elsewhere;
  write_bytes(directory.path() / "config.json", "{}");
  write_bytes(elsewhere.path() / "blob", safetensors({{"t", "U8", {1}, "a"}}));
  fs::create_symlink(elsewhere.path() / "blob", directory.path() / "s.safetensors");
  write_index(directory.path(), {{"t", "s.safetensors"}}, 1);
  EXPECT_EQ(Checkpoint::open(directory.path()).tensors().size(), 1u);
  EXPECT_TRUE(Checkpoint::open(directory.path()).notes().empty());
}

TEST(Checkpoint, WithoutIndexTakesModelElseAllFiles) {
  const TemporaryDirectory directory;
  write_bytes(directory.path() / "config.json", "{}");
  write_bytes(directory.path() / "a.safetensors", safetensors({{"a", "U8", {1}, "a"}}));
  write_bytes(directory.path() / "b.safetensors", safetensors({{"b", "U8", {1}, "b"}}));
  EXPECT_EQ(Checkpoint::open(directory.path()).tensors().size(), 2u);
  write_bytes(directory.path() / "model.safetensors", safetensors({{"c", "U8", {1}, "c"}}));
  const Checkpoint c = Checkpoint::open(directory.path());
  ASSERT_EQ(c.tensors().size(), 1u);
  EXPECT_EQ(c.tensors()[0].name, "c");
}

TEST(Checkpoint, MovesWithoutLosingNames) {
  Checkpoint first = Checkpoint::open(kTiny / "tiny-nvfp4");
  const std::byte* data = first.data(*first.find("lm_head.weight")).data();
  const Checkpoint second = std::move(first);
  ASSERT_NE(second.find("lm_head.weight"), nullptr);
  EXPECT_EQ(second.data(*second.find("lm_head.weight")).data(), data);
}

// Rewrites tiny-bf16 under transformers' module names, fused tensors and all, and other prefixes: the same tensors.
TEST(Checkpoint, OtherNamespacesGiveTheSameTensors) {
  const Checkpoint reference = Checkpoint::open(kTiny / "tiny-bf16");
  struct Raw {
    DType dtype;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Raw> out;
  auto raw_of = [&](const TensorView& t) {
    return Raw{t.dtype, {t.shape.begin(), t.shape.end()}, text_of(reference.data(t))};
  };
  auto replaced = [](std::string name, const std::string& from, const std::string& to) {
    const size_t at = name.find(from);
    return at == std::string::npos ? name : name.replace(at, from.size(), to);
  };
  for (const TensorView& tensor : reference.tensors()) {
    std::string name(tensor.name);
    if (name.find("k_conv1d") != std::string::npos || name.find("v_conv1d") != std::string::npos) continue;
    if (name.find(".mlp.experts.") != std::string::npos) continue;
    Raw raw = raw_of(tensor);
    if (name.find("q_conv1d") != std::string::npos) {
      for (const char* other : {"k_conv1d", "v_conv1d"})
        raw.bytes += text_of(reference.data(*reference.find(replaced(name, "q_conv1d", other))));
      raw.shape[0] *= 3;
      name = replaced(name, "q_conv1d", "conv1d");
    }
    for (const char* leaf : {"A_log", "dt_bias", "f_a_proj", "f_b_proj"})
      name = replaced(name, std::string("self_attn.") + leaf, std::string("self_attn.forget_gate.") + leaf);
    name = replaced(replaced(name, "hc_attn_", "attn_hc."), "hc_ffn_", "ffn_hc.");
    name = replaced(replaced(name, "model.visual.", "vision_tower."), "lm_head.", "language_model.lm_head.");
    name = replaced(name, "model.language_model.", "language_model.model.");
    out[name] = raw;
  }
  for (int layer = 3; layer <= 8; ++layer) {
    Raw gate_up{DType::kBF16, {16, 128, 128}, ""}, down{DType::kBF16, {16, 128, 64}, ""};
    for (int expert = 0; expert < 16; ++expert) {
      const std::string prefix = fmt::format("model.language_model.layers.{}.mlp.experts.{}.", layer, expert);
      gate_up.bytes += text_of(reference.data(*reference.find(prefix + "gate_proj.weight")));
      gate_up.bytes += text_of(reference.data(*reference.find(prefix + "up_proj.weight")));
      down.bytes += text_of(reference.data(*reference.find(prefix + "down_proj.weight")));
    }
    out[fmt::format("language_model.model.layers.{}.mlp.experts.gate_up_proj", layer)] = gate_up;
    out[fmt::format("language_model.model.layers.{}.mlp.experts.down_proj", layer)] = down;
  }
  const TemporaryDirectory directory;
  write_bytes(directory.path() / "config.json", reference.config_text());
  std::vector<StoredTensor> stored;
  for (const auto& [name, raw] : out) stored.push_back({name, dtype_name(raw.dtype), raw.shape, raw.bytes});
  write_bytes(directory.path() / "model.safetensors", safetensors(stored, 3));

  const Checkpoint c = Checkpoint::open(directory.path());
  EXPECT_EQ(c.raw_count(), out.size());
  EXPECT_EQ(c.payload_bytes(), reference.payload_bytes());
  ASSERT_EQ(c.tensors().size(), reference.tensors().size());
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const TensorView &a = c.tensors()[i], &b = reference.tensors()[i];
    ASSERT_EQ(a.name, b.name);
    ASSERT_EQ(a.dtype, b.dtype) << a.name;
    ASSERT_EQ(a.shape, b.shape) << a.name;
    ASSERT_EQ(text_of(c.data(a)), text_of(reference.data(b))) << a.name;
  }
}

}  // namespace
}  // namespace verbatim::checkpoint
