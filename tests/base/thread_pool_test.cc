#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace verbatim {
namespace {

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 7, 1000}) {
      for (const int64_t grain : {1, 3, 2000}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
        pool.for_each(count, grain, [&](int64_t begin, int64_t end) {
          EXPECT_LE(end - begin, grain);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        for (const auto& hit : hits) EXPECT_EQ(hit, 1);
      }
    }
  }
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.for_each(100, 1,
                             [](int64_t begin, int64_t) {
                               if (begin == 50) fail(ErrorKind::kFormat, "test", "{}", begin);
                             }),
               Error);
  std::atomic<int64_t> sum{0};
  pool.for_each(10, 1, [&](int64_t begin, int64_t) { sum += begin; });
  EXPECT_EQ(sum, 45);
}

TEST(ThreadPool, NestedCallsRunInLine) {
  ThreadPool pool(2);
  std::atomic<int> total{0};
  pool.for_each(4, 1, [&](int64_t, int64_t) { pool.for_each(5, 1, [&](int64_t, int64_t) { ++total; }); });
  EXPECT_EQ(total, 20);
}

TEST(ThreadPool, RefusesAbsurdSizes) { EXPECT_THROW(ThreadPool(0), Error); }

}  // namespace
}  // namespace verbatim
