#include "quantize/nvfp4_bf16.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "base/formats.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "ops/cpu/instruction_sets.h"
#include "quantize/nvfp4.h"
#include "tests/checkpoint/test_files.h"
#include "tests/model/tiny_models.h"

namespace verbatim::quantize {
namespace {

std::vector<const Bf16Kernels*> every_kernel() {
  std::vector<const Bf16Kernels*> kernels = {&plain_bf16_kernels()};
  if (ops::cpu::avx2_is_available()) kernels.push_back(&avx2_bf16_kernels());
  if (ops::cpu::avx512_is_available()) kernels.push_back(&avx512_bf16_kernels());
  return kernels;
}

Nvfp4Matrix encode(const std::vector<uint16_t>& weights, const Bf16Kernels& kernels, ErrorSums* errors = nullptr) {
  const auto count = static_cast<int64_t>(weights.size());
  const Bf16Encoder encoder(kernels.largest(weights.data(), count), kernels);
  Nvfp4Matrix out;
  out.matrix_scale = encoder.matrix_scale();
  out.codes.resize(weights.size() / 2);
  out.block_scales.resize(weights.size() / 16);
  encoder.encode(weights.data(), count / 16, out.codes.data(), out.block_scales.data());
  if (errors != nullptr)
    *errors = encoder.errors(weights.data(), count / 16, out.codes.data(), out.block_scales.data());
  return out;
}

void expect_same(const Nvfp4Matrix& a, const Nvfp4Matrix& b, const std::string& what) {
  EXPECT_EQ(std::bit_cast<uint32_t>(a.matrix_scale), std::bit_cast<uint32_t>(b.matrix_scale)) << what;
  EXPECT_EQ(a.block_scales, b.block_scales) << what;
  EXPECT_EQ(a.codes, b.codes) << what;
}

// Cuts instead of divisions, on every kind of weights: the codec's bits.
TEST(Nvfp4Bf16, IsTheScalarCodec) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  ThreadPool pool(1);
  const std::pair<const char*, std::function<float(int)>> kinds[] = {
      {"normal", [&](int) { return normal(random) / 64; }},
      {"thirty octaves", [&](int i) { return normal(random) * std::exp2(-static_cast<float>(i / 16 % 31)); }},
      {"huge", [&](int) { return normal(random) * 6e37f; }},
      {"small normal numbers", [&](int) { return normal(random) * 1e-32f; }},
      {"subnormal among normal", [&](int i) { return i % 5 == 0 ? normal(random) * 1e-39f : normal(random); }},
      {"zeros of both signs", [&](int i) { return i % 3 == 0   ? normal(random)
                                                  : i % 2 == 0 ? 0.0f
                                                               : -0.0f; }},
      {"huge and least", [&](int i) { return i % 16 == 0 ? 3e38f : normal(random) * 1e-30f; }},
      {"steps", [&](int) { return static_cast<float>(static_cast<int>(random() % 97) - 48) * 0.125f; }},
  };
  for (const auto& [what, make] : kinds)
    for (const int count : {16, 48, 64, 80, 4096 + 16}) {
      std::vector<uint16_t> halves(static_cast<size_t>(count));
      std::vector<float> weights(halves.size());
      for (int i = 0; i < count; ++i) {
        halves[static_cast<size_t>(i)] = float_to_bf16(make(i));
        weights[static_cast<size_t>(i)] = bf16_to_float(halves[static_cast<size_t>(i)]);
      }
      halves[0] = float_to_bf16(weights[0] = std::max(weights[0], 0x1p-100f));
      const Nvfp4Matrix expected = quantise_nvfp4(weights, 1, count, pool);
      for (const Bf16Kernels* kernels : every_kernel()) expect_same(encode(halves, *kernels), expected, what);
    }
}

// Every magnitude as a weight under scales from the smallest to the largest.
TEST(Nvfp4Bf16, EveryMagnitude) {
  ThreadPool pool(1);
  for (const float largest : {1.0f, 0.0123f, 448.0f, 3.3e38f, 1e-25f}) {
    std::vector<uint16_t> halves;
    for (uint16_t bits = 0; bits <= (float_to_bf16(largest) & 0x7fff); ++bits) {
      halves.push_back(bits);
      halves.push_back(bits | 0x8000);
    }
    while (halves.size() % 16 != 0) halves.push_back(0);
    std::vector<float> weights(halves.size());
    std::transform(halves.begin(), halves.end(), weights.begin(), bf16_to_float);
    const Nvfp4Matrix expected = quantise_nvfp4(weights, 1, static_cast<int64_t>(weights.size()), pool);
    for (const Bf16Kernels* kernels : every_kernel()) expect_same(encode(halves, *kernels), expected, "magnitudes");
  }
}

TEST(Nvfp4Bf16, LargestSeesInfinityAndNan) {
  for (const Bf16Kernels* kernels : every_kernel())
    for (const size_t count : {1u, 16u, 63u, 64u, 131u})
      for (size_t at = 0; at < count; ++at) {
        std::vector<uint16_t> weights(count, 0xbf80);
        EXPECT_EQ(kernels->largest(weights.data(), static_cast<int64_t>(count)), 0x3f80);
        weights[at] = 0xff80;
        EXPECT_EQ(kernels->largest(weights.data(), static_cast<int64_t>(count)), 0x7f80);
        weights[at] = 0x7fc0;
        EXPECT_EQ(kernels->largest(weights.data(), static_cast<int64_t>(count)), 0x7fc0);
      }
}

TEST(Nvfp4Bf16, ErrorsAreTheSumsAndAgreeInBits) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> weights(4096);
  for (uint16_t& w : weights) w = float_to_bf16(normal(random));
  ErrorSums first;
  const Nvfp4Matrix made = encode(weights, plain_bf16_kernels(), &first);
  double error = 0, weight = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const uint8_t pair = made.codes[i / 2];
    const double w = bf16_to_float(weights[i]);
    const double q = static_cast<double>(e2m1_to_float(i % 2 == 0 ? pair & 15 : pair >> 4)) *
                     static_cast<double>(e4m3_to_float(made.block_scales[i / 16])) *
                     static_cast<double>(made.matrix_scale);
    error += (w - q) * (w - q);
    weight += w * w;
  }
  EXPECT_NEAR(first.error / error, 1, 1e-4);  // 256 additions in float32 lanes, and d's own rounding
  EXPECT_NEAR(first.weight / weight, 1, 1e-4);
  for (const Bf16Kernels* kernels : every_kernel()) {
    ErrorSums sums;
    encode(weights, *kernels, &sums);
    EXPECT_EQ(sums.error, first.error);
    EXPECT_EQ(sums.weight, first.weight);
  }
}

