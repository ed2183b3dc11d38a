#include "quantize/manifest.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace verbatim::quantize {

namespace {

using Json = nlohmann::ordered_json;

Json files_json(const std::map<std::string, FileRecord>& files) {
  Json out = Json::object();
  for (const auto& [name, record] : files) out[name] = {{"bytes", record.bytes}, {"sha256", record.sha256}};
  return out;
}

std::map<std::string, FileRecord> files_from(const Json& json) {
  std::map<std::string, FileRecord> out;
  for (const auto& [name, record] : json.items())
    out[name] = {record.at("bytes").get<uint64_t>(), record.at("sha256").get<std::string>()};
  return out;
}

Json errors_json(const GroupErrors& errors) {
  Json worst = Json::array();
  for (const auto& [error, module] : errors.worst) worst.push_back({{"matrix", module}, {"relative_error", error}});
  return {{"matrices", errors.matrices},
          {"relative_error", relative_error(errors.sums)},
          {"squared_error", errors.sums.error},
          {"squared_weight", errors.sums.weight},
          {"worst", worst}};
}

GroupErrors errors_from(const Json& json) {
  GroupErrors out;
  out.matrices = json.at("matrices").get<uint64_t>();
  out.sums = {json.at("squared_error").get<double>(), json.at("squared_weight").get<double>()};
  for (const Json& one : json.at("worst"))
    out.worst.emplace_back(one.at("relative_error").get<double>(), one.at("matrix").get<std::string>());
  return out;
}

const char* rule_text(ActivationRule rule) {
  switch (rule) {
    case ActivationRule::kNone: return "none";
    case ActivationRule::kLargest: return "largest";
    case ActivationRule::kPercentile: return "percentile";
  }
  return "none";
}

Json scales_json(const ActivationScales& scales) {
  Json out = Json::array();
  for (const auto& [key, site] : scales) {
    Json one = {{"container", container_name(key.group, key.layer)}, {"site", site_name(key.site)}};
    const bool same =
        std::all_of(site.values.begin(), site.values.end(), [first = site.values[0]](float v) { return v == first; });
    if (same)
      one["input_scale"] = site.values[0];
    else
      one["input_scale"] = site.values;
    one["rule"] = rule_text(site.rule);
    if (site.rule == ActivationRule::kPercentile) {
      one["percentile"] = site.percentile;
      one["pooled_values"] = site.pooled;
    }
    one["margin"] = site.margin;
    out.push_back(std::move(one));
  }
  return out;
}

Json without_data_json(const ActivationScales& scales) {
  Json out = Json::object();
  for (const auto& [key, site] : scales)
    if (!site.without_data.empty()) out[site_text(key)] = site.without_data;
  return out;
}

const char* fallback_text(const Recipe& recipe) {
  return recipe.activations == ActivationRule::kPercentile
             ? "an expert without data adds nothing to the percentile and takes the value of its layer and site"
             : "an expert without data takes the largest activation that the other experts of its layer and site met";
}

}  // namespace

double relative_error(const ErrorSums& sums) { return sums.weight > 0 ? std::sqrt(sums.error / sums.weight) : 0; }

void GroupErrors::add(const std::string& module, const ErrorSums& matrix) {
  GroupErrors one;
  one.matrices = 1;
  one.sums = matrix;
  one.worst = {{relative_error(matrix), module}};
  merge(one);
}

void GroupErrors::merge(const GroupErrors& other) {
  matrices += other.matrices;
  sums.error += other.sums.error;
  sums.weight += other.sums.weight;
  worst.insert(worst.end(), other.worst.begin(), other.worst.end());
  std::sort(worst.begin(), worst.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  worst.resize(std::min(worst.size(), kWorst));
}

Json to_json(const ShardRecord& record) {
  Json errors = Json::object();
  for (const auto& [group, sums] : record.errors) errors[group] = errors_json(sums);
  return {{"shard", record.file},
          {"bytes", record.written.bytes},
          {"sha256", record.written.sha256},
          {"sources", files_json(record.sources)},
          {"errors", errors}};
}

ShardRecord shard_record_from(const Json& json) {
  ShardRecord out;
  out.file = json.at("shard").get<std::string>();
  out.written = {json.at("bytes").get<uint64_t>(), json.at("sha256").get<std::string>()};
  out.sources = files_from(json.at("sources"));
  for (const auto& [group, errors] : json.at("errors").items()) out.errors[group] = errors_from(errors);
  return out;
}

std::string make_manifest(const ManifestParts& parts) {
  std::map<std::string, FileRecord> sources, files = parts.other_files;
  std::map<std::string, GroupErrors> errors;
  for (const ShardRecord& shard : parts.shards) {
    files[shard.file] = shard.written;
    sources.insert(shard.sources.begin(), shard.sources.end());
    for (const auto& [group, sums] : shard.errors) errors[group].merge(sums);
  }
  sources["config.json"] = parts.source_config;

  Json out;
  out["format"] = kManifestFormat;
  out["tool"] = {{"name", "verbatim"}, {"version", parts.tool_version}};
  out["identity"] = parts.identity;
  out["recipe"] = Json::parse(parts.recipe.text);
  out["source"] = {{"files", files_json(sources)}};
  if (parts.calibration != nullptr)
    out["calibration"] = {{"tokens", parts.calibration->tokens},
                          {"sequences", parts.calibration->sequences},
                          {"every_expert", parts.calibration->every_expert},
                          {"model_sha256", parts.calibration->model_sha256},
                          {"runs", parts.calibration->runs}};
  else
    out["calibration"] = nullptr;
  out["tensors"] = parts.plan.tensors;
  out["payload_bytes"] = parts.plan.payload_bytes;
  out["quantised_matrices"] = parts.plan.matrices;
  out["files"] = files_json(files);
  out["errors"] = Json::object();
  for (const auto& [group, sums] : errors) out["errors"][group] = errors_json(sums);
  out["activation_scales"] = scales_json(parts.scales);
  out["experts_without_data"] = without_data_json(parts.scales);
  if (!parts.scales.empty()) out["experts_without_data_rule"] = fallback_text(parts.recipe);
  return out.dump(1) + "\n";
}

}  // namespace verbatim::quantize
