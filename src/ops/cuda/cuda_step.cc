// A step as one graph: launched eagerly the first time (which sizes working memory), recorded the second, then
// replayed. What changes from step to step (tokens, positions, pages) is in device memory at fixed places; launch
// shapes depend on the key alone.
#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/error.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/kda_split.h"

namespace verbatim::ops::cuda {

namespace {

// Longer steps are prompts: launches cost them nothing.
constexpr int64_t kMostRecordedRows = 512;
constexpr size_t kMostRecordings = 256;

// All that the launches of a body may depend on besides what it reads on the device.
std::vector<int64_t> key_of(uint64_t tag, std::span<const Span> spans, const StepIds& ids) {
  std::vector<int64_t> key = {static_cast<int64_t>(tag), ids.count, static_cast<int64_t>(spans.size())};
  int64_t longest = 0, last = 0, windows = 0;
  for (const Span& span : spans) {
    longest = std::max(longest, span.rows);
    windows += span.rows > 1 ? 1 : 0;
    last = std::max(last, span.position + span.rows);
    // The next-n layer clears the embedding of a first row.
    if (span.position == 0) key.push_back(span.first_row);
    // Linear attention takes whole chunks of a span in launches of their own.
    if (const KdaSplit split = split_for_chunks(span); split.chunks > 0)
      key.insert(key.end(), {-2, span.first_row, split.before, split.chunks, span.rows, span.certain});
  }
  key.push_back(-1);
  key.push_back(longest);
  key.push_back(windows);
  key.push_back(position_bound(last));
  // Read where they lie.
  key.push_back(ids.is_on_backend ? reinterpret_cast<int64_t>(ids.data) : 0);
  return key;
}

}  // namespace

const int32_t* CudaOps::device_ids(const StepIds& ids) {
  if (ids.is_on_backend) return ids.data;
  if (step_ids_on_device_ != nullptr && ids.data == step_ids_.data() && ids.count <= std::ssize(step_ids_))
    return step_ids_on_device_;
  if (recording_) fail(ErrorKind::kUsage, "step", "an operator was given ids that are not the step's");
  return static_cast<const int32_t*>(arguments_.put(ids.data, static_cast<size_t>(ids.count) * sizeof(int32_t)));
}

void CudaOps::step(uint64_t tag, std::span<const Span> spans, const StepIds& ids, const std::function<void()>& body) {
  finish_leave();
  if (!records_steps_ || ids.count == 0 || ids.count > kMostRecordedRows) {
    launches_ = 0;
    body();
    return;
  }
  struct Scope {
    CudaOps& ops;
    ~Scope() {
      ops.step_ids_ = {};
      ops.step_ids_on_device_ = nullptr;
      ops.recording_ = false;
    }
  } scope{*this};
  if (!ids.is_on_backend) {
    step_ids_ = std::span(ids.data, static_cast<size_t>(ids.count));
    std::vector<std::byte> bytes(step_ids_.size_bytes());
    std::memcpy(bytes.data(), ids.data, bytes.size());
    // Every recorded step's ids stand at one place, but for those that lie on the device already.
    bytes.resize(std::max(bytes.size(), static_cast<size_t>(kMostRecordedRows) * sizeof(int32_t)));
    step_ids_on_device_ = reinterpret_cast<const int32_t*>(ids_.put(bytes));
  }
  Recording& recording = recordings_[key_of(tag, spans, ids)];
  if (!spans.empty()) span_table(spans, recording.storage_shift);
  if (recording.generation == generation() && recording.graph != nullptr) {
    check(cudaGraphLaunch(recording.graph, stream_.get()), "cudaGraphLaunch");
    launches_ = recording.launches;
    return;
  }
  if (recording.graph != nullptr) {
    check(cudaGraphExecDestroy(recording.graph), "cudaGraphExecDestroy");
    recording.graph = nullptr;
  }
  if (recording.generation != generation()) {
    body();
    finish_leave();
    recording.generation = generation();
    recording.storage_shift = last_shift_;
    launches_ = 0;
    return;
  }
  cudaGraph_t graph = nullptr;
  recording_ = true;
  check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    body();
    finish_leave();
  } catch (...) {
    cudaStreamEndCapture(stream_.get(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  recording_ = false;
  check(cudaStreamEndCapture(stream_.get(), &graph), "cudaStreamEndCapture");
  size_t nodes = 0;
  check(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
  check(cudaGraphInstantiate(&recording.graph, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  recording.launches = launches_ = static_cast<int64_t>(nodes);
  check(cudaGraphLaunch(recording.graph, stream_.get()), "cudaGraphLaunch");
  // The oldest keys first: they are cheap to make again.
  while (recordings_.size() > kMostRecordings) {
    auto victim = recordings_.begin();
    if (&victim->second == &recording) ++victim;
    if (victim->second.graph != nullptr) cudaGraphExecDestroy(victim->second.graph);
    recordings_.erase(victim);
  }
}

double CudaOps::read_bandwidth() {
  constexpr int64_t kBytes = int64_t{4} << 30;
  const DeviceMemory data(kBytes), sink(4);
  check(cudaMemsetAsync(data.data(), 1, kBytes, stream_.get()), "cudaMemsetAsync");
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  cudaDeviceProp properties{};
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  double best = 0;
  for (const int blocks : {2, 4, 4, 4, 8}) {
    check(cudaEventRecord(begin, stream_.get()), "cudaEventRecord");
    check(plain_read(stream_.get(), data.data(), kBytes, blocks * properties.multiProcessorCount,
                     reinterpret_cast<uint32_t*>(sink.data())),
          "plain read");
    check(cudaEventRecord(end, stream_.get()), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    best = std::max(best, static_cast<double>(kBytes) / (ms * 1e-3));
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

}  // namespace verbatim::ops::cuda

namespace verbatim::ops {

double cuda_read_bandwidth(Ops& ops) { return dynamic_cast<cuda::CudaOps&>(ops).read_bandwidth(); }

int64_t cuda_free_bytes(Ops&) {
  size_t free = 0, total = 0;
  cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

void cuda_reserve_working(Ops& ops, int64_t bytes) { dynamic_cast<cuda::CudaOps&>(ops).reserve_working(bytes); }

int64_t cuda_working_held(Ops& ops) { return dynamic_cast<cuda::CudaOps&>(ops).working_bytes(); }

}  // namespace verbatim::ops
