#include "cli/bench_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"

namespace verbatim::cli {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double cpu_read_bandwidth(ThreadPool& pool) {
  std::vector<uint64_t> data(size_t{1} << 27, 1);
  double best = 0;
  std::vector<uint64_t> sums(1024);
  for (int pass = 0; pass < 5; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    const auto piece = static_cast<int64_t>(data.size() / sums.size());
    pool.for_each(std::ssize(sums), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto from = data.begin() + i * piece;
        sums[static_cast<size_t>(i)] = std::accumulate(from, from + piece, uint64_t{0});
      }
    });
    best = std::max(best, static_cast<double>(data.size() * sizeof(uint64_t)) / seconds_since(start));
  }
  if (std::accumulate(sums.begin(), sums.end(), uint64_t{0}) != data.size())
    fail(ErrorKind::kIo, "bench", "memory is faulty");
  return best;
}

}  // namespace verbatim::cli