// scripts/oracle_quantize.py: what nvidia-modelopt makes of these matrices.
TEST(Nvfp4Bf16, IsModelOpt) {
  const checkpoint::SafetensorsFile file(std::string(VERBATIM_FIXTURES) + "/quantize/modelopt.safetensors");
  EXPECT_TRUE(file.header().metadata.at("producer").starts_with("nvidia-modelopt 0.4"));
  ThreadPool pool(2);
  int cases = 0;
  for (const checkpoint::HeaderTensor& input : file.header().tensors) {
    if (!input.name.ends_with(".input")) continue;
    const std::string name = input.name.substr(0, input.name.size() - 6);
    auto bytes = [&](const std::string& part) {
      const auto data = file.data(file.at(name + part));
      return std::vector<uint8_t>(reinterpret_cast<const uint8_t*>(data.data()),
                                  reinterpret_cast<const uint8_t*>(data.data()) + data.size());
    };
    Nvfp4Matrix expected;
    expected.codes = bytes(".weight");
    expected.block_scales = bytes(".weight_scale");
    std::memcpy(&expected.matrix_scale, file.data(file.at(name + ".weight_scale_2")).data(), 4);
    std::vector<float> weights(static_cast<size_t>(input.shape.elements()));
    if (input.dtype == checkpoint::DType::kF32) {
      std::memcpy(weights.data(), file.data(input).data(), 4 * weights.size());
    } else {
      std::vector<uint16_t> halves(weights.size());
      std::memcpy(halves.data(), file.data(input).data(), 2 * halves.size());
      std::transform(halves.begin(), halves.end(), weights.begin(), bf16_to_float);
      for (const Bf16Kernels* kernels : every_kernel()) expect_same(encode(halves, *kernels), expected, name);
    }
    expect_same(quantise_nvfp4(weights, input.shape[0], input.shape[1], pool), expected, name);
    ++cases;
  }
  EXPECT_EQ(cases, 12);
}

TEST(Nvfp4Bf16, IsModelOptOnTheTinyModel) {
  const nlohmann::json oracle =
      nlohmann::json::parse(checkpoint::read_bytes(std::string(VERBATIM_FIXTURES) + "/quantize/modelopt_tiny.json"));
  const auto bf16 = checkpoint::Checkpoint::open(model::tiny("tiny-bf16"));
  int matrices = 0;
  for (const auto& [name, digest] : oracle["sha256"].items()) {
    const auto data = bf16.data(*bf16.find(name + ".weight"));
    std::vector<uint16_t> weights(data.size() / 2);
    std::memcpy(weights.data(), data.data(), data.size());
    const Nvfp4Matrix made = encode(weights, bf16_kernels());
    Sha256 hash;
    hash.update(std::as_bytes(std::span(made.codes)));
    hash.update(std::as_bytes(std::span(made.block_scales)));
    hash.update(std::as_bytes(std::span(&made.matrix_scale, 1)));
    EXPECT_EQ(to_hex(hash.finish()), digest) << name;
    ++matrices;
  }
  EXPECT_EQ(matrices, 6 * 16 * 3 + 3 * 3);  // the next-n layer's experts too
}

// MODEL.md section 9.
TEST(Nvfp4Bf16, IsTheStatedVector) {
  std::vector<float> row = {6,   -6, .25f,  .75f, 1.25f,    1.75f,      2.5f,     3.5f,
                            5.f, -5, -.25f, -0.f, .265625f, -.7421875f, 4.90625f, 5.09375f};
  row.resize(32, 0.0f);
  for (int i = 0; i < 16; ++i) row.push_back(static_cast<float>(i - 8) / 512);
  row.resize(64, 1e-7f);
  std::vector<uint16_t> halves(64);
  std::transform(row.begin(), row.end(), halves.begin(), float_to_bf16);
  for (const Bf16Kernels* kernels : every_kernel()) {
    const Nvfp4Matrix made = encode(halves, *kernels);
    EXPECT_EQ(std::bit_cast<uint32_t>(made.matrix_scale), 0x3b124925u);  // stored little-endian: 2549123b
    EXPECT_EQ(to_hex(made.block_scales), "7e383901");
    EXPECT_EQ(to_hex(made.codes), "f7204264e60891760000000000000000ffeecdab204365760000000000000000");
  }
}

}  // namespace
}  // namespace verbatim::quantize
