// Products of the CUDA backend at the released widths beside a plain read of memory in the same run. Weights are random
// and rotate over more bytes than the cache holds; every time is the median of graph replays, launches included.
//   cuda_products_bench
// Bytes: the stored weights that a product reads (of experts, those that are chosen), nothing else.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <vector>

#include "ops/cuda/kernels.h"

namespace {

using namespace verbatim::ops;
using namespace verbatim::ops::cuda;

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
T* device(int64_t count) {
  void* data = nullptr;
  must(cudaMalloc(&data, static_cast<size_t>(count) * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(data);
}

enum class Fill { kBf16, kCodes, kScales, kFloats };

__device__ uint32_t hashed(uint64_t i) {
  i = (i + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
  i = (i ^ (i >> 27)) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>(i >> 32);
}

__global__ void fill_kernel(uint32_t* to, int64_t words, Fill fill, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t random = hashed(static_cast<uint64_t>(i) + seed * 0x100000000u);
    // bf16 in +-[2^-8, 2^-6); scales 0x28 .. 0x57; floats in +-[0.5, 2).
    to[i] = fill == Fill::kBf16     ? (random & 0x80ff80ffu) | 0x3b803b80u
            : fill == Fill::kCodes  ? random
            : fill == Fill::kScales ? (random & 0x0f0f0f0fu) + 0x30303030u
                                    : (random & 0x80ffffffu) | 0x3f000000u;
  }
}

template <typename T>
T* filled(int64_t count, Fill fill, uint64_t seed) {
  T* data = device<T>(count);
  fill_kernel<<<1024, 256>>>(reinterpret_cast<uint32_t*>(data), count * static_cast<int64_t>(sizeof(T)) / 4, fill,
                             seed);
  must(cudaDeviceSynchronize(), "fill");
  return data;
}

__global__ void read_kernel(const uint4* from, int64_t count, uint32_t* to) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = __ldcs(from + i), b = __ldcs(from + i + stride), c = __ldcs(from + i + 2 * stride),
                d = __ldcs(from + i + 3 * stride);
    sum ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < count; i += stride) sum ^= from[i].x;
  if (sum == 0x12345678u) *to = sum;
}

cudaStream_t stream;

struct Times {
  double median = 0, slowest = 0;  // microseconds of one body
};

// body(i) launches version i of `versions`; all of them go in one graph, replayed five times after one to warm up.
Times time_of(int versions, const std::function<void(int)>& body) {
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < versions; ++i) body(i);
  must(cudaStreamEndCapture(stream, &graph), "capture");
  must(cudaGraphInstantiate(&ready, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<double> times;
  for (int i = 0; i < 6; ++i) {
    cudaEventRecord(begin, stream);
    must(cudaGraphLaunch(ready, stream), "launch");
    cudaEventRecord(end, stream);
    must(cudaEventSynchronize(end), "replay");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i > 0) times.push_back(1000.0 * ms / versions);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  return {times[times.size() / 2], times.back()};
}

double ceiling = 0;  // bytes a second

void print(const char* what, int64_t rows, double bytes, const Times& t) {
  const double speed = bytes / (t.median * 1e-6);
  std::printf("%-28s %3ld rows  %8.1f MB  %8.1f us (slowest %8.1f)  %6.0f GB/s  %5.1f %%\n", what,
              static_cast<long>(rows), bytes / 1e6, t.median, t.slowest, speed / 1e9,
              ceiling > 0 ? 100 * speed / ceiling : 100.0);
}

void bench_product(const char* name, WeightForm form, int64_t outputs, int64_t columns, float* x, float* y,
                   uint16_t* prepared, float* raw) {
  const int64_t row_bytes = form == WeightForm::kBf16 ? 2 * columns : columns / 2;
  const int64_t bytes = outputs * row_bytes + (form == WeightForm::kNvfp4 ? outputs * columns / 16 : 0);
  const int versions = static_cast<int>(std::clamp<int64_t>(int64_t{1000000000} / bytes, 2, 40));
  std::vector<Weights> weights;
  std::vector<void*> memory;
  for (int i = 0; i < versions; ++i) {
    Weights w;
    w.form = form;
    w.rows = outputs;
    w.columns = columns;
    w.row_bytes = row_bytes;
    auto* data = filled<uint8_t>(outputs * row_bytes, form == WeightForm::kBf16 ? Fill::kBf16 : Fill::kCodes,
                                 static_cast<uint64_t>(i) + 1);
    w.data = data;
    memory.push_back(data);
    if (form == WeightForm::kNvfp4) {
      auto* scales = filled<uint8_t>(outputs * columns / 16, Fill::kScales, static_cast<uint64_t>(i) + 100);
      w.block_scale = scales;
      w.block_scale_stride = columns / 16;
      memory.push_back(scales);
    }
    weights.push_back(w);
  }
  for (const int64_t rows : {1, 4, 16}) {
    const Times t = time_of(versions, [&](int i) {
      Preparation p;
      p.x = x;
      p.x_stride = columns;
      p.rows = rows;
      p.columns = columns;
      p.to = prepared;
      p.stride = columns;
      must(prepare(stream, p), "prepare");
      Bf16Product product;
      product.weights = weights[static_cast<size_t>(i)];
      product.x = prepared;
      product.x_stride = columns;
      product.rows = rows;
      product.raw = raw;
      must(bf16_products(stream, &product, 1), "product");
      Finish f;
      f.raw = raw;
      f.slices = splits_slices(rows, 1) ? slices_of(product.weights, 1) : 1;
      f.rows = rows;
      f.outputs = outputs;
      f.y = y;
      f.y_stride = outputs;
      must(finish_products(stream, &f, 1), "finish");
    });
    print(name, rows, static_cast<double>(bytes), t);
  }
  for (void* each : memory) cudaFree(each);
}

// A layer's experts: 288 of NVFP4 and a shared one of bfloat16, eight of them a row, uniform routing.
void bench_experts(float* x, float* y) {
  constexpr int64_t kExperts = 288, kTop = 8, kWidth = 4096, kInner = 2048;
  constexpr int kLayers = 3;  // 12 GB
  const auto matrix = [](WeightForm form, int64_t rows, int64_t columns, uint64_t seed) {
    Weights w;
    w.form = form;
    w.rows = rows;
    w.columns = columns;
    w.row_bytes = form == WeightForm::kBf16 ? 2 * columns : columns / 2;
    w.data = filled<uint8_t>(rows * w.row_bytes, form == WeightForm::kBf16 ? Fill::kBf16 : Fill::kCodes, seed);
    if (form == WeightForm::kNvfp4) {
      w.block_scale = filled<uint8_t>(rows * columns / 16, Fill::kScales, seed + 7);
      w.block_scale_stride = columns / 16;
      w.matrix_scale = 1e-4f;
    }
    return w;
  };
  std::vector<const ExpertTable*> tables;
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<ExpertTable> table;
    for (int64_t e = 0; e <= kExperts; ++e) {
      const WeightForm form = e == kExperts ? WeightForm::kBf16 : WeightForm::kNvfp4;
      const auto seed = static_cast<uint64_t>(layer * 1000 + e);
      table.push_back({matrix(form, kInner, kWidth, seed), matrix(form, kInner, kWidth, seed + 300),
                       matrix(form, kWidth, kInner, seed + 600)});
    }
    auto* there = device<ExpertTable>(kExperts + 1);
    must(cudaMemcpy(there, table.data(), table.size() * sizeof(ExpertTable), cudaMemcpyHostToDevice), "table");
    tables.push_back(there);
  }
  for (const int64_t rows : {1, 4, 16, 64}) {
    constexpr int kVersions = 6;
    std::vector<int32_t*> chosen;
    float* weights = filled<float>(rows * kTop, Fill::kFloats, 5);
    double bytes = 0;
    uint64_t seed = 77 + static_cast<uint64_t>(rows);
    for (int i = 0; i < kVersions; ++i) {
      std::vector<int32_t> ids;
      std::set<int32_t> distinct;
      for (int64_t r = 0; r < rows; ++r) {
        std::set<int32_t> own;
        while (static_cast<int64_t>(own.size()) < kTop) {
          seed = seed * 6364136223846793005u + 1442695040888963407u;
          own.insert(static_cast<int32_t>((seed >> 33) % kExperts));
        }
        ids.insert(ids.end(), own.begin(), own.end());
        distinct.insert(own.begin(), own.end());
      }
      chosen.push_back(device<int32_t>(rows * kTop));
      must(cudaMemcpy(chosen.back(), ids.data(), ids.size() * 4, cudaMemcpyHostToDevice), "chosen");
      bytes +=
          static_cast<double>(distinct.size()) * 3 * kWidth * kInner * (0.5 + 1.0 / 16) + 3.0 * kWidth * kInner * 2;
    }
    ExpertsProblem p;
    p.experts = kExperts;
    p.has_shared = p.has_bf16 = true;
    p.rows = rows;
    p.top = kTop;
    p.columns = kWidth;
    p.inner = kInner;
    p.width = kWidth;
    p.limit = 10.0f;
    p.x = x;
    p.weights = weights;
    p.y = y;
    p.inner_slices = kWidth / kSliceColumns;
    p.down_slices = kInner / kSliceColumns;
    p.split = splits_expert_slices(rows, kTop, 1);
    const ExpertsScratch scratch(p, device<char>(ExpertsScratch::bytes(p)));
    const Times t = time_of(kVersions, [&](int i) {
      p.table = tables[static_cast<size_t>(i % kLayers)];
      p.chosen = chosen[static_cast<size_t>(i)];
      must(experts(stream, p, scratch), "experts");
    });
    print("experts nvfp4 + shared bf16", rows, bytes / kVersions, t);
  }
}

}  // namespace

