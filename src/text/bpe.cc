#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "text/merge_queue.h"

namespace verbatim::text {
namespace {

constexpr size_t kShortBytes = 32;

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

uint64_t load(const char* bytes, size_t count) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, count);
  return word;
}

uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = bytes.size() * 0xD6E8FEB86659FD93u;
  const char* p = bytes.data();
  size_t left = bytes.size();
  for (; left > 8; left -= 8, p += 8) hash = mix(hash, load(p, 8));
  hash = mix(hash, load(p, left));
  return hash * 0xD6E8FEB86659FD93u;
}

uint64_t hash_pair(int32_t left, int32_t right) {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  return mix(0, key) * 0xD6E8FEB86659FD93u;
}

size_t slot_count(size_t entries) { return std::bit_ceil(std::max<size_t>(entries * 2, 16)); }

// The high bits of a multiplicative hash are the good ones.
size_t home(uint64_t hash, size_t slots) { return hash >> (64 - std::countr_zero(slots)); }

// Symbols linked by position. A queued candidate is stale when the pair that begins at its position has another rank by
// now; ranks name pairs, so an equal rank is the same pair.
class SymbolList {
 public:
  SymbolList(std::string_view bytes, const std::array<int32_t, 256>& byte_ids, const MergeTable& merges)
      : merges_(merges), symbols_(bytes.size()) {
    const auto count = static_cast<uint32_t>(bytes.size());
    for (uint32_t i = 0; i < count; ++i) {
      symbols_[i] = {byte_ids[static_cast<uint8_t>(bytes[i])], i - 1, i + 1 < count ? i + 1 : kEnd, MergeTable::kNone};
    }
  }

  template <typename Queue>
  void merge_all(Queue& queue) {
    for (uint32_t i = 0; i < symbols_.size(); ++i) update(i, queue);
    while (!queue.empty()) {
      const Candidate candidate = queue.pop();
      Symbol& symbol = symbols_[candidate.position];
      if (symbol.rank != candidate.rank) continue;
      symbol.id = merges_.result(candidate.rank);
      Symbol& taken = symbols_[symbol.next];
      taken.rank = MergeTable::kNone;
      symbol.next = taken.next;
      if (symbol.next != kEnd) symbols_[symbol.next].previous = candidate.position;
      update(candidate.position, queue);
      if (symbol.previous != kEnd) update(symbol.previous, queue);
    }
  }

  void append_to(std::vector<int32_t>& ids) const {
    for (uint32_t i = 0; i != kEnd; i = symbols_[i].next) ids.push_back(symbols_[i].id);
  }

 private:
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct Symbol {
    int32_t id;
    uint32_t previous, next;
    uint32_t rank;  // of the pair that begins here
  };

  // The pair at `position` is new: finds its rank and queues it.
  template <typename Queue>
  void update(uint32_t position, Queue& queue) {
    Symbol& symbol = symbols_[position];
    symbol.rank = symbol.next == kEnd ? MergeTable::kNone : merges_.rank(symbol.id, symbols_[symbol.next].id);
    if (symbol.rank != MergeTable::kNone) queue.push({symbol.rank, position});
  }

  const MergeTable& merges_;
  std::vector<Symbol> symbols_;
};

}  // namespace

PieceTable::PieceTable(const std::vector<std::string>& pieces, const std::vector<bool>& included) {
  begin_.reserve(pieces.size() + 1);
  size_t entries = 0;
  for (size_t id = 0; id < pieces.size(); ++id) {
    begin_.push_back(static_cast<uint32_t>(bytes_.size()));
    bytes_ += pieces[id];
    entries += included[id] ? 1 : 0;
  }
  begin_.push_back(static_cast<uint32_t>(bytes_.size()));
  slots_.resize(slot_count(entries));
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (!included[id]) continue;
    longest_entry_bytes_ = std::max(longest_entry_bytes_, pieces[id].size());
    const uint64_t hash = hash_bytes(pieces[id]);
    size_t at = home(hash, slots_.size());
    while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {static_cast<uint32_t>(hash), static_cast<int32_t>(id)};
  }
}

int32_t PieceTable::find(std::string_view bytes) const {
  if (bytes.size() > longest_entry_bytes_) return -1;
  const uint64_t hash = hash_bytes(bytes);
  for (size_t at = home(hash, slots_.size()); slots_[at].id >= 0; at = (at + 1) & (slots_.size() - 1))
    if (slots_[at].tag == static_cast<uint32_t>(hash) && piece(slots_[at].id) == bytes) return slots_[at].id;
  return -1;
}

MergeTable::MergeTable(const std::vector<Merge>& merges) : slots_(slot_count(merges.size())) {
  results_.reserve(merges.size());
  for (const Merge& merge : merges) {
    size_t at = home(hash_pair(merge.left, merge.right), slots_.size());
    while (slots_[at].rank != kNone && (slots_[at].left != merge.left || slots_[at].right != merge.right))
      at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {merge.left, merge.right, static_cast<uint32_t>(results_.size())};
    results_.push_back(merge.result);
  }
}

uint32_t MergeTable::rank(int32_t left, int32_t right) const {
  for (size_t at = home(hash_pair(left, right), slots_.size());; at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.rank == kNone || (slot.left == left && slot.right == right)) return slot.rank;
  }
}

void BytePairEncoder::encode(std::string_view bytes, std::vector<int32_t>& ids) const {
  bytes.size() <= kShortBytes ? encode_short(bytes, ids) : encode_long(bytes, ids);
}

// ranks[i] is that of the pair (symbols[i], symbols[i + 1]); a merge closes the gap in both arrays.
void BytePairEncoder::encode_short(std::string_view bytes, std::vector<int32_t>& ids) const {
  std::array<int32_t, kShortBytes> symbols{};
  std::array<uint32_t, kShortBytes> ranks{};
  size_t count = bytes.size();
  for (size_t i = 0; i < count; ++i) symbols[i] = byte_ids_[static_cast<uint8_t>(bytes[i])];
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = merges_.rank(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == MergeTable::kNone) break;
    symbols[best] = merges_.result(ranks[best]);
    --count;
    for (size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) ranks[i] = ranks[i + 1];
    if (best + 1 < count) ranks[best] = merges_.rank(symbols[best], symbols[best + 1]);
    if (best > 0) ranks[best - 1] = merges_.rank(symbols[best - 1], symbols[best]);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + static_cast<ptrdiff_t>(count));
}

void BytePairEncoder::encode_long(std::string_view bytes, std::vector<int32_t>& ids) const {
  SymbolList list(bytes, byte_ids_, merges_);
  if (bytes.size() < bucket_bytes_) {
    HeapQueue queue;
    list.merge_all(queue);
  } else {
    BucketQueue queue(merges_.size());
    list.merge_all(queue);
  }
  list.append_to(ids);
}

}  // namespace verbatim::text
