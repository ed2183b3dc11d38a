#include "cli/source.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/error.h"

namespace verbatim::cli {

Source open_source(const std::string& path, const std::string& config_path) {
  namespace fs = std::filesystem;
  using checkpoint::Checkpoint;
  if (!fs::is_directory(path)) {
    const fs::path config = config_path.empty() ? fs::path(path).parent_path() / "config.json" : fs::path(config_path);
    if (!fs::exists(path)) fail(ErrorKind::kIo, path, "no such file or directory");
    if (!fs::exists(config))
      fail(ErrorKind::kIo, path, "a headers file needs its config: none at {}; give --config FILE", config.string());
    Source source{Checkpoint::from_inventory(path, config), {}};
    source.config = model::parse_config(source.checkpoint.config_text(), config.string());
    return source;
  }
  if (!config_path.empty())
    fail(ErrorKind::kUsage, "--config", "has no effect on a directory, whose own config.json is read");
  Source source{Checkpoint::open(path), {}};
  source.config = model::parse_config(source.checkpoint.config_text(), (fs::path(path) / "config.json").string());
  if (const auto& text = source.checkpoint.generation_config_text())
    model::apply_generation_config(source.config, *text, (fs::path(path) / "generation_config.json").string());
  return source;
}

int64_t parse_bytes(const std::string& text, const std::string& option) {
  static constexpr struct {
    const char* name;
    double bytes;
  } kUnits[] = {{"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(end, text.data() + text.size());
  std::erase(unit, ' ');
  for (const auto& known : kUnits) {
    const double bytes = value * known.bytes;
    if (error == std::errc() && unit == known.name && value >= 0 && bytes < 0x1p62) return std::llround(bytes);
  }
  fail(ErrorKind::kUsage, option, "found {}; expected a size such as 119GiB or 80GB", text);
}

std::string gib(double bytes, int decimals) { return fmt::format("{:.{}f}", bytes / 0x1p30, decimals); }

}  // namespace verbatim::cli
