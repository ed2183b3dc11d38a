// Checkpoints of random weights in the released layout: small ones for tests and demonstrations, or the released widths
// with few layers and experts. Everything follows from the table and the seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "model/glm.h"

namespace verbatim {
class ThreadPool;
}

namespace verbatim::model {

enum class SynthSize { kTiny, kReleased };
enum class SynthForm { kBf16, kNvfp4, kW4a4Experts };

struct SynthOptions {
  SynthSize size = SynthSize::kTiny;
  SynthForm form = SynthForm::kBf16;
  int64_t layers = 0, experts = 0;  // 0: 8 and 16 for tiny, 4 and 16 for released
  uint64_t seed = 0;
  uint64_t shard_bytes = uint64_t{4} << 30;
};

// config.json of such a checkpoint.
std::string synth_config(const SynthOptions& options);

// Creates `directory` (which must not hold a checkpoint) and writes config.json, generation_config.json,
// hf_quant_config.json where quantised, the shards and their index. The bytes depend on `options` alone. A weight is a
// sum of four uniform 16-bit numbers, centred and scaled as its role asks, rounded to what is stored. Throws
// Error(kUsage), Error(kIo).
void synthesise(const std::filesystem::path& directory, const SynthOptions& options, ThreadPool& pool);

// The model that such a checkpoint gives (BF16 or NVFP4 forms, --precision full), made in the memory of `ops`, which
// must outlive it: on a device that can, by the device itself, tensor by tensor, with the same bits. Throws
// Error(kCapacity), Error(kUsage).
Model synthetic_model(ops::Ops& ops, const SynthOptions& options, bool with_next_n, int sum_parts, ThreadPool& pool);

}  // namespace verbatim::model
