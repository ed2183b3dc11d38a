#include "quantize/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "quantize/journal.h"
#include "quantize/manifest.h"

namespace verbatim::quantize {

namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::DType;
using checkpoint::TensorView;

constexpr size_t kMaxManifestBytes = 256 << 20;
constexpr size_t kShownProblems = 20;

// Problems from any thread, the first few kept.
class Problems {
 public:
  explicit Problems(std::vector<std::string>& list) : list_(list) {}
  void add(std::string text) {
    const std::lock_guard lock(mutex_);
    if (++count_ <= kShownProblems) list_.push_back(std::move(text));
  }
  // In the order of their texts, whatever thread found them first.
  void close() {
    std::sort(list_.begin(), list_.end());
    if (count_ > kShownProblems) list_.push_back(fmt::format("... and {} more", count_ - kShownProblems));
  }

 private:
  std::mutex mutex_;
  std::vector<std::string>& list_;
  uint64_t count_ = 0;
};

std::vector<std::pair<std::string, FileRecord>> listed_files(const fs::path& directory) {
  const fs::path path = directory / kManifestName;
  if (!fs::exists(path))
    fail(ErrorKind::kIo, path.string(), "not there; expected a directory that `verbatim convert` has finished{}",
         fs::exists(directory / kJournalName) ? "; this one is half made: convert again with --resume" : "");
  const auto manifest = nlohmann::json::parse(read_text_file(path, kMaxManifestBytes), nullptr, false);
  std::vector<std::pair<std::string, FileRecord>> files;
  try {
    if (manifest.at("format") != kManifestFormat)
      fail(ErrorKind::kFormat, path.string(), "format {}; expected {}", manifest.at("format").dump(), kManifestFormat);
    for (const auto& [name, record] : manifest.at("files").items()) {
      if (name.find('/') != std::string::npos)
        fail(ErrorKind::kFormat, path.string(), "lists the file '{}'; expected names in this directory", name);
      files.emplace_back(name, FileRecord{record.at("bytes").get<uint64_t>(), record.at("sha256").get<std::string>()});
    }
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::kFormat, path.string(), "not a manifest ({}); expected what `verbatim convert` wrote",
         error.what());
  }
  return files;
}

// Scales under one tensor name, if it is one.
uint64_t check_scales(const Checkpoint& stored, const TensorView& tensor, Problems& problems) {
  const bool block = tensor.name.ends_with(".weight_scale") && tensor.dtype == DType::kF8E4M3;
  const bool single = (tensor.name.ends_with(".weight_scale_2") || tensor.name.ends_with(".input_scale")) &&
                      tensor.dtype == DType::kF32;
  if (!block && !single) return 0;
  const std::span<const std::byte> bytes = stored.data(tensor);
  if (block) {
    const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) {
      const auto bits = std::to_integer<uint8_t>(b);
      return bits == 0 || bits >= 0x7f;  // zero; NaN, and what has a sign
    });
    if (bad != bytes.end())
      problems.add(fmt::format("{}: block {} is e4m3 0x{:02x}; expected a finite scale above 0", tensor.name,
                               bad - bytes.begin(), std::to_integer<unsigned>(*bad)));
    return bytes.size();
  }
  float value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  if (!std::isfinite(value) || !(value > 0))
    problems.add(fmt::format("{}: {}; expected a finite scale above 0", tensor.name, value));
  return 1;
}

}  // namespace

Verification verify_conversion(const fs::path& directory, ThreadPool& pool) {
  const auto files = listed_files(directory);
  Verification out;
  Problems problems(out.problems);
  std::mutex mutex;
  uint64_t total = 0;
  for (const auto& [name, record] : files) total += record.bytes;
  Progress progress("hashing " + directory.string(), total >> 20, "MiB");
  pool.for_each(static_cast<int64_t>(files.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [name, expected] = files[static_cast<size_t>(i)];
      if (!fs::is_regular_file(directory / name)) {
        problems.add(fmt::format("{}: not there; expected {} bytes", name, expected.bytes));
        continue;
      }
      const FileRecord found = hash_file(directory / name);
      if (found.bytes != expected.bytes)
        problems.add(fmt::format("{}: {} bytes; expected {}", name, found.bytes, expected.bytes));
      else if (found.sha256 != expected.sha256)
        problems.add(fmt::format("{}: SHA-256 {}; expected {}", name, found.sha256, expected.sha256));
      const std::lock_guard lock(mutex);
      ++out.files;
      progress.advance((out.bytes += found.bytes) >> 20);
    }
  });
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".safetensors" &&
        std::none_of(files.begin(), files.end(), [&](const auto& file) { return file.first == name; }))
      problems.add(fmt::format("{}: the manifest does not list it; expected no other shards", name));
  }

  const Checkpoint stored = Checkpoint::open(directory);
  std::vector<uint64_t> scales(stored.tensors().size());
  pool.for_each(static_cast<int64_t>(scales.size()), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const TensorView& tensor = stored.tensors()[static_cast<size_t>(i)];
      scales[static_cast<size_t>(i)] = check_scales(stored, tensor, problems);
      stored.release(tensor);
    }
  });
  for (size_t i = 0; i < scales.size(); ++i) {
    out.scales += scales[i];
    out.matrices += stored.tensors()[i].name.ends_with(".weight_scale") ? 1 : 0;
  }
  problems.close();
  return out;
}

}  // namespace verbatim::quantize
