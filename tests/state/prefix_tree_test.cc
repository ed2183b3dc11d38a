#include "state/prefix_tree.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"

namespace verbatim::state {
namespace {

std::vector<int32_t> text(int64_t pages, int32_t last_page) {
  std::vector<int32_t> tokens(static_cast<size_t>(pages * ops::kPageTokens));
  std::iota(tokens.begin(), tokens.end(), 0);
  for (int64_t i = (pages - 1) * ops::kPageTokens; i < std::ssize(tokens); ++i)
    tokens[static_cast<size_t>(i)] = last_page;
  return tokens;
}

std::shared_ptr<const Snapshot> snapshot(size_t floats = 10) {
  auto made = std::make_shared<Snapshot>();
  made->values.resize(floats);
  return made;
}

class PrefixTreeTest : public testing::Test {
 protected:
  std::vector<int32_t> take(int64_t count) {
    std::vector<int32_t> pages;
    for (int64_t i = 0; i < count; ++i) pages.push_back(*pool_.take());
    return pages;
  }
  void release(const std::vector<int32_t>& pages) {
    for (const int32_t page : pages) pool_.release(page);
  }
  PagePool pool_{20};
};

TEST_F(PrefixTreeTest, ResumesAtTheDeepestSnapshot) {
  PrefixTree tree(pool_, 1000);
  const auto tokens = text(3, 7);
  const auto pages = take(3);
  tree.insert(tokens, pages, true);
  EXPECT_EQ(tree.find(tokens, 192).tokens, 0);  // no snapshot yet
  EXPECT_EQ(tree.find(tokens, 192).matched_tokens, 192);
  tree.attach(std::span(tokens).first(64), snapshot());
  tree.attach(tokens, snapshot());
  PrefixTree::Match match = tree.find(tokens, 192);
  EXPECT_EQ(match.tokens, 192);
  EXPECT_EQ(match.pages, pages);
  EXPECT_TRUE(match.next_n_complete);
  for (const int32_t page : pages) EXPECT_EQ(pool_.holders(page), 3);  // taker, tree, match
  release(match.pages);
  match = tree.find(tokens, 191);  // one token must be left to feed
  EXPECT_EQ(match.tokens, 64);
  EXPECT_EQ(match.matched_tokens, 128);
  release(match.pages);
  match = tree.find(text(3, 8), 192);  // another third page
  EXPECT_EQ(match.tokens, 64);
  EXPECT_EQ(match.matched_tokens, 128);
  release(match.pages);
  tree.detach(std::span(tokens).first(64));
  EXPECT_EQ(tree.find(text(3, 8), 192).tokens, 0);
  release(pages);
  tree.clear();
  EXPECT_EQ(pool_.free(), 20);
}

TEST_F(PrefixTreeTest, SnapshotsStayInTheirBudget) {
  PrefixTree tree(pool_, 100);  // two of 40 bytes
  std::vector<std::vector<int32_t>> texts;
  for (int32_t i = 0; i < 4; ++i) {
    texts.push_back(text(1, i));
    const auto pages = take(1);
    tree.insert(texts.back(), pages, true);
    release(pages);
    tree.attach(texts.back(), snapshot());
    EXPECT_LE(tree.snapshot_bytes(), 100);
    // The first is used again and again, so the others go.
    release(tree.find(texts[0], 64).pages);
  }
  EXPECT_TRUE(tree.has_snapshot(texts[0]));
  EXPECT_TRUE(tree.has_snapshot(texts[3]));
  EXPECT_FALSE(tree.has_snapshot(texts[1]));
  EXPECT_FALSE(tree.has_snapshot(texts[2]));
  tree.attach(texts[1], snapshot(1000));  // larger than the budget: not kept, nothing lost
  EXPECT_EQ(tree.snapshots(), 2);
}

TEST_F(PrefixTreeTest, EvictsLeavesThatNobodyHolds) {
  PrefixTree tree(pool_, 1000);
  const auto a = text(3, 1), b = text(3, 2);  // two shared pages, two leaves
  const auto pages_a = take(3);
  tree.insert(a, pages_a, true);
  auto pages_b = pages_a;
  pages_b[2] = *pool_.take();
  tree.insert(b, pages_b, false);
  EXPECT_EQ(tree.nodes(), 4);
  EXPECT_FALSE(tree.evict_page());  // all held by us
  pool_.release(pages_b[2]);
  EXPECT_EQ(tree.evictable_pages(), 1);
  EXPECT_TRUE(tree.evict_page());
  EXPECT_FALSE(tree.evict_page());
  EXPECT_EQ(tree.nodes(), 3);
  release(pages_a);
  EXPECT_EQ(tree.evictable_pages(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(tree.evict_page());
  EXPECT_FALSE(tree.evict_page());
  EXPECT_EQ(pool_.free(), 20);
}

TEST_F(PrefixTreeTest, IncompleteNextNRowsAreRemembered) {
  PrefixTree tree(pool_, 1000);
  const auto tokens = text(2, 1);
  const auto pages = take(2);
  tree.insert(std::span(tokens).first(64), pages, true);
  tree.insert(tokens, pages, false);
  tree.attach(tokens, snapshot());
  const auto match = tree.find(tokens, 128);
  EXPECT_FALSE(match.next_n_complete);
  release(match.pages);
  release(pages);
}

TEST_F(PrefixTreeTest, WithoutABudgetNothingIsKept) {
  PrefixTree tree(pool_, 0);
  const auto tokens = text(1, 1);
  const auto pages = take(1);
  tree.insert(tokens, pages, true);
  EXPECT_EQ(tree.nodes(), 0);
  release(pages);
}

TEST(PagePool, CountsHolders) {
  PagePool pool(2);
  const int32_t a = *pool.take(), b = *pool.take();
  EXPECT_NE(a, b);
  EXPECT_FALSE(pool.take());
  pool.hold(a);
  pool.release(a);
  EXPECT_EQ(pool.free(), 0);
  pool.release(a);
  EXPECT_EQ(pool.free(), 1);
  EXPECT_THROW(pool.release(a), Error);
}

}  // namespace
}  // namespace verbatim::state
