#include "quantize/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/sha256.h"
#include "checkpoint/safetensors.h"

namespace verbatim::quantize {

namespace {

using checkpoint::DType;
using checkpoint::TensorSpec;
using model::Group;

constexpr const char* kFormat = "verbatim-calibration-1";
constexpr Group kGroups[] = {Group::kRoutedExperts, Group::kDenseMlp, Group::kSharedExperts};

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

int64_t parse_integer(const std::string& text, const std::string& where) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    fail(ErrorKind::kFormat, where, "'{}' in a calibration's metadata; expected a count", text);
  return value;
}

// Calls visit(name, dtype, shape, values) for every tensor of a calibration file, in its order.
template <typename Sites, typename Routed, typename Visit>
void for_each_tensor(Sites& sites, Routed& routed, const Visit& visit) {
  for (auto& [key, record] : sites) {
    const std::string prefix = container_name(key.group, key.layer) + "." + site_name(key.site);
    const int64_t experts = record.experts();
    visit(prefix + ".largest", DType::kF32, checkpoint::Shape{experts}, record.largest);
    visit(prefix + ".seen", DType::kI64, checkpoint::Shape{experts}, record.seen);
    visit(prefix + ".histogram", DType::kI64, checkpoint::Shape{experts, kHistogramBins}, record.histogram);
  }
  for (auto& [layer, counts] : routed)
    visit(container_name(Group::kRoutedExperts, layer) + ".routed", DType::kI64,
          checkpoint::Shape{static_cast<int64_t>(counts.size())}, counts);
}

}  // namespace

std::string container_name(Group group, int64_t layer) {
  const char* pattern = group == Group::kRoutedExperts   ? "model.language_model.layers.{L}.mlp.experts"
                        : group == Group::kSharedExperts ? "model.language_model.layers.{L}.mlp.shared_experts"
                                                         : "model.language_model.layers.{L}.mlp";
  return model::tensor_name(pattern, layer, 0);
}

std::string site_text(const SiteKey& key) { return container_name(key.group, key.layer) + " " + site_name(key.site); }

int64_t histogram_bin(float magnitude) {
  constexpr int64_t kFirst = (127 - 24) * 4;  // exponent and two bits of mantissa of 2^-24
  const auto quarter = static_cast<int64_t>(std::bit_cast<uint32_t>(magnitude) >> 21);
  return std::clamp<int64_t>(quarter - kFirst + 1, 0, kHistogramBins - 1);
}

float histogram_bin_begin(int64_t bin) {
  if (bin <= 0) return 0;
  return std::ldexp(1.0f + static_cast<float>((bin - 1) % 4) / 4, static_cast<int>((bin - 1) / 4) - 24);
}

SiteRecord::SiteRecord(int64_t experts)
    : largest(static_cast<size_t>(experts)),
      seen(static_cast<size_t>(experts)),
      histogram(static_cast<size_t>(experts * kHistogramBins)) {}

void SiteRecord::add(int64_t expert, std::span<const float> row) {
  float most = largest[static_cast<size_t>(expert)];
  int64_t* bins = histogram.data() + expert * kHistogramBins;
  bool finite = true;
  for (const float value : row) {
    const float magnitude = std::fabs(value);
    finite = finite && magnitude <= std::numeric_limits<float>::max();
    most = std::max(most, magnitude);
    ++bins[histogram_bin(magnitude)];
  }
  largest[static_cast<size_t>(expert)] = finite ? most : std::numeric_limits<float>::infinity();
  ++seen[static_cast<size_t>(expert)];
}

void SiteRecord::merge(const SiteRecord& other) {
  for (size_t i = 0; i < largest.size(); ++i) largest[i] = std::max(largest[i], other.largest[i]);
  for (size_t i = 0; i < seen.size(); ++i) seen[i] += other.seen[i];
  for (size_t i = 0; i < histogram.size(); ++i) histogram[i] += other.histogram[i];
}

std::string model_identity(const checkpoint::Checkpoint& source) {
  Sha256 digest;
  digest.update(std::as_bytes(std::span(source.config_text())));
  for (const checkpoint::TensorView& tensor : source.tensors()) {
    const std::string line =
        fmt::format("{} {} {}\n", tensor.name, checkpoint::dtype_name(tensor.dtype), tensor.shape.text());
    digest.update(std::as_bytes(std::span(line)));
  }
  return to_hex(digest.finish());
}

Calibration empty_calibration(const model::Config& config) {
  Calibration out;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const bool sparse = config.ffn(layer) == model::FfnKind::kSparse;
    for (const Site site : {Site::kW13, Site::kW2}) {
      if (sparse) out.sites.emplace(SiteKey{Group::kRoutedExperts, layer, site}, SiteRecord(config.experts));
      out.sites.emplace(SiteKey{sparse ? Group::kSharedExperts : Group::kDenseMlp, layer, site}, SiteRecord(1));
    }
    if (sparse) out.routed[layer].resize(static_cast<size_t>(config.experts));
  }
  return out;
}

