// Linear and sparse attention at the released model's shapes. Bytes are what the operator must read at least once:
// KDA the state S and the rows since; sparse attention the visible latents; the indexer the pool keys.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "ops/ops.h"

namespace verbatim::ops {
namespace {

struct Backend {
  Backend(const benchmark::State& run)
      : pool(static_cast<int>(run.range(0))), ops(make_cpu_ops(pool, static_cast<CpuIsa>(run.range(1)))) {}
  // Random, small values.
  Buffer floats(int64_t count) {
    std::mt19937 bits(1);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    Buffer buffer(*ops, static_cast<size_t>(count) * 4);
    for (int64_t i = 0; i < count; ++i) buffer.floats()[i] = uniform(bits);
    return buffer;
  }
  ThreadPool pool;
  std::unique_ptr<Ops> ops;
};

bool skip(benchmark::State& run) {
  if (cpu_isa_available(static_cast<CpuIsa>(run.range(1)))) return false;
  run.SkipWithError("this machine lacks the instruction set");
  return true;
}

void report(benchmark::State& run, int64_t rows, int64_t bytes) {
  run.SetItemsProcessed(run.iterations() * rows);
  run.SetBytesProcessed(run.iterations() * bytes);
}

// Arguments: threads, instruction set, rows; one sequence, one layer.
void kda(benchmark::State& run) {
  if (skip(run)) return;
  Backend backend(run);
  const int64_t rows = run.range(2), channels = 64 * 128;
  KdaShape shape{.heads = 64, .width = 128};
  const Buffer taps = backend.floats(channels * 4), a_log = backend.floats(64), bias = backend.floats(channels),
               norm = backend.floats(128), inputs = backend.floats(rows * channels), beta = backend.floats(rows * 64),
               out = backend.floats(rows * channels), state = backend.floats(channels * 128),
               conv = backend.floats(kConvRing * 3 * channels), key = backend.floats(kKdaRing * channels),
               value = backend.floats(kKdaRing * channels), decay = backend.floats(kKdaRing * channels);
  const KdaWeights weights{taps.floats(), taps.floats(), taps.floats(), a_log.floats(), bias.floats(), norm.floats()};
  const KdaInputs in{inputs.floats(), inputs.floats(), inputs.floats(),
                     inputs.floats(), inputs.floats(), beta.floats()};
  const KdaState kept{state.floats(), conv.floats(), key.floats(), value.floats(), decay.floats()};
  Span span{.rows = rows, .certain = rows};
  for (auto _ : run) {
    backend.ops->kda(shape, weights, in, kept, {&span, 1}, rows, out.floats());
    span.state_position = state_position_after(span);
    span.position += rows;
  }
  // A decode step: S once and on average half a chunk of rows; an advance (read and write) every 16 rows.
  const int64_t s_bytes = channels * 128 * 4, chunks = (rows + 15) / 16;
  report(run, rows, chunks * s_bytes + 3 * 8 * channels * 4 + 2 * s_bytes * rows / 16);
}

// Arguments: threads, instruction set, rows; 2,048 visible latents of 512 for 64 heads.
void sparse_attention(benchmark::State& run) {
  if (skip(run)) return;
  Backend backend(run);
  const int64_t rows = run.range(2), tokens = 32768, width = 512, heads = 64;
  const IndexShape shape{.heads = 32, .width = 128};
  const Buffer latents = backend.floats(tokens * width), q = backend.floats(rows * heads * width),
               out = backend.floats(rows * heads * width), chosen = backend.floats(rows * 512),
               counts = backend.floats(rows);
  std::vector<int32_t> pages(static_cast<size_t>(tokens / kPageTokens));
  std::iota(pages.begin(), pages.end(), 0);
  std::mt19937 bits(2);
  for (int64_t r = 0; r < rows; ++r) {
    counts.ints()[r] = 512;
    for (int64_t i = 0; i < 512; ++i) chosen.ints()[r * 512 + i] = static_cast<int32_t>(16 * i + bits() % 16);
  }
  const Span span{.rows = rows, .position = tokens - rows - 1, .certain = rows, .pages = pages.data()};
  const LatentCache cache{.latents = latents.floats()};
  const Selection selection{chosen.ints(), counts.ints()};
  for (auto _ : run)
    backend.ops->sparse_attention(shape, heads, width, 0.0625f, q.floats(), {&span, 1}, cache, selection, out.floats());
  report(run, rows, rows * 2048 * width * 4);
}

// Arguments: threads, instruction set, rows; 7,936 pools (31,744 tokens) of 128 for 32 index heads, 512 chosen.
void select_pools(benchmark::State& run) {
  if (skip(run)) return;
  Backend backend(run);
  const int64_t rows = run.range(2), tokens = 31744;
  const IndexShape shape{.heads = 32, .width = 128};
  const Buffer pools = backend.floats(tokens / 4 * 128), q = backend.floats(rows * 32 * 128),
               head_weights = backend.floats(rows * 32), chosen = backend.floats(rows * 512),
               counts = backend.floats(rows);
  std::vector<int32_t> pages(static_cast<size_t>(tokens / kPageTokens));
  std::iota(pages.begin(), pages.end(), 0);
  const Span span{.rows = rows, .position = tokens - rows, .certain = rows, .pages = pages.data()};
  const LatentCache cache{.pools = pools.floats()};
  const Selection selection{chosen.ints(), counts.ints()};
  for (auto _ : run) backend.ops->select_pools(shape, q.floats(), head_weights.floats(), {&span, 1}, cache, selection);
  report(run, rows, rows * tokens / 4 * 128 * 4);
}

// Arguments: threads, instruction set, rows; kv_b of 64 heads, 256 keys and 256 values of 512 columns, BF16.
void absorb(benchmark::State& run) {
  if (skip(run)) return;
  Backend backend(run);
  const int64_t rows = run.range(2), heads = 64, width = 512;
  Buffer weights(*backend.ops, static_cast<size_t>(heads * 512 * width * 2));  // zeros: the loops do not look
  const Matrix kv_b{.rows = heads * 512,
                    .columns = width,
                    .data = reinterpret_cast<const std::byte*>(weights.floats()),
                    .row_bytes = width * 2};
  const Buffer q = backend.floats(rows * heads * width), absorbed = backend.floats(rows * heads * width),
               out = backend.floats(rows * heads * 256);
  for (auto _ : run) {
    backend.ops->absorb_queries(kv_b, heads, 256, 256, q.floats(), rows, absorbed.floats());
    backend.ops->absorb_values(kv_b, heads, 256, 256, absorbed.floats(), rows, out.floats());
  }
  report(run, rows, heads * 512 * width * 2);
}

void cases(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"threads", "isa", "rows"})->UseRealTime()->Unit(benchmark::kMicrosecond);
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512})
    for (const int64_t rows : {1, 64}) bench->Args({1, static_cast<int64_t>(isa), rows});
}

BENCHMARK(kda)->Apply(cases);
BENCHMARK(sparse_attention)->Apply(cases);
BENCHMARK(select_pools)->Apply(cases);
BENCHMARK(absorb)->Apply(cases);

}  // namespace
}  // namespace verbatim::ops
