// Byte-pair encoding of one pre-token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim::text {

// Bytes to id, by open addressing. Filled once, then read by any number of threads. The longest probe depends on the
// entries alone, so no looked-up text can make it slow.
class PieceTable {
 public:
  // `pieces` by id; those for which `included` is false are not entered.
  PieceTable(const std::vector<std::string>& pieces, const std::vector<bool>& included);

  std::string_view piece(int32_t id) const {
    return std::string_view(bytes_).substr(begin_[static_cast<size_t>(id)],
                                           begin_[static_cast<size_t>(id) + 1] - begin_[static_cast<size_t>(id)]);
  }
  int32_t ids() const { return static_cast<int32_t>(begin_.size() - 1); }
  int32_t find(std::string_view bytes) const;  // -1 if absent

 private:
  struct Slot {
    uint32_t tag = 0;
    int32_t id = -1;
  };
  std::string bytes_;            // every piece, one after the other
  std::vector<uint32_t> begin_;  // ids + 1
  std::vector<Slot> slots_;      // a power of two, at most half full
  size_t longest_entry_bytes_ = 0;
};

struct Merge {
  int32_t left, right, result;
};

// Merges by pair. Rank is the position in the list: the lower goes first.
class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit MergeTable(const std::vector<Merge>& merges);  // of equal pairs the last counts, as in `tokenizers`
  uint32_t rank(int32_t left, int32_t right) const;       // kNone if the pair does not merge
  int32_t result(uint32_t rank) const { return results_[rank]; }
  size_t size() const { return results_.size(); }

 private:
  struct Slot {
    int32_t left = -1, right = -1;
    uint32_t rank = kNone;
  };
  std::vector<Slot> slots_;  // a power of two, at most half full
  std::vector<int32_t> results_;
};

// Appends the ids of the bytes `initial` after all merges: again and again the pair of lowest rank, the leftmost among
// equals. n log n in the number of bytes.
class BytePairEncoder {
 public:
  // From 32 KiB on, a bucket per rank, whose positions are walked in order, beats one heap, which no longer fits the
  // cache. The result does not depend on it.
  static constexpr size_t kBucketBytes = 32 << 10;

  BytePairEncoder(const std::vector<Merge>& merges, const std::array<int32_t, 256>& byte_ids,
                  size_t bucket_bytes = kBucketBytes)
      : merges_(merges), byte_ids_(byte_ids), bucket_bytes_(bucket_bytes) {}

  void encode(std::string_view bytes, std::vector<int32_t>& ids) const;

 private:
  void encode_short(std::string_view bytes, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view bytes, std::vector<int32_t>& ids) const;

  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;
  size_t bucket_bytes_;
};

}  // namespace verbatim::text