void save_calibration(const Calibration& calibration, const std::filesystem::path& path) {
  std::vector<TensorSpec> specs;
  std::vector<std::span<const std::byte>> data;
  for_each_tensor(calibration.sites, calibration.routed,
                  [&](const std::string& name, DType dtype, const checkpoint::Shape& shape, const auto& values) {
                    specs.push_back({name, dtype, shape});
                    data.push_back(bytes_of(values));
                  });
  checkpoint::SafetensorsWriter writer(path, std::move(specs),
                                       {{"format", kFormat},
                                        {"tokens", std::to_string(calibration.tokens)},
                                        {"sequences", std::to_string(calibration.sequences)},
                                        {"every_expert", calibration.every_expert ? "1" : "0"},
                                        {"model_sha256", calibration.model_sha256},
                                        {"runs", fmt::format("{}", fmt::join(calibration.runs, " "))}});
  for (const auto bytes : data) writer.append(bytes);
  writer.finish();
}

Calibration load_calibration(const std::filesystem::path& path) {
  const std::string where = path.string();
  const checkpoint::SafetensorsFile file(path);
  const auto& metadata = file.header().metadata;
  auto text = [&](const char* key) {
    const auto it = metadata.find(key);
    if (it == metadata.end())
      fail(ErrorKind::kFormat, where, "no {} in its metadata; expected a calibration file", key);
    return it->second;
  };
  if (text("format") != kFormat) fail(ErrorKind::kFormat, where, "format '{}'; expected {}", text("format"), kFormat);
  Calibration out;
  out.tokens = parse_integer(text("tokens"), where);
  out.sequences = parse_integer(text("sequences"), where);
  out.every_expert = text("every_expert") == "1";
  out.model_sha256 = text("model_sha256");
  for (std::string runs = text("runs"); !runs.empty();) {
    const size_t space = std::min(runs.find(' '), runs.size());
    out.runs.push_back(runs.substr(0, space));
    runs.erase(0, space + 1);
  }
  // Which sites there are follows from the names.
  for (const checkpoint::HeaderTensor& tensor : file.header().tensors) {
    for (int64_t layer = 0; layer < 4096; ++layer) {
      const std::string prefix = model::tensor_name("model.language_model.layers.{L}.", layer, 0);
      if (!tensor.name.starts_with(prefix)) continue;
      const int64_t experts = tensor.shape.size() > 0 ? tensor.shape[0] : 0;
      for (const Group group : kGroups) {
        for (const Site site : {Site::kW13, Site::kW2})
          if (tensor.name == container_name(group, layer) + "." + site_name(site) + ".largest")
            out.sites.emplace(SiteKey{group, layer, site}, SiteRecord(experts));
      }
      if (tensor.name == container_name(Group::kRoutedExperts, layer) + ".routed")
        out.routed[layer].resize(static_cast<size_t>(experts));
      break;
    }
  }
  size_t read = 0;
  for_each_tensor(
      out.sites, out.routed, [&](const std::string& name, DType dtype, const checkpoint::Shape& shape, auto& values) {
        const checkpoint::HeaderTensor& tensor = file.at(name);
        if (tensor.dtype != dtype || tensor.shape != shape)
          fail(ErrorKind::kFormat, where, "tensor {}: {} {}; expected {} {}", name,
               checkpoint::dtype_name(tensor.dtype), tensor.shape.text(), checkpoint::dtype_name(dtype), shape.text());
        const auto bytes = file.data(tensor);
        std::memcpy(values.data(), bytes.data(), bytes.size());
        ++read;
      });
  if (read == 0 || read != file.header().tensors.size())
    fail(ErrorKind::kFormat, where, "{} tensors, of which {} belong to sites; expected a calibration file",
         file.header().tensors.size(), read);
  for (const auto& [key, record] : out.sites)
    for (const float most : record.largest)
      if (!std::isfinite(most) || most < 0)
        fail(ErrorKind::kFormat, where, "{}: a largest magnitude of {}; expected finite numbers", site_text(key), most);
  return out;
}

void merge_calibration(Calibration& into, const Calibration& other) {
  static constexpr const char* kWhere = "calibration merge";
  if (into.model_sha256 != other.model_sha256)
    fail(ErrorKind::kUsage, kWhere, "calibrations of the models {} and {}; expected runs of one model",
         into.model_sha256, other.model_sha256);
  if (into.every_expert != other.every_expert)
    fail(ErrorKind::kUsage, kWhere, "one run evaluated every expert, the other the routed ones; expected the same");
  for (const std::string& run : other.runs)
    if (std::find(into.runs.begin(), into.runs.end(), run) != into.runs.end())
      fail(ErrorKind::kUsage, kWhere, "the run {} is in both; its tokens would be counted twice", run);
  for (const auto& [key, record] : other.sites) {
    const auto it = into.sites.find(key);
    if (it == into.sites.end() || it->second.experts() != record.experts() || into.sites.size() != other.sites.size())
      fail(ErrorKind::kUsage, kWhere, "{} is not alike in both; expected the same sites", site_text(key));
    it->second.merge(record);
  }
  for (const auto& [layer, counts] : other.routed) {
    std::vector<int64_t>& sum = into.routed[layer];
    sum.resize(counts.size());
    for (size_t i = 0; i < counts.size(); ++i) sum[i] += counts[i];
  }
  into.tokens += other.tokens;
  into.sequences += other.sequences;
  into.runs.insert(into.runs.end(), other.runs.begin(), other.runs.end());
}

}  // namespace verbatim::quantize
