#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <queue>
#include <random>

#include "text/merge_queue.h"

namespace verbatim::text {
namespace {

std::array<int32_t, 256> identity() {
  std::array<int32_t, 256> ids{};
  for (int32_t i = 0; i < 256; ++i) ids[static_cast<size_t>(i)] = i;
  return ids;
}

// The definition: find the pair of lowest rank, the leftmost of equals, until there is none.
std::vector<int32_t> by_definition(const std::vector<Merge>& merges, std::string_view bytes) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t i = 0; i < merges.size(); ++i) ranks[{merges[i].left, merges[i].right}] = i;
  std::vector<int32_t> ids;
  for (const char c : bytes) ids.push_back(static_cast<uint8_t>(c));
  for (;;) {
    size_t best_rank = merges.size(), best = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found != ranks.end() && found->second < best_rank) {
        best_rank = found->second;
        best = i;
      }
    }
    if (best_rank == merges.size()) return ids;
    ids[best] = merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

// Random merge lists over few letters: ranks in any order, several splits of one piece, pairs given twice.
TEST(BytePairEncoder, MergesByTheDefinition) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const uint32_t letters = 1 + random() % 4;
    std::vector<std::string> pieces;
    std::map<std::string, int32_t> ids;
    for (uint32_t i = 0; i < letters; ++i) {
      pieces.emplace_back(1, static_cast<char>('a' + i));
      ids[pieces.back()] = 'a' + static_cast<int32_t>(i);
    }
    std::vector<Merge> merges;
    for (uint32_t i = 0; i < 30; ++i) {
      const std::string left = pieces[random() % pieces.size()], right = pieces[random() % pieces.size()];
      if (left.size() + right.size() > 12) continue;
      const auto [entry, is_new] = ids.emplace(left + right, 256 + static_cast<int32_t>(ids.size()));
      if (is_new) pieces.push_back(left + right);
      merges.push_back({ids[left], ids[right], entry->second});
    }
    if (trial % 2) std::shuffle(merges.begin(), merges.end(), random);
    const BytePairEncoder encoder(merges, identity(), trial % 3 == 0 ? BytePairEncoder::kBucketBytes : 0);
    for (const size_t bytes : {0, 1, 2, 5, 20, 31, 32, 33, 64, 300}) {
      std::string text;
      while (text.size() < bytes) text.push_back(static_cast<char>('a' + random() % letters));
      std::vector<int32_t> encoded = {7};
      encoder.encode(text, encoded);
      std::vector<int32_t> expected = by_definition(merges, text);
      expected.insert(expected.begin(), 7);
      EXPECT_EQ(encoded, expected) << text;
    }
  }
}

// Pushes in any order, between pops too, equal candidates included.
template <typename Queue>
void pops_in_order(Queue queue, uint32_t ranks, uint32_t seed) {
  std::mt19937 random(seed);
  std::priority_queue<std::pair<uint32_t, uint32_t>, std::vector<std::pair<uint32_t, uint32_t>>, std::greater<>>
      expected;
  for (int step = 0; step < 20000; ++step) {
    ASSERT_EQ(queue.empty(), expected.empty());
    if (!expected.empty() && random() % (step < 10000 ? 3 : 2) == 0) {
      const Candidate popped = queue.pop();
      ASSERT_EQ(std::pair(popped.rank, popped.position), expected.top());
      expected.pop();
    } else {
      const Candidate candidate = {static_cast<uint32_t>(random() % ranks), static_cast<uint32_t>(random() % 1000)};
      queue.push(candidate);
      expected.emplace(candidate.rank, candidate.position);
    }
  }
  for (; !expected.empty(); expected.pop()) {
    const Candidate popped = queue.pop();
    ASSERT_EQ(std::pair(popped.rank, popped.position), expected.top());
    ASSERT_EQ(queue.empty(), expected.size() == 1);
  }
}

TEST(MergeQueue, PopsTheLowestRankThenTheLeftmost) {
  for (const uint32_t ranks : {1, 2, 64, 65, 5000, 100000}) {
    pops_in_order(HeapQueue(), ranks, ranks);
    pops_in_order(BucketQueue(ranks), ranks, ranks);
  }
}

TEST(PieceTable, FindsWhatIsIncluded) {
  std::mt19937 random(6);
  std::vector<std::string> pieces = {""};
  std::vector<bool> included = {false};
  std::map<std::string, int32_t> expected;
  for (int32_t id = 1; id < 20000; ++id) {
    std::string piece;
    for (uint32_t i = 1 + random() % 20; i > 0; --i) piece.push_back(static_cast<char>(random() % 256));
    const bool enter = random() % 4 != 0 && expected.emplace(piece, id).second;
    pieces.push_back(piece);
    included.push_back(enter);
  }
  const PieceTable table(pieces, included);
  EXPECT_EQ(table.ids(), 20000);
  for (int32_t id = 0; id < 20000; ++id) {
    const std::string& piece = pieces[static_cast<size_t>(id)];
    EXPECT_EQ(table.piece(id), piece);
    const auto found = expected.find(piece);
    EXPECT_EQ(table.find(piece), found == expected.end() ? -1 : found->second);
    EXPECT_EQ(table.find(piece + std::string(21, 'x')), -1);
  }
}

}  // namespace
}  // namespace verbatim::text
