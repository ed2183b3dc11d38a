#include "checkpoint/stored_matrix.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/formats.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "tests/checkpoint/test_files.h"

namespace verbatim::checkpoint {
namespace {

namespace fs = std::filesystem;

const fs::path kTiny(VERBATIM_TINY);

// The logical shape of a matrix from what is stored under `module`.
std::pair<int64_t, int64_t> logical_shape(const Checkpoint& c, const std::string& module) {
  const TensorView* weight = c.find(module + ".weight");
  if (weight == nullptr) weight = c.find(module + ".weight_packed");
  return {weight->shape[0], weight->shape[1] * (weight->dtype == DType::kU8 ? 2 : 1)};
}

// Every quantised matrix of the tiny checkpoints, dequantised, against what numpy computed: bits, by SHA-256.
TEST(StoredMatrix, DequantisesToTheBitsOfTheReference) {
  struct Row {
    const char* name;
    size_t matrices, fp8;
  };
  for (const Row& row : {Row{"tiny-nvfp4", 249, 0}, Row{"tiny-compressed", 288, 48}, Row{"tiny-fp8", 327, 327}}) {
    const Checkpoint c = Checkpoint::open(kTiny / row.name);
    const auto expected = nlohmann::json::parse(read_text_file(kTiny / row.name / "dequantised.json", 1 << 20));
    EXPECT_EQ(expected.size(), row.matrices) << row.name;
    size_t fp8 = 0, nvfp4 = 0;
    for (const auto& [module, digest] : expected.items()) {
      const auto [rows, columns] = logical_shape(c, module);
      const StoredMatrix matrix = resolve_matrix(c, module, rows, columns);
      check_block_scales(c, matrix);
      std::vector<float> values(static_cast<size_t>(rows * columns));
      dequantise(c, matrix, values);
      Sha256 hash;
      hash.update(std::as_bytes(std::span(values)));
      EXPECT_EQ(to_hex(hash.finish()), digest.get<std::string>()) << row.name << " " << module;
      (matrix.form == Form::kNvfp4 ? nvfp4 : fp8) += 1;
    }
    EXPECT_EQ(fp8 + nvfp4, row.matrices);
    EXPECT_EQ(fp8, row.fp8) << row.name;
  }
}

// What quantisation loses is what its number format allows: half a step of each element's block.
TEST(StoredMatrix, DequantisedIsCloseToTheOriginal) {
  const Checkpoint original = Checkpoint::open(kTiny / "tiny-bf16");
  const std::string module = "model.language_model.layers.8.mlp.experts.3.down_proj";
  std::vector<float> exact(128 * 64), rounded(exact.size());
  dequantise(original, resolve_matrix(original, module, 128, 64), exact);
  for (const char* name : {"tiny-fp8", "tiny-compressed"}) {
    const Checkpoint c = Checkpoint::open(kTiny / name);
    const StoredMatrix matrix = resolve_matrix(c, module, 128, 64);
    EXPECT_EQ(matrix.form, Form::kFp8Block);
    dequantise(c, matrix, rounded);
    const float largest = std::fabs(
        *std::max_element(exact.begin(), exact.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
    // e4m3: 3 bits of mantissa, so 2^-4 relative, and steps of 2^-9 of a scale of at most 1.02 amax / 448 near zero.
    for (size_t i = 0; i < exact.size(); ++i)
      ASSERT_LE(std::fabs(rounded[i] - exact[i]),
                std::max(std::fabs(exact[i]) / 16, largest * 1.02f / 448 / 1024) * 1.001f)
          << name << " at " << i;
  }
}

TEST(StoredMatrix, DecidesFromWhatIsStored) {
  const std::string layer = "model.language_model.layers.";
  const Checkpoint nvfp4 = Checkpoint::open(kTiny / "tiny-nvfp4");
  const StoredMatrix expert = resolve_matrix(nvfp4, layer + "3.mlp.experts.0.up_proj", 64, 128);
  EXPECT_EQ(expert.form, Form::kNvfp4);
  EXPECT_FALSE(expert.inverse_scales);
  ASSERT_NE(expert.input_scale, nullptr);
  EXPECT_GT(input_scale(nvfp4, expert), 0);
  // The metadata says NVFP4 for layer 8 too; stored is BF16, and that decides.
  EXPECT_TRUE(nvfp4.quantisation().claims(layer + "8.mlp.experts.0.up_proj"));
  EXPECT_EQ(resolve_matrix(nvfp4, layer + "8.mlp.experts.0.up_proj", 64, 128).form, Form::kBf16);

  // input_scale stands in a shard of its own.
  const Checkpoint mixed = Checkpoint::open(kTiny / "tiny-w4a4-experts");
  const StoredMatrix apart = resolve_matrix(mixed, layer + "3.mlp.experts.0.up_proj", 64, 128);
  ASSERT_NE(apart.input_scale, nullptr);
  EXPECT_EQ(mixed.file_of(apart.input_scale->raw).filename(), "activation-scales.safetensors");
  EXPECT_EQ(resolve_matrix(mixed, layer + "0.mlp.up_proj", 256, 128).form, Form::kBf16);

  const Checkpoint fp8 = Checkpoint::open(kTiny / "tiny-fp8");
  const StoredMatrix partial = resolve_matrix(fp8, layer + "3.self_attn.q_b_proj", 192, 96);
  EXPECT_EQ(partial.form, Form::kFp8Block);
  EXPECT_EQ(partial.block_scale->shape, (Shape{2, 1}));
  EXPECT_EQ(partial.matrix_scale, nullptr);
  const Refusal refusal = refusal_of([&] { matrix_scale(fp8, partial); });
  EXPECT_EQ(refusal.kind, ErrorKind::kUsage);
}

// gate and up have a scale of their own each.
TEST(StoredMatrix, GateAndUpKeepTheirOwnScales) {
  const Checkpoint c = Checkpoint::open(kTiny / "tiny-nvfp4");
  size_t different = 0;
  for (int expert = 0; expert < 16; ++expert) {
    const std::string prefix = fmt::format("model.language_model.layers.3.mlp.experts.{}.", expert);
    different += matrix_scale(c, resolve_matrix(c, prefix + "gate_proj", 64, 128)) !=
                 matrix_scale(c, resolve_matrix(c, prefix + "up_proj", 64, 128));
  }
  EXPECT_EQ(different, 16u);
}

// compressed-tensors stores 1/scale: one inversion, in float32.
TEST(StoredMatrix, InvertsGlobalScalesOnce) {
  const Checkpoint packed = Checkpoint::open(kTiny / "tiny-compressed");
  const Checkpoint plain = Checkpoint::open(kTiny / "tiny-w4a4-experts");
  const std::string module = "model.language_model.layers.5.mlp.experts.9.gate_proj";
  const StoredMatrix a = resolve_matrix(packed, module, 64, 128), b = resolve_matrix(plain, module, 64, 128);
  EXPECT_TRUE(a.inverse_scales);
  EXPECT_EQ(a.weight->name, module + ".weight_packed");
  float stored = 0;
  std::memcpy(&stored, packed.data(*a.matrix_scale).data(), 4);
  EXPECT_EQ(std::bit_cast<uint32_t>(matrix_scale(packed, a)), std::bit_cast<uint32_t>(1.0f / stored));
  // 1/(1/x) is x to within one unit in the last place.
  EXPECT_NEAR(matrix_scale(packed, a) / matrix_scale(plain, b), 1.0f, 0x1p-22f);
  EXPECT_NEAR(input_scale(packed, a) / input_scale(plain, b), 1.0f, 0x1p-22f);
}

// MODEL.md section 9's vector, at every alignment of the data.
TEST(StoredMatrix, NvfpVectorAtEveryAlignment) {
  const std::string codes = "\xf7\x20\x42\x64\xe6\x08\x91\x76" + std::string(8, '\0') +
                            "\xff\xee\xcd\xab\x20\x43\x65\x76" + std::string(8, '\0');
  const std::string scales = "\x7e\x38\x39\x01", scale_2 = "\x25\x49\x12\x3b";
  const float row[16] = {6, -6, 0, 1, 1, 2, 2, 4, 4, -4, -0.0f, 0, .5f, -.5f, 4, 6};
  for (size_t modulo = 0; modulo < 8; ++modulo) {
    const TemporaryDirectory directory;
    write_bytes(directory.path() / "config.json", "{}");
    write_bytes(directory.path() / "model.safetensors", safetensors({{"m.weight", "U8", {1, 32}, codes},
                                                                     {"m.weight_scale", "F8_E4M3", {1, 4}, scales},
                                                                     {"m.weight_scale_2", "F32", {}, scale_2}},
                                                                    modulo));
    const Checkpoint c = Checkpoint::open(directory.path());
    const StoredMatrix matrix = resolve_matrix(c, "m", 1, 64);
    EXPECT_EQ(matrix.input_scale, nullptr);
    EXPECT_EQ(refusal_of([&] { input_scale(c, matrix); }).kind, ErrorKind::kUsage);
    std::vector<float> out(64);
    dequantise(c, matrix, out);
    const float scale = matrix_scale(c, matrix);
    for (size_t i = 0; i < 16; ++i)
      EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(row[i] * 448.0f * scale))
          << modulo << " " << i;
    EXPECT_EQ(out[16], 0.0f);
    EXPECT_EQ(out[32], -6.0f * 1.125f * scale);
    EXPECT_EQ(out[63], 0.0f);
  }
}

TEST(StoredMatrix, Fp8VectorWithPartialBlocks) {
  // [130, 129]: four blocks, three of them partial. Every element is 1 (0x38), so each shows its block's scale.
  const TemporaryDirectory directory;
  write_bytes(directory.path() / "config.json", "{}");
  write_bytes(
      directory.path() / "model.safetensors",
      safetensors({{"m.weight", "F8_E4M3", {130, 129}, std::string(130 * 129, '\x38')},
                   {"m.weight_scale",
                    "BF16",
                    {2, 2},
                    bytes_of<uint16_t>({float_to_bf16(1), float_to_bf16(2), float_to_bf16(3), float_to_bf16(4)})}},
                  1));
  const Checkpoint c = Checkpoint::open(directory.path());
  const StoredMatrix matrix = resolve_matrix(c, "m", 130, 129);
  std::vector<float> out(130 * 129);
  dequantise(c, matrix, out);
  EXPECT_EQ(out[127 * 129 + 127], 1);
  EXPECT_EQ(out[127 * 129 + 128], 2);
  EXPECT_EQ(out[128 * 129 + 127], 3);
  EXPECT_EQ(out[129 * 129 + 128], 4);
  EXPECT_THROW(dequantise(c, matrix, std::span(out).first(5)), Error);
}

TEST(StoredMatrix, PlainFormsKeepTheirBits) {
  const TemporaryDirectory directory;
  write_bytes(directory.path() / "config.json", "{}");
  write_bytes(directory.path() / "model.safetensors",
              safetensors({{"a.weight", "F32", {1, 2}, bytes_of<float>({0.1f, -0.0f})},
                           {"b.weight", "BF16", {1, 2}, bytes_of<uint16_t>({0x3dcd, 0x8000})}},
                          2));
  const Checkpoint c = Checkpoint::open(directory.path());
  std::vector<float> out(2);
  dequantise(c, resolve_matrix(c, "a", 1, 2), out);
  EXPECT_EQ(bytes_of(out), bytes_of<float>({0.1f, -0.0f}));
  dequantise(c, resolve_matrix(c, "b", 1, 2), out);
  EXPECT_EQ(bytes_of(out), bytes_of<float>({std::bit_cast<float>(0x3dcd0000u), -0.0f}));
  check_block_scales(c, resolve_matrix(c, "b", 1, 2));
}

}  // namespace
}  // namespace verbatim::checkpoint
