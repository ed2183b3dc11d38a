// The tiny checkpoints, what transformers computes on them, and ways of running them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "model/config.h"
#include "model/glm.h"
#include "ops/ops.h"
#include "state/solo.h"
#include "tests/tested_backend.h"

namespace verbatim::model {

inline std::filesystem::path tiny(const std::string& name) { return std::filesystem::path(VERBATIM_TINY) / name; }

// A checkpoint with the model bound to it; neither moves.
struct Loaded {
  checkpoint::Checkpoint checkpoint;
  Model model;

  explicit Loaded(const std::filesystem::path& directory, Precision precision = Precision::kFull, int sum_parts = 1)
      : checkpoint(checkpoint::Checkpoint::open(directory)),
        model(
            load_model(checkpoint, parse_config(checkpoint.config_text(), directory.string()), precision, sum_parts)) {}
};

class Golden {
 public:
  Golden() : file_(tiny("golden.safetensors")) {}
  std::vector<float> floats(const std::string& name) const { return read<float>(name); }
  std::vector<int32_t> ids(const std::string& name) const { return read<int32_t>(name); }

 private:
  template <typename T>
  std::vector<T> read(const std::string& name) const {
    const auto bytes = file_.data(file_.at(name));
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  checkpoint::SafetensorsFile file_;
};

// ||a - b|| / ||b||.
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / norm);
}

// The first difference in bits, or an empty text.
inline std::string first_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return "sizes " + std::to_string(a.size()) + " and " + std::to_string(b.size());
  for (size_t i = 0; i < a.size(); ++i)
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]))
      return "element " + std::to_string(i) + ": " + std::to_string(a[i]) + " and " + std::to_string(b[i]);
  return {};
}

// The CPU, or whatever backend the binary tests (tests/tested_backend.h).
struct Cpu {
  explicit Cpu(int threads = 2, ops::CpuIsa isa = ops::CpuIsa::kBest)
      : pool(threads), ops(ops::tested_backend.make_for_models(pool, isa)) {}
  ThreadPool pool;
  std::unique_ptr<ops::Ops> ops;
};

// Logits [T, V] of a prompt, fed `chunk` tokens at a time.
inline std::vector<float> prompt_logits(ops::Ops& ops, const Model& model, std::span<const int32_t> ids,
                                        int64_t chunk = 1 << 20) {
  const auto count = static_cast<int64_t>(ids.size());
  state::Solo solo(ops, model, count, std::min(chunk, count));
  std::vector<float> logits;
  solo.feed(ids, &logits);
  return logits;
}

inline std::vector<float> last_rows(const std::vector<float>& logits, int64_t rows, int64_t width) {
  const auto count = std::min(logits.size(), static_cast<size_t>(rows * width));
  return {logits.end() - static_cast<std::ptrdiff_t>(count), logits.end()};
}

// Token ids below the tiny vocabulary, from a seed.
inline std::vector<int32_t> random_ids(int64_t count, uint64_t seed, int32_t vocabulary = 490) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<int32_t>(8 + (seed >> 33) % static_cast<uint64_t>(vocabulary - 8)));
  }
  return ids;
}

}  // namespace verbatim::model
