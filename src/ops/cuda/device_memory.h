// Streams, events and memory of a device as owners, and small host data on its way to kernels. Failed calls throw:
// Error (kCapacity) where memory ran out, else Error(kIo), naming the call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace verbatim::ops::cuda {

// Throws unless `error` is cudaSuccess; `call` names what returned it.
void check(cudaError_t error, const char* call);

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  // Waits for all that was queued; errors of kernels come to light here.
  void synchronise() const;

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream);
  void wait() const;  // on the host; at once if never recorded

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory of the device, or page-locked memory of the host. Contents unspecified.
template <bool kOnDevice>
class Memory {
 public:
  Memory() = default;
  explicit Memory(int64_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};
using DeviceMemory = Memory<true>;
using PinnedMemory = Memory<false>;

// Working memory of one operator at a time, grown as asked for: what is queued on the stream later may overwrite it.
class Scratch {
 public:
  std::byte* take(int64_t bytes, const Stream& stream);
  // Holds at least so much from now on, and no more than that if it has to grow.
  void reserve(int64_t bytes, const Stream& stream);
  int64_t bytes() const { return memory_.bytes(); }
  // Changes when what take() gives moves.
  int64_t generation() const { return generation_; }

 private:
  DeviceMemory memory_;
  int64_t generation_ = 0;
};

// Small host arrays for kernels: copied, so that the caller may change them at once.
class Arguments {
 public:
  explicit Arguments(const Stream& stream);
  // Where the bytes will be on the device when what is queued next runs; valid for the operator that asked.
  const void* put(const void* data, size_t bytes);

 private:
  const Stream& stream_;
  PinnedMemory host_;
  DeviceMemory device_;
  int64_t used_ = 0;
};

// One host array that rarely changes: copied again only when it does, and without waiting for the last few copies.
class Mirror {
 public:
  explicit Mirror(const Stream& stream) : stream_(stream) {}
  const std::byte* put(const std::vector<std::byte>& bytes);
  // Changes when what put() gives moves.
  int64_t generation() const { return generation_; }

 private:
  const Stream& stream_;
  int64_t generation_ = 0;
  static constexpr size_t kCopies = 8;  // more than the steps of a chain of drafts
  std::vector<std::byte> last_;
  DeviceMemory device_;
  PinnedMemory host_[kCopies];  // in turn
  Event copied_[kCopies];
  size_t next_ = 0;
};

// Device memory that lives as long as this, in large blocks, and the way there for host memory of any kind: two
// page-locked blocks in turn.
class WeightMemory {
 public:
  explicit WeightMemory(const Stream& stream) : stream_(stream) {}
  // `rows` rows of `row_bytes`, `from_stride` apart, to rows `to_stride` apart; 256-byte aligned. What lies between
  // rows is 0.
  const std::byte* copy(const std::byte* from, int64_t rows, int64_t row_bytes, int64_t from_stride, int64_t to_stride);
  // Memory to fill otherwise; contents unspecified.
  std::byte* take(int64_t bytes);
  // The way there alone: to device memory that is there.
  void fill(std::byte* to, const std::byte* from, int64_t rows, int64_t row_bytes, int64_t from_stride,
            int64_t to_stride);

 private:
  const Stream& stream_;
  std::vector<DeviceMemory> blocks_;
  int64_t used_ = 0;
  PinnedMemory staging_[2];
  Event copied_[2];
  int next_ = 0;
};

}  // namespace verbatim::ops::cuda
