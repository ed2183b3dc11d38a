#include "cli/bench_load.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/file_reader.h"
#include "base/process_memory.h"
#include "checkpoint/checkpoint.h"
#include "cli/bench_statistics.h"
#include "cli/source.h"

namespace verbatim::cli {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Above this share in memory before a pass, its rate is said not to be the disk's.
constexpr double kNotCold = 0.01;

struct Files {
  std::vector<fs::path> paths;
  uint64_t bytes = 0, payload_bytes = 0;
};

// Maps headers only while it looks, as mapped pages are not dropped.
Files files_of(const std::string& directory) {
  const checkpoint::Checkpoint stored = checkpoint::Checkpoint::open(directory);
  std::set<fs::path> paths;
  for (uint32_t raw = 0; raw < stored.raw_count(); ++raw) paths.insert(stored.file_of(raw));
  Files files{{paths.begin(), paths.end()}, 0, stored.payload_bytes()};
  for (const fs::path& path : files.paths) files.bytes += fs::file_size(path);
  return files;
}

uint64_t cached_of(const Files& files) {
  return std::accumulate(files.paths.begin(), files.paths.end(), uint64_t{0},
                         [](uint64_t sum, const fs::path& path) { return sum + cached_bytes(path); });
}

// What is still in memory afterwards.
uint64_t drop(const Files& files) {
  for (const fs::path& path : files.paths) drop_cached_pages(path);
  return cached_of(files);
}

// The repeats of one way to read the files.
struct Passes {
  std::vector<double> seconds, bytes_per_s;
  uint64_t bytes = 0;         // of the last pass
  uint64_t cached_bytes = 0;  // before a pass, the most

  void add(uint64_t bytes_moved, uint64_t cached_before, Clock::time_point start, Clock::time_point end) {
    bytes = bytes_moved;
    cached_bytes = std::max(cached_bytes, cached_before);
    seconds.push_back(std::chrono::duration<double>(end - start).count());
    bytes_per_s.push_back(static_cast<double>(bytes) / seconds.back());
  }
};

struct Measured {
  std::string backend;
  int threads = 0;
  Passes load, plain_read;
  bool copies = false;               // else weights stay where they are mapped, read when they are used
  uint64_t peak_bytes = 0;           // resident, the most of the loads
  bool peak_is_of_the_load = false;  // else since the program began
};

// Counts what the backend copied; where it copies nothing, what of the files came into memory.
void load(const RunOptions& options, const Files& files, Measured& result) {
  const uint64_t before = drop(files);
  result.peak_is_of_the_load = reset_peak_resident();
  const auto start = Clock::now();
  const Loaded loaded(options);
  loaded.ops->synchronise();
  const auto end = Clock::now();
  result.peak_bytes = std::max(result.peak_bytes, peak_resident_bytes());
  result.backend = loaded.ops->name();
  result.threads = loaded.pool.threads();
  result.copies = loaded.uploaded_bytes > 0;
  const uint64_t after = result.copies ? 0 : cached_of(files);
  result.load.add(result.copies ? loaded.uploaded_bytes : after - std::min(after, before), before, start, end);
}

void read_plainly(const Files& files, Measured& result) {
  std::vector<std::byte> piece(FileReader::kPieceBytes);
  const uint64_t before = drop(files);
  uint64_t bytes = 0;
  const auto start = Clock::now();
  for (const fs::path& path : files.paths) {
    FileReader file(path);
    while (const size_t n = file.read(piece)) {
      bytes += n;
      file.drop_behind();
    }
  }
  result.plain_read.add(bytes, before, start, Clock::now());
}

double share(uint64_t part, uint64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

double load_beside_plain_read(const Measured& m) {
  return median(m.load.bytes_per_s) / median(m.plain_read.bytes_per_s);
}

nlohmann::ordered_json as_json(const Passes& passes, const Files& files) {
  return {{"bytes", passes.bytes},
          {"seconds", median(passes.seconds)},
          {"slowest_seconds", *std::max_element(passes.seconds.begin(), passes.seconds.end())},
          {"bytes_per_s", median(passes.bytes_per_s)},
          {"slowest_bytes_per_s", *std::min_element(passes.bytes_per_s.begin(), passes.bytes_per_s.end())},
          {"cached_before", share(passes.cached_bytes, files.bytes)}};
}

void print_row(const char* name, const Passes& passes, const Files& files) {
  const nlohmann::ordered_json row = as_json(passes, files);
  const auto number = [&](const char* key, double unit) { return row[key].get<double>() / unit; };
  fmt::print("{:<12} {:>10.3f} {:>20} {:>20} {:>14.1f} %\n", name, number("bytes", 1e9),
             fmt::format("{:.2f} ({:.2f})", number("seconds", 1), number("slowest_seconds", 1)),
             fmt::format("{:.3f} ({:.3f})", number("bytes_per_s", 1e9), number("slowest_bytes_per_s", 1e9)),
             number("cached_before", 0.01));
}

void print(const Measured& m, const Files& files, int64_t repeats) {
  fmt::print("{}, {} threads; {} files, {} bytes, {} of them tensors; median (slowest) of {}\n\n", m.backend, m.threads,
             files.paths.size(), files.bytes, files.payload_bytes, repeats);
  fmt::print("{:<12} {:>10} {:>20} {:>20} {:>16}\n", "", "GB", "seconds", "GB/s", "cached before");
  print_row("plain read", m.plain_read, files);
  print_row("load", m.load, files);
  fmt::print("\nthe load reaches {:.2f} of the plain read's rate; its bytes are those {}\n", load_beside_plain_read(m),
             m.copies ? "copied to the backend"
                      : "read on the way: weights stay in the mapped files and are read when they are first used");
  const uint64_t cached = std::max(m.plain_read.cached_bytes, m.load.cached_bytes);
  if (share(cached, files.bytes) > kNotCold)
    fmt::print("the system kept up to {:.1f} % of the files in memory: these rates are not the disk's alone\n",
               100 * share(cached, files.bytes));
  fmt::print("peak host memory {} {} GiB; weights {} GiB\n",
             m.peak_is_of_the_load ? "of the load" : "since the program began", gib(static_cast<double>(m.peak_bytes)),
             m.copies ? "on the host 0" : "mapped on the host " + gib(static_cast<double>(files.payload_bytes)));
}

}  // namespace

void bench_load(const RunOptions& options, int64_t repeats, bool json) {
  const Files files = files_of(options.path);
  Measured m;
  for (int64_t i = 0; i < repeats; ++i) {
    load(options, files, m);  // first, as it refuses
    read_plainly(files, m);
  }
  if (!json) {
    print(m, files, repeats);
    return;
  }
  nlohmann::ordered_json out;
  out["backend"] = m.backend;
  out["threads"] = m.threads;
  out["files"] = files.paths.size();
  out["file_bytes"] = files.bytes;
  out["payload_bytes"] = files.payload_bytes;
  out["plain_read"] = as_json(m.plain_read, files);
  out["load"] = as_json(m.load, files);
  out["load"]["copies"] = m.copies;
  out["load_beside_plain_read"] = load_beside_plain_read(m);
  out["peak_host_bytes"] = m.peak_bytes;
  out["peak_is_of_the_load"] = m.peak_is_of_the_load;
  out["host_weight_bytes"] = m.copies ? 0 : files.payload_bytes;
  fmt::print("{}\n", out.dump(2));
}

}  // namespace verbatim::cli