int main() {
  cudaDeviceProp properties{};
  must(cudaGetDeviceProperties(&properties, 0), "device");
  std::printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  {
    constexpr int64_t kBytes = int64_t{4} << 30;
    auto* from = filled<uint4>(kBytes / 16, Fill::kCodes, 9);
    auto* to = device<uint32_t>(1);
    for (const int blocks : {2, 4, 8}) {
      const Times t = time_of(2, [&](int) {
        read_kernel<<<static_cast<unsigned>(blocks * properties.multiProcessorCount), 512, 0, stream>>>(
            from, kBytes / 16, to);
      });
      ceiling = std::max(ceiling, static_cast<double>(kBytes) / (t.median * 1e-6));
    }
    print("plain read of 4 GiB", 0, static_cast<double>(kBytes), {static_cast<double>(kBytes) / ceiling * 1e6, 0});
    cudaFree(from);
  }
  float* x = filled<float>(64 * 16384, Fill::kFloats, 1);
  float* y = device<float>(64 * 154880);
  auto* prepared = device<uint16_t>(3 * 64 * 16384);
  float* raw = device<float>(int64_t{64} * 64 * 154880);
  bench_product("24,896 x 4,096 bf16", WeightForm::kBf16, 24896, 4096, x, y, prepared, raw);
  bench_product("4,096 x 8,192 bf16", WeightForm::kBf16, 4096, 8192, x, y, prepared, raw);
  bench_product("16,384 x 1,536 bf16", WeightForm::kBf16, 16384, 1536, x, y, prepared, raw);
  bench_product("4,096 x 16,384 bf16", WeightForm::kBf16, 4096, 16384, x, y, prepared, raw);
  bench_product("4,096 x 4,096 bf16", WeightForm::kBf16, 4096, 4096, x, y, prepared, raw);
  bench_product("154,880 x 4,096 bf16", WeightForm::kBf16, 154880, 4096, x, y, prepared, raw);
  bench_product("24,576 x 4,096 nvfp4", WeightForm::kNvfp4, 24576, 4096, x, y, prepared, raw);
  bench_experts(x, y);
  return 0;
}
