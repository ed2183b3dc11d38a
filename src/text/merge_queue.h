// Two queues of possible merges with the same order: the lowest rank first, then the leftmost position. pop() only
// while not empty().
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace verbatim::text {

struct Candidate {
  uint32_t rank, position;
};

// One heap.
class HeapQueue {
 public:
  bool empty() const { return heap_.empty(); }
  void push(Candidate candidate) {
    heap_.push_back(static_cast<uint64_t>(candidate.rank) << 32 | candidate.position);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  Candidate pop() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t entry = heap_.back();
    heap_.pop_back();
    return {static_cast<uint32_t>(entry >> 32), static_cast<uint32_t>(entry)};
  }

 private:
  std::vector<uint64_t> heap_;
};

// One bucket per rank and a two-level set of the ranks in use. A bucket is sorted when its first
// position is taken; what is pushed after that turns the rest into a heap (ascending order is one already).
class BucketQueue {
 public:
  explicit BucketQueue(size_t ranks) : buckets_(ranks), words_(ranks / 64 + 1), groups_(ranks / 4096 + 1) {}

  bool empty() {
    while (group_ < groups_.size() && groups_[group_] == 0) ++group_;
    return group_ == groups_.size();
  }
  void push(Candidate candidate) {
    Bucket& bucket = buckets_[candidate.rank];
    if (bucket.state == State::kSorted) {
      bucket.positions.erase(bucket.positions.begin(), bucket.positions.begin() + bucket.taken);
      bucket.state = State::kHeap;
    }
    bucket.positions.push_back(candidate.position);
    if (bucket.state == State::kHeap)
      std::push_heap(bucket.positions.begin(), bucket.positions.end(), std::greater<>());
    const size_t word = candidate.rank / 64, group = word / 64;
    words_[word] |= uint64_t{1} << candidate.rank % 64;
    groups_[group] |= uint64_t{1} << word % 64;
    group_ = std::min(group_, group);
  }
  Candidate pop() {
    while (groups_[group_] == 0) ++group_;
    const size_t word = group_ * 64 + static_cast<size_t>(std::countr_zero(groups_[group_]));
    const size_t rank = word * 64 + static_cast<size_t>(std::countr_zero(words_[word]));
    Bucket& bucket = buckets_[rank];
    if (bucket.state == State::kFilling) {
      if (!std::is_sorted(bucket.positions.begin(), bucket.positions.end()))
        std::sort(bucket.positions.begin(), bucket.positions.end());
      bucket.state = State::kSorted;
      bucket.taken = 0;
    }
    Candidate candidate{static_cast<uint32_t>(rank), 0};
    if (bucket.state == State::kSorted) {
      candidate.position = bucket.positions[bucket.taken++];
      if (bucket.taken < bucket.positions.size()) return candidate;
    } else {
      std::pop_heap(bucket.positions.begin(), bucket.positions.end(), std::greater<>());
      candidate.position = bucket.positions.back();
      bucket.positions.pop_back();
      if (!bucket.positions.empty()) return candidate;
    }
    bucket = {};
    words_[word] &= ~(uint64_t{1} << rank % 64);
    if (words_[word] == 0) groups_[group_] &= ~(uint64_t{1} << word % 64);
    return candidate;
  }

 private:
  enum class State : uint8_t { kFilling, kSorted, kHeap };
  struct Bucket {
    std::vector<uint32_t> positions;
    uint32_t taken = 0;  // of a sorted bucket
    State state = State::kFilling;
  };
  std::vector<Bucket> buckets_;           // by rank
  std::vector<uint64_t> words_, groups_;  // bits: ranks with a bucket in use; words that are not zero
  size_t group_ = 0;                      // none below is in use
};

}  // namespace verbatim::text
