// Prompts of 7,820 and 31,020 tokens: whole, in chunks, resumed from the tree and beside others, twice: the same logits
// at the last row and the same 64 tokens.
#include <gtest/gtest.h>

#include "tests/engine/mixes.h"

namespace verbatim::engine {
namespace {

TEST(LongPrompt, OneResult) {
  model::Loaded loaded(model::tiny("tiny-nvfp4"));
  loaded.model.config.max_positions = 1 << 20;  // nothing in the arithmetic knows positions
  for (const int64_t length : {7820, 31020}) {
    Request request;
    request.prompt = model::random_ids(length, 11);
    request.max_tokens = 64;
    request.hash_logits = true;
    request.sampling.temperature = 0;
    auto run = [&](int64_t rows, bool warm, int others) {
      Mix mix;
      mix.threads = 2;
      mix.model = {.max_rows = rows, .slots = 1 + others, .pages = state::pages_for(length + 65) + 8 * 10};
      mix.scheduler.step_rows = rows;
      mix.scheduler.prompt_rows = rows;
      mix.scheduler.snapshot_bytes = warm ? int64_t{1} << 30 : 0;
      mix.warm = warm;
      mix.requests = {request};
      for (int i = 0; i < others; ++i) {
        Request other = request;
        other.prompt = model::random_ids(100 + 50 * i, 20 + static_cast<uint64_t>(i));
        mix.requests.push_back(other);
      }
      mix.submit_at.assign(mix.requests.size(), 0);
      mix.cancel_at.assign(mix.requests.size(), -1);
      SchedulerStats stats;
      const auto replies = run_mix(mix, loaded.model, {}, &stats);
      if (warm) {
        EXPECT_GT(stats.cached_tokens, length - 64 - 1);
      }
      return replies[0][0];
    };
    const Reply expected = run(length, false, 0);
    ASSERT_EQ(expected.ids.size(), 64u);
    for (int twice = 0; twice < 2; ++twice)
      for (const auto& [rows, warm, others] : {std::tuple{length, false, 0},
                                               {int64_t{64}, false, 0},
                                               {int64_t{2048}, false, 0},
                                               {int64_t{2048}, true, 0},
                                               {int64_t{2048}, false, 8}}) {
        const Reply reply = run(rows, warm, others);
        EXPECT_EQ(reply.ids, expected.ids) << length << " in chunks of " << rows;
        EXPECT_EQ(reply.logits, expected.logits) << length << " in chunks of " << rows;
      }
  }
}

}  // namespace
}  // namespace verbatim::engine
