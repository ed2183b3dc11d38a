// What inspect and plan read: a checkpoint directory, or an inventory of headers with its config.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/checkpoint.h"
#include "model/config.h"

namespace verbatim::cli {

struct Source {
  checkpoint::Checkpoint checkpoint;
  model::Config config;
};

// `path` is a directory, or headers as .json or .json.gz: then config.json beside it or `config_path` is read.
// Throws what Checkpoint and parse_config throw.
Source open_source(const std::string& path, const std::string& config_path);

// "119GiB", "8 GB", "1024": bytes. Throws Error(kUsage).
int64_t parse_bytes(const std::string& text, const std::string& option);

// "79.735" for 2^30-byte units.
std::string gib(double bytes, int decimals = 3);

}  // namespace verbatim::cli
