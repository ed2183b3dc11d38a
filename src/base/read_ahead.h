// A thread that reads files ahead of whoever reads them through mappings, into the system's cache: the disk works while
// the reader computes, and a failing disk is an error instead of a fault.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/mapped_file.h"

namespace verbatim {

class ReadAhead {
 public:
  // Files outlive the thread.
  struct Range {
    const MappedFile* file = nullptr;
    size_t offset = 0, bytes = 0;
  };

  // Reads `ranges` in order, no more than `ahead` bytes before what has been passed.
  ReadAhead(std::vector<Range> ranges, uint64_t ahead);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The reader needs none of the first `bytes` bytes of all ranges any more. Throws what the thread met: Error(kIo) for
  // a read that failed or a file that ends before its range.
  void passed(uint64_t bytes);

 private:
  void read_all();
  enum class Next { kRead, kSkip, kStop };
  // What to do with the bytes before `end` of all ranges, once they are near enough to the reader.
  Next await(uint64_t end);

  std::vector<Range> ranges_;
  uint64_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t passed_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace verbatim
