// conversion_manifest.json: what was made, from what, how, and how well. It is written last: a directory that has it is
// whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "quantize/calibration.h"
#include "quantize/conversion_plan.h"
#include "quantize/nvfp4_bf16.h"
#include "quantize/scale_policy.h"
#include "quantize/source_reader.h"

namespace verbatim::quantize {

inline constexpr const char* kManifestName = "conversion_manifest.json";
inline constexpr const char* kManifestFormat = "verbatim-conversion-1";

// Errors of the matrices of one group.
struct GroupErrors {
  static constexpr size_t kWorst = 10;

  uint64_t matrices = 0;
  ErrorSums sums;
  std::vector<std::pair<double, std::string>> worst;  // relative error and module, largest first; ties by name

  void add(const std::string& module, const ErrorSums& matrix);
  void merge(const GroupErrors& other);
};
// sqrt(error / weight); 0 for zeros.
double relative_error(const ErrorSums& sums);

// What is known once a shard stands under its final name.
struct ShardRecord {
  std::string file;
  FileRecord written;
  std::map<std::string, FileRecord> sources;  // source files that were read to their end for it
  std::map<std::string, GroupErrors> errors;  // by group name
};
nlohmann::ordered_json to_json(const ShardRecord& record);
// Throws nlohmann's exceptions for anything else.
ShardRecord shard_record_from(const nlohmann::ordered_json& json);

struct ManifestParts {
  std::string tool_version, identity;
  const Recipe& recipe;
  const ConversionPlan& plan;
  const ActivationScales& scales;
  const Calibration* calibration = nullptr;
  std::vector<ShardRecord> shards;
  std::map<std::string, FileRecord> other_files;
  FileRecord source_config;
};
std::string make_manifest(const ManifestParts& parts);

}  // namespace verbatim::quantize
