#include "ops/cuda/device_memory.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace verbatim::ops::cuda {

namespace {

constexpr int64_t kArgumentBytes = int64_t{8} << 20;
constexpr int64_t kMirrorBytes = int64_t{1} << 20;
constexpr int64_t kMirrorCopyBytes = int64_t{64} << 10;
constexpr int64_t kStagingBytes = int64_t{32} << 20;
constexpr int64_t kBlockBytes = int64_t{256} << 20;

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  const auto kind = error == cudaErrorMemoryAllocation ? ErrorKind::kCapacity : ErrorKind::kIo;
  fail(kind, "cuda", "{} failed: {} ({}); {}", call, cudaGetErrorString(error), cudaGetErrorName(error),
       kind == ErrorKind::kCapacity ? "free device memory or ask for less" : "see the driver's log");
}

Stream::Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
Stream::~Stream() { cudaStreamDestroy(stream_); }
void Stream::synchronise() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

Event::Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
Event::~Event() { cudaEventDestroy(event_); }
void Event::record(const Stream& stream) { check(cudaEventRecord(event_, stream.get()), "cudaEventRecord"); }
void Event::wait() const { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

template <bool kOnDevice>
Memory<kOnDevice>::Memory(int64_t bytes) : bytes_(bytes) {
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  const cudaError_t error = kOnDevice ? cudaMalloc(&data, size) : cudaMallocHost(&data, size);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this error does not last
    fail(ErrorKind::kCapacity, kOnDevice ? "cuda memory" : "page-locked memory",
         "{} bytes could not be allocated; free some or ask for less", bytes);
  }
  check(error, kOnDevice ? "cudaMalloc" : "cudaMallocHost");
  data_ = static_cast<std::byte*>(data);
}

template <bool kOnDevice>
Memory<kOnDevice>::~Memory() {
  if (data_ == nullptr) return;
  if (kOnDevice)
    cudaFree(data_);
  else
    cudaFreeHost(data_);
}

template class Memory<true>;
template class Memory<false>;

std::byte* Scratch::take(int64_t bytes, const Stream& stream) {
  if (bytes > memory_.bytes()) reserve(bytes + bytes / 4, stream);
  return memory_.data();
}

void Scratch::reserve(int64_t bytes, const Stream& stream) {
  if (bytes <= memory_.bytes()) return;
  stream.synchronise();
  memory_ = DeviceMemory();  // freed before more is asked for
  memory_ = DeviceMemory(aligned(bytes));
  ++generation_;
}

Arguments::Arguments(const Stream& stream) : stream_(stream), host_(kArgumentBytes), device_(kArgumentBytes) {}

const void* Arguments::put(const void* data, size_t bytes) {
  const int64_t size = aligned(static_cast<int64_t>(bytes));
  if (used_ + size > host_.bytes()) {
    stream_.synchronise();
    used_ = 0;
    if (size > host_.bytes()) {
      host_ = PinnedMemory(2 * size);
      device_ = DeviceMemory(2 * size);
    }
  }
  std::byte* host = host_.data() + used_;
  std::byte* device = device_.data() + used_;
  used_ += size;
  std::memcpy(host, data, bytes);
  check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_.get()), "cudaMemcpyAsync of arguments");
  return device;
}

const std::byte* Mirror::put(const std::vector<std::byte>& bytes) {
  if (bytes == last_) return device_.data();
  const auto size = static_cast<int64_t>(bytes.size());
  PinnedMemory& host = host_[next_];
  Event& copied = copied_[next_];
  next_ = (next_ + 1) % kCopies;
  copied.wait();
  if (size > host.bytes()) host = PinnedMemory(std::max(2 * size, kMirrorCopyBytes));
  if (size > device_.bytes()) {
    stream_.synchronise();
    device_ = DeviceMemory(std::max(2 * size, kMirrorBytes));
    ++generation_;
  }
  std::memcpy(host.data(), bytes.data(), bytes.size());
  check(cudaMemcpyAsync(device_.data(), host.data(), bytes.size(), cudaMemcpyHostToDevice, stream_.get()),
        "cudaMemcpyAsync of spans");
  copied.record(stream_);
  last_ = bytes;
  return device_.data();
}

std::byte* WeightMemory::take(int64_t bytes) {
  bytes = aligned(bytes);
  if (blocks_.empty() || used_ + bytes > blocks_.back().bytes()) {
    // Large matrices have a block of their own and leave the last one open.
    const bool own = bytes > kBlockBytes / 4;
    blocks_.emplace_back(own ? bytes : kBlockBytes);
    if (own && blocks_.size() > 1) {
      std::swap(blocks_.back(), blocks_[blocks_.size() - 2]);
      return blocks_[blocks_.size() - 2].data();
    }
    used_ = 0;
  }
  std::byte* taken = blocks_.back().data() + used_;
  used_ += bytes;
  return taken;
}

const std::byte* WeightMemory::copy(const std::byte* from, int64_t rows, int64_t row_bytes, int64_t from_stride,
                                    int64_t to_stride) {
  std::byte* to = take(rows * to_stride);
  fill(to, from, rows, row_bytes, from_stride, to_stride);
  return to;
}

void WeightMemory::fill(std::byte* to, const std::byte* from, int64_t rows, int64_t row_bytes, int64_t from_stride,
                        int64_t to_stride) {
  if (rows == 0 || row_bytes == 0) return;
  if (staging_[0].data() == nullptr)
    for (PinnedMemory& block : staging_) block = PinnedMemory(kStagingBytes);
  // Runs of whole rows; a row longer than a staging block in pieces.
  const bool whole = from_stride == to_stride && row_bytes == to_stride;
  const int64_t total = rows * to_stride;
  for (int64_t done = 0; done < total;) {
    PinnedMemory& block = staging_[next_];
    copied_[next_].wait();
    int64_t bytes = 0;
    if (whole) {
      bytes = std::min(total - done, block.bytes());
      std::memcpy(block.data(), from + done, static_cast<size_t>(bytes));
    } else if (to_stride <= block.bytes()) {
      const int64_t first = done / to_stride, count = std::min(rows - first, block.bytes() / to_stride);
      for (int64_t r = 0; r < count; ++r) {
        std::byte* row = block.data() + r * to_stride;
        std::memcpy(row, from + (first + r) * from_stride, static_cast<size_t>(row_bytes));
        std::memset(row + row_bytes, 0, static_cast<size_t>(to_stride - row_bytes));
      }
      bytes = count * to_stride;
    } else {
      const int64_t row = done / to_stride, at = done % to_stride;
      bytes = std::min(to_stride - at, block.bytes());
      std::memset(block.data(), 0, static_cast<size_t>(bytes));
      if (at < row_bytes)
        std::memcpy(block.data(), from + row * from_stride + at, static_cast<size_t>(std::min(bytes, row_bytes - at)));
    }
    check(cudaMemcpyAsync(to + done, block.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_.get()),
          "cudaMemcpyAsync of weights");
    copied_[next_].record(stream_);
    next_ = 1 - next_;
    done += bytes;
  }
}

}  // namespace verbatim::ops::cuda
