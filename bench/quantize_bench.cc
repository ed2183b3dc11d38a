// Quantising bfloat16 matrices against what the memory allows: reading the source and writing the result, measured in
// the same run, on the same threads. A weight is 2 bytes in and 9/16 bytes out.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/formats.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "quantize/conversion_plan.h"
#include "quantize/matrix_batch.h"

namespace verbatim::quantize {
namespace {

constexpr int64_t kRows = 2048, kColumns = 4096, kMatrices = 64;  // 1 GiB: gate projections of the released experts
constexpr int64_t kWeights = kRows * kColumns * kMatrices;
constexpr int64_t kResultBytes = kWeights / 2 + kWeights / 16;

ThreadPool& pool() {
  static ThreadPool threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  return threads;
}

// The matrices as the converter holds them between reading and writing.
struct Batch {
  checkpoint::TensorView view;
  ConversionItem item;
  MatrixBatch batch;

  Batch() {
    view.name = "bench";
    view.dtype = checkpoint::DType::kBF16;
    item.source = &view;
    item.quantised = true;
    item.rows = kRows;
    item.columns = kColumns;
    batch.source.reserve(2 * kWeights);
    batch.result.reserve(kResultBytes + 64 * kMatrices);
    auto* weights = reinterpret_cast<uint16_t*>(batch.source.data());
    pool().for_each(kWeights, 1 << 20, [&](int64_t begin, int64_t end) {
      uint64_t state = static_cast<uint64_t>(begin);
      for (int64_t i = begin; i < end; ++i) {
        float sum = 0;
        for (int j = 0; j < 4; ++j) {
          state = state * 6364136223846793005u + 1442695040888963407u;
          sum += static_cast<float>(state >> 40) - 8388608.0f;
        }
        weights[i] = float_to_bf16(sum * 1e-9f);
      }
    });
    const size_t result = kRows * kColumns / 2 + kRows * kColumns / 16 + 64;
    for (int64_t m = 0; m < kMatrices; ++m) {
      BatchPiece piece;
      piece.item = &item;
      piece.bytes = 2 * kRows * kColumns;
      piece.source_at = static_cast<size_t>(m * 2 * kRows * kColumns);
      piece.result_at = static_cast<size_t>(m) * result;
      piece.result_bytes = result;
      note_largest(batch, piece);
      batch.pieces.push_back(piece);
    }
  }
};
MatrixBatch& batch() {
  static auto* const one = new Batch;
  return one->batch;
}

void report(benchmark::State& state) {
  state.counters["weights/s"] =
      benchmark::Counter(static_cast<double>(kWeights), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["bytes/s"] = benchmark::Counter(static_cast<double>(2 * kWeights + kResultBytes),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

// The bound: every source byte read, every result byte written, nothing computed.
void memory(benchmark::State& state) {
  MatrixBatch& b = batch();
  const auto* source = reinterpret_cast<const uint64_t*>(b.source.data());
  auto* result = b.result.data();
  for (auto _ : state)
    pool().for_each(kWeights / 4096, 64, [&](int64_t begin, int64_t end) {
      uint64_t sums[8] = {};
      for (int64_t i = begin * 1024; i < end * 1024; i += 8)
        for (int j = 0; j < 8; ++j) sums[j] += source[i + j];
      uint64_t sum = 0;
      for (const uint64_t s : sums) sum += s;
      std::memset(result + begin * 2304, static_cast<int>(sum & 255), static_cast<size_t>((end - begin) * 2304));
    });
  report(state);
}
BENCHMARK(memory)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime()->UseRealTime();

// As convert does it once the weights are read and their largest magnitude noted: scales, codes, sums of the errors.
void quantise_with_errors(benchmark::State& state) {
  for (auto _ : state) quantise_batch(batch(), pool());
  report(state);
}
BENCHMARK(quantise_with_errors)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime()->UseRealTime();

// Largest magnitude, scales and codes from memory, matrix by matrix: what ModelOpt's quantise computes.
void quantise(benchmark::State& state) {
  MatrixBatch& b = batch();
  const Bf16Kernels& kernels = state.range(0) == 0 ? plain_bf16_kernels() : bf16_kernels();
  for (auto _ : state)
    pool().for_each(kMatrices, 1, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) {
        const BatchPiece& piece = b.pieces[static_cast<size_t>(m)];
        const auto* weights = reinterpret_cast<const uint16_t*>(b.source.data() + piece.source_at);
        auto* codes = reinterpret_cast<uint8_t*>(b.result.data() + piece.result_at);
        const Bf16Encoder encoder(kernels.largest(weights, kRows * kColumns), kernels);
        encoder.encode(weights, kRows * kColumns / 16, codes, codes + kRows * kColumns / 2);
      }
    });
  report(state);
}
BENCHMARK(quantise)
    ->ArgName("best")
    ->Arg(1)
    ->Arg(0)
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

// Its passes alone: 0 the largest magnitude, 1 scales and codes, 2 the errors.
void pass(benchmark::State& state) {
  MatrixBatch& b = batch();
  const Bf16Kernels& kernels = bf16_kernels();
  const auto* first = reinterpret_cast<const uint16_t*>(b.source.data());
  const Bf16Encoder encoder(kernels.largest(first, kRows * kColumns));
  constexpr int64_t kUnit = 1 << 17;
  for (auto _ : state)
    pool().for_each(kWeights / kUnit, 1, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const uint16_t* weights = first + unit * kUnit;
        auto* codes = reinterpret_cast<uint8_t*>(b.result.data()) + unit * (kUnit / 2 + kUnit / 16);
        auto* scales = codes + kUnit / 2;
        if (state.range(0) == 0) benchmark::DoNotOptimize(kernels.largest(weights, kUnit));
        if (state.range(0) == 1) encoder.encode(weights, kUnit / 16, codes, scales);
        if (state.range(0) == 2) benchmark::DoNotOptimize(encoder.errors(weights, kUnit / 16, codes, scales));
      }
    });
  report(state);
}
BENCHMARK(pass)->DenseRange(0, 2)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime()->UseRealTime();

// What hashing costs, on one thread: the converter hashes what it reads and what it writes.
void sha256(benchmark::State& state) {
  for (auto _ : state) {
    Sha256 digest;
    digest.update({batch().source.data(), size_t{256} << 20});
    benchmark::DoNotOptimize(digest.finish());
  }
  state.SetBytesProcessed(state.iterations() * (int64_t{256} << 20));
}
BENCHMARK(sha256)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace verbatim::quantize
