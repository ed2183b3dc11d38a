// Products and experts of many rows on CUDA at the released shapes, random data: the warpgroup kernels against the
// mma.sync ones, whose bits they must have, and their rate in TFLOP/s. Exits with 1 where bits differ.
//   cuda_prompt_bench [rows ...]
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "ops/cuda/device_memory.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/warpgroup_products.h"

namespace verbatim::ops::cuda {
namespace {

constexpr int kRepeats = 7;

struct Timing {
  double median_ms = 0, slowest_ms = 0;
};

class Bench {
 public:
  // Runs `body` a few times after a first one.
  Timing time(const std::function<void()>& body) {
    cudaEvent_t begin{}, end{};
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
    std::vector<float> times;
    body();
    for (int i = 0; i < kRepeats; ++i) {
      check(cudaEventRecord(begin, stream_.get()), "cudaEventRecord");
      body();
      check(cudaEventRecord(end, stream_.get()), "cudaEventRecord");
      check(cudaEventSynchronize(end), "cudaEventSynchronize");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
      times.push_back(ms);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(times.begin(), times.end());
    return {times[kRepeats / 2], times.back()};
  }
  cudaStream_t stream() const { return stream_.get(); }
  void synchronise() const { stream_.synchronise(); }

  // A random matrix in packed order; its memory lives as long as this.
  Weights matrix(WeightForm form, int64_t rows, int64_t columns) {
    const SyntheticMatrix m{.form = form, .rows = rows, .columns = columns, .key = ++keys_, .spread = 0.02f};
    Weights plain;
    plain.form = form;
    plain.rows = rows;
    plain.columns = columns;
    plain.row_bytes = form == WeightForm::kBf16 ? columns * 2 : columns / 2;
    if (plain_.bytes() < rows * plain.row_bytes) plain_ = DeviceMemory(rows * plain.row_bytes);
    plain.data = reinterpret_cast<const uint8_t*>(plain_.data());
    Weights packed = plain;
    packed.packed = true;
    packed.data = take(packed_bytes(form, rows, columns));
    if (form == WeightForm::kBf16) {
      check(synthesise_bf16(stream(), m, 0, rows, plain_.data(), plain.row_bytes), "synthesise");
      check(pack(stream(), plain, const_cast<uint8_t*>(packed.data), nullptr), "pack");
    } else {
      if (scales_.bytes() < rows * columns / 16) scales_ = DeviceMemory(rows * columns / 16);
      plain.block_scale = reinterpret_cast<const uint8_t*>(scales_.data());
      plain.block_scale_stride = columns / 16;
      auto* largest = reinterpret_cast<uint32_t*>(take(256));
      check(cudaMemsetAsync(largest, 0, 4, stream()), "cudaMemset");
      check(synthesise_nvfp4(stream(), m, largest, plain_.data(), plain.row_bytes, scales_.data(), columns / 16),
            "synthesise");
      packed.block_scale = take((rows + 15) / 16 * columns);
      packed.matrix_scale = 0.02f / 2688.0f;
      check(pack(stream(), plain, const_cast<uint8_t*>(packed.data), const_cast<uint8_t*>(packed.block_scale)), "pack");
    }
    return packed;
  }
  // Random float32.
  const float* rows(int64_t count) {
    std::minstd_rand numbers(7);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(numbers() % 65536) / 32768.0f - 1.0f;
    auto* to = take(count * 4);
    check(cudaMemcpy(to, values.data(), values.size() * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // the stream of kernels does not wait for copies
    return reinterpret_cast<const float*>(to);
  }
  uint8_t* take(int64_t bytes) {
    held_.emplace_back(bytes);
    return reinterpret_cast<uint8_t*>(held_.back().data());
  }
  void forget() {
    synchronise();
    held_.clear();
  }

 private:
  Stream stream_;
  uint64_t keys_ = 0;
  DeviceMemory plain_, scales_;
  std::vector<DeviceMemory> held_;
};

std::vector<uint32_t> read_back(const void* from, int64_t count) {
  std::vector<uint32_t> values(static_cast<size_t>(count));
  check(cudaMemcpy(values.data(), from, values.size() * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return values;
}

int64_t different(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

// True if bits agree.
bool product(Bench& bench, WeightForm form, int64_t outputs, int64_t columns, int64_t rows, int parts) {
  const Weights w = bench.matrix(form, outputs, columns);
  Preparation preparation;
  preparation.x = bench.rows(rows * columns);
  preparation.x_stride = preparation.columns = preparation.stride = columns;
  preparation.rows = rows;
  preparation.to = reinterpret_cast<uint16_t*>(bench.take(rows * columns * 2));
  const auto prepared = bench.time([&] { check(prepare(bench.stream(), preparation), "prepare"); });
  Bf16Product p;
  p.weights = w;
  p.x = preparation.to;
  p.x_stride = columns;
  p.rows = rows;
  p.parts = parts;
  p.scale = form == WeightForm::kBf16 ? 1.0f : 256.0f * w.matrix_scale;
  Bf16Product old = p;
  p.raw = reinterpret_cast<float*>(bench.take(parts * rows * outputs * 4));
  old.raw = reinterpret_cast<float*>(bench.take(parts * rows * outputs * 4));
  check(cudaMemset(p.raw, 0xff, static_cast<size_t>(parts * rows * outputs * 4)), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const Timing now = bench.time([&] { check(warpgroup_products(bench.stream(), &p, 1), "warpgroup_products"); });
  check(packed_tile_products(bench.stream(), &old, 1), "packed_tile_products");
  bench.synchronise();
  const int64_t compared = std::min<int64_t>(parts * rows * outputs, int64_t{1} << 25);
  const int64_t wrong = different(read_back(p.raw, compared), read_back(old.raw, compared));
  const double flop = 2.0 * static_cast<double>(outputs) * static_cast<double>(columns) * static_cast<double>(rows);
  fmt::print(
      "{} {:6} x {:5}, {:5} rows, {} parts: {:7.3f} ms (slowest {:7.3f}) {:6.1f} TFLOP/s; prepare {:.3f} ms; {}\n",
      form == WeightForm::kBf16 ? "bf16 " : "nvfp4", outputs, columns, rows, parts, now.median_ms, now.slowest_ms,
      flop / now.median_ms / 1e9, prepared.median_ms,
      wrong == 0 ? "same bits" : fmt::format("{} of {} DIFFER", wrong, compared));
  bench.forget();
  return wrong == 0;
}

bool experts(Bench& bench, int64_t count, int64_t width, int64_t inner, std::span<const int64_t> most_rows, int parts) {
  constexpr int64_t kTop = 8;
  std::vector<ExpertTable> table;
  for (int64_t e = 0; e <= count; ++e) {
    const WeightForm form = e < count ? WeightForm::kNvfp4 : WeightForm::kBf16;
    table.push_back(
        {bench.matrix(form, inner, width), bench.matrix(form, inner, width), bench.matrix(form, width, inner)});
  }
  auto* on_device = bench.take(static_cast<int64_t>(table.size() * sizeof(ExpertTable)));
  check(cudaMemcpy(on_device, table.data(), table.size() * sizeof(ExpertTable), cudaMemcpyHostToDevice), "cudaMemcpy");
  const float* x = bench.rows(*std::max_element(most_rows.begin(), most_rows.end()) * width);
  bool right = true;
  for (const int64_t rows : most_rows) {
    std::minstd_rand numbers(11);
    std::vector<int32_t> chosen;
    std::vector<float> weights;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t slot = 0; slot < kTop; ++slot) {
        int32_t e = 0;
        do {
          e = static_cast<int32_t>(numbers() % static_cast<uint32_t>(count));
        } while (std::find(chosen.end() - slot, chosen.end(), e) != chosen.end());
        chosen.push_back(e);
        weights.push_back(0.1f + 0.01f * static_cast<float>(slot));
      }
    ExpertsProblem p;
    p.table = reinterpret_cast<const ExpertTable*>(on_device);
    p.experts = count;
    p.has_shared = p.has_bf16 = p.packed = true;
    p.rows = rows;
    p.top = kTop;
    p.columns = p.width = width;
    p.inner = inner;
    p.parts = parts;
    p.limit = 10.0f;
    p.x = x;
    auto* chosen_there = bench.take(rows * kTop * 4);
    auto* weights_there = bench.take(rows * kTop * 4);
    check(cudaMemcpy(chosen_there, chosen.data(), chosen.size() * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaMemcpy(weights_there, weights.data(), weights.size() * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    p.chosen = reinterpret_cast<const int32_t*>(chosen_there);
    p.weights = reinterpret_cast<const float*>(weights_there);
    ExpertsProblem old = p;
    p.warpgroups = true;
    p.y = reinterpret_cast<float*>(bench.take(rows * width * 4));
    old.y = reinterpret_cast<float*>(bench.take(rows * width * 4));
    check(cudaMemset(p.y, 0xff, static_cast<size_t>(rows * width * 4)), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const int64_t bytes = ExpertsScratch::bytes(p), old_bytes = ExpertsScratch::bytes(old);
    DeviceMemory memory(std::max(bytes, old_bytes));
    const ExpertsScratch scratch(p, memory.data()), old_scratch(old, memory.data());
    const Timing now = bench.time([&] { check(warpgroup_experts(bench.stream(), p, scratch), "warpgroup_experts"); });
    const Timing placed = bench.time([&] { check(place_experts(bench.stream(), p, scratch), "place_experts"); });
    check(cuda::experts(bench.stream(), old, old_scratch), "experts");
    bench.synchronise();
    const int64_t wrong = different(read_back(p.y, rows * width), read_back(old.y, rows * width));
    const double flop = 2.0 * 3 * static_cast<double>(rows * (kTop + 1) * width * inner);
    fmt::print(
        "{} experts, {:5} rows, {} parts: {:7.3f} ms (slowest {:7.3f}) {:6.1f} TFLOP/s; places {:.3f} ms; {:.0f} MB of "
        "{:.0f}; {}\n",
        count, rows, parts, now.median_ms, now.slowest_ms, flop / now.median_ms / 1e9, placed.median_ms,
        static_cast<double>(bytes) / 1e6, static_cast<double>(old_bytes) / 1e6,
        wrong == 0 ? "same bits" : fmt::format("{} of {} DIFFER", wrong, rows * width));
    right = right && wrong == 0;
  }
  bench.forget();
  return right;
}

int run(std::vector<int64_t> rows) {
  if (!has_warpgroup_products()) {
    fmt::print("this device or program has no wgmma\n");
    return 1;
  }
  Bench bench;
  bool right = true;
  for (const WeightForm form : {WeightForm::kBf16, WeightForm::kNvfp4}) {
    right = product(bench, form, 520, 832, 321, 1) && right;
    right = product(bench, form, 4096, 8192, 77, 8) && right;
  }
  for (const int64_t count : rows) {
    right = product(bench, WeightForm::kBf16, 24896, 4096, count, 1) && right;
    right = product(bench, WeightForm::kBf16, 4096, 8192, count, 1) && right;
    right = product(bench, WeightForm::kBf16, 4096, 16384, count, 1) && right;
    right = product(bench, WeightForm::kBf16, 20480, 1536, count, 1) && right;
    right = product(bench, WeightForm::kNvfp4, 24576, 4096, count, 1) && right;
    right = product(bench, WeightForm::kNvfp4, 4096, 12288, count, 1) && right;
  }
  rows.push_back(333);
  right = experts(bench, 192, 4096, 2048, rows, 1) && right;
  return right ? 0 : 1;
}

}  // namespace
}  // namespace verbatim::ops::cuda

int main(int count, char** arguments) {
  std::vector<int64_t> rows;
  for (int i = 1; i < count; ++i) rows.push_back(std::atoll(arguments[i]));
  if (rows.empty()) rows = {8192, 2048};
  return verbatim::ops::cuda::run(rows);
}
