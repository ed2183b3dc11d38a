// Products with stored weights at the released widths, against the read bandwidth of the same run.
//
// memory/...: two threads, weights rotated through more memory than the caches hold, so that each product reads them
// cold. cache/...: one thread's processor time, one matrix of 1 MiB, warm. Rows of activations: the last number.
// weights_GB/s counts stored bytes of weights (codes and block scales); of_read is its share of read_GB/s, what
// a plain read loop of the same threads reached before or after the product (the better). Bytes are decimal.
// Medians and spread: --benchmark_repetitions=7 --benchmark_report_aggregates_only.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/ops.h"

namespace verbatim::ops {
namespace {

constexpr int64_t kMemoryBytes = int64_t{1} << 30;  // several times any last-level cache
constexpr int64_t kCacheBytes = int64_t{1} << 20;

// One block of random bytes that all matrices are views of.
struct Pool {
  std::vector<uint8_t> bytes;
  std::vector<float> grid, x;

  Pool() : bytes(static_cast<size_t>(kMemoryBytes)), grid(1 << 16, 0.01f), x(64 * 8192) {
    std::mt19937_64 bits(1);
    for (size_t i = 0; i < bytes.size(); i += 8) {
      // Pairs of bytes read as bfloat16 lie between 2^-15 and 2^17; no byte is an e4m3 NaN.
      const uint64_t word = (bits() & 0x87778777'87778777u) | 0x38003800'38003800u;
      std::memcpy(bytes.data() + i, &word, 8);
    }
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(bits);
  }
};

Pool& memory() {
  static Pool pool;
  return pool;
}

ThreadPool& threads(int count) {
  static ThreadPool one(1), two(2);
  return count == 1 ? one : two;
}

int64_t weight_bytes(WeightForm form, int64_t rows, int64_t columns) {
  switch (form) {
    case WeightForm::kBf16: return 2 * rows * columns;
    case WeightForm::kF32: return 4 * rows * columns;
    case WeightForm::kNvfp4: return rows * columns / 2 + rows * columns / 16;
    case WeightForm::kFp8Block: return rows * columns;
  }
  return 0;
}

Matrix matrix_at(WeightForm form, int64_t rows, int64_t columns, int64_t offset) {
  Matrix w;
  w.form = form;
  w.rows = rows;
  w.columns = columns;
  const uint8_t* data = memory().bytes.data() + offset;
  w.data = reinterpret_cast<const std::byte*>(data);
  w.row_bytes = weight_bytes(form, 1, columns);
  if (form == WeightForm::kNvfp4) {
    w.row_bytes = columns / 2;
    w.block_scale = data + rows * columns / 2;
    w.block_scale_stride = columns / 16;
    w.matrix_scale = 0.01f;
  }
  if (form == WeightForm::kFp8Block) {
    w.grid_scale = memory().grid.data();
    w.grid_stride = columns / 128;
  }
  return w;
}

// Reads `bytes` of the pool once, four streams a thread, and returns bytes a second.
double read_once(int count, int64_t bytes) {
  const auto start = std::chrono::steady_clock::now();
  threads(count).for_each(bytes, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
    constexpr int64_t kStreams = 4;
    const int64_t length = (end - begin) / kStreams;
    uint64_t sums[8] = {};
    for (int64_t i = 0; i < length; i += 64)
      for (int64_t s = 0; s < kStreams; ++s) {
        const uint8_t* line = memory().bytes.data() + begin + s * length + i;
        __builtin_prefetch(line + 2048);
        for (int64_t j = 0; j < 8; ++j) {
          uint64_t word = 0;
          std::memcpy(&word, line + 8 * j, 8);
          sums[j] += word;
        }
      }
    benchmark::DoNotOptimize(std::accumulate(sums, sums + 8, uint64_t{0}));
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return static_cast<double>(bytes) / took.count();
}

void read(benchmark::State& state) {
  const auto count = static_cast<int>(state.range(0));
  for (auto _ : state) read_once(count, kMemoryBytes);
  state.SetBytesProcessed(state.iterations() * kMemoryBytes);
}

void product(benchmark::State& state, CpuIsa isa, WeightForm form, int64_t outputs, int64_t columns, int64_t rows,
             bool cold) {
  const int count = cold ? 2 : 1;
  const auto ops = make_cpu_ops(threads(count), isa);
  const int64_t bytes = weight_bytes(form, outputs, columns);
  const int64_t stride = (bytes + 4095) / 4096 * 4096;
  const int64_t places = cold ? kMemoryBytes / stride : 1;
  std::vector<float> y(static_cast<size_t>(outputs * rows));
  const double before = cold ? read_once(count, kMemoryBytes / 4) : 0;
  int64_t turn = 0;
  for (auto _ : state) {
    const Matrix w = matrix_at(form, outputs, columns, turn++ % places * stride);
    ops->matmul(w, memory().x.data(), columns, rows, 1, y.data(), outputs);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  state.counters["weights_GB/s"] =
      benchmark::Counter(static_cast<double>(bytes * state.iterations()) * 1e-9, benchmark::Counter::kIsRate);
  if (cold) {
    const double ceiling = std::max(before, read_once(count, kMemoryBytes / 4));
    state.counters["read_GB/s"] = ceiling * 1e-9;
    state.counters["of_read"] =
        benchmark::Counter(static_cast<double>(bytes * state.iterations()) / ceiling, benchmark::Counter::kIsRate);
  }
}

void add_products() {
  struct Set {
    const char* name;
    CpuIsa isa;
  };
  struct Form {
    const char* name;
    WeightForm form;
  };
  constexpr Set kSets[] = {{"plain", CpuIsa::kPlain}, {"avx2", CpuIsa::kAvx2}, {"avx512", CpuIsa::kAvx512}};
  constexpr Form kForms[] = {
      {"nvfp4", WeightForm::kNvfp4}, {"bf16", WeightForm::kBf16}, {"fp8", WeightForm::kFp8Block}};
  // Expert gate and up, expert down, attention output, q k v.
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{2048, 4096}, {4096, 2048}, {4096, 8192}, {24576, 4096}};
  for (const Set& set : kSets) {
    if (!cpu_isa_available(set.isa)) continue;
    for (const Form& form : kForms) {
      for (const auto& [outputs, columns] : kShapes) {
        for (const int64_t rows : {1, 2, 4, 8}) {
          if (set.isa == CpuIsa::kPlain && (rows > 1 || outputs > 4096)) continue;
          if (rows > 1 && outputs > 4096) continue;
          benchmark::RegisterBenchmark(
              fmt::format("memory/{}/{}/{}x{}/{}", set.name, form.name, outputs, columns, rows).c_str(),
              [=, form = form.form, isa = set.isa, outputs = outputs, columns = columns](benchmark::State& state) {
                product(state, isa, form, outputs, columns, rows, true);
              })
              ->UseRealTime();
        }
      }
      for (const int64_t rows : {1, 2, 4, 8, 64}) {
        if (set.isa == CpuIsa::kPlain && rows > 1) continue;
        const int64_t outputs = kCacheBytes / weight_bytes(form.form, 1, 4096) / 4 * 4;
        benchmark::RegisterBenchmark(fmt::format("cache/{}/{}/{}x4096/{}", set.name, form.name, outputs, rows).c_str(),
                                     [=, form = form.form, isa = set.isa](benchmark::State& state) {
                                       product(state, isa, form, outputs, 4096, rows, false);
                                     });
      }
    }
  }
}

}  // namespace
}  // namespace verbatim::ops

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RegisterBenchmark("read", verbatim::ops::read)->Arg(1)->Arg(2)->UseRealTime();
  verbatim::ops::add_products();
  verbatim::ops::memory();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
