// One result, bit for bit: chunks, threads, instruction sets, decode against prompt, mixtures of spans, rank cuts.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/model/ops_proxy.h"
#include "tests/model/tiny_models.h"

namespace verbatim::model {
namespace {

using state::pages_for;
using state::Sequence;
using state::Storage;

// Lengths at and around multiples of the pool (4), the dense limit of the tiny model (19), C (16) and pages (64).
constexpr int64_t kLengths[] = {1, 3, 4, 5, 15, 16, 17, 18, 19, 20, 21, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200};

TEST(Bits, ChunksOfAPrompt) {
  for (const auto& [directory, precision] :
       {std::pair{"tiny-bf16", Precision::kFull}, std::pair{"tiny-nvfp4", Precision::kCheckpoint},
        std::pair{"tiny-fp8", Precision::kFull}}) {
    const Loaded loaded(tiny(directory), precision);
    Cpu cpu;
    const std::vector<int32_t> ids = random_ids(200, 1);
    const std::vector<float> whole = prompt_logits(*cpu.ops, loaded.model, ids);
    for (const int64_t chunk : {1, 7, 16, 64})
      EXPECT_EQ(first_difference(prompt_logits(*cpu.ops, loaded.model, ids, chunk), whole), "")
          << directory << " in chunks of " << chunk;
    for (const int64_t length : kLengths) {
      const auto part = std::span(ids).first(static_cast<size_t>(length));
      EXPECT_EQ(first_difference(prompt_logits(*cpu.ops, loaded.model, part),
                                 std::span(whole).first(static_cast<size_t>(length * 512))),
                "")
          << directory << ", a prompt of " << length;
    }
  }
}

TEST(Bits, ThreadsAndInstructionSets) {
  const std::vector<int32_t> ids = random_ids(150, 2);
  for (const auto& [directory, precision] :
       {std::pair{"tiny-bf16", Precision::kFull}, std::pair{"tiny-nvfp4", Precision::kFull},
        std::pair{"tiny-w4a4-experts", Precision::kCheckpoint}, std::pair{"tiny-fp8", Precision::kFull}}) {
    const Loaded loaded(tiny(directory), precision);
    Cpu one(1, ops::CpuIsa::kPlain);
    const std::vector<float> expected = prompt_logits(*one.ops, loaded.model, ids);
    for (const ops::CpuIsa isa : {ops::CpuIsa::kPlain, ops::CpuIsa::kAvx2, ops::CpuIsa::kAvx512}) {
      if (!ops::cpu_isa_available(isa)) {
        std::printf("this machine lacks instruction set %d: not compared\n", static_cast<int>(isa));
        continue;
      }
      for (const int threads : {1, 2, 3}) {
        Cpu cpu(threads, isa);
        EXPECT_EQ(first_difference(prompt_logits(*cpu.ops, loaded.model, ids), expected), "")
            << directory << " " << cpu.ops->name() << ", " << threads << " threads";
      }
    }
  }
}

// Five thousand tokens, far past the dense limit: one by one, in uneven chunks and whole.
TEST(Bits, FiveThousandTokens) {
  const Loaded loaded(tiny("tiny-nvfp4"));
  Cpu cpu;
  const std::vector<int32_t> ids = random_ids(5000, 3);
  const std::vector<float> whole = prompt_logits(*cpu.ops, loaded.model, ids);
  for (const int64_t chunk : {1, 511, 2048})
    EXPECT_EQ(first_difference(prompt_logits(*cpu.ops, loaded.model, ids, chunk), whole), "") << chunk;
}

// One sequence of the mixture below: its tokens and where it stands.
struct Lane {
  std::vector<int32_t> ids;
  Sequence sequence;
  std::vector<float> logits;  // of accepted rows
};

// Random steps over several sequences with shuffled pages: prompt chunks, single tokens, and verification windows whose
// last rows are wrong tokens and are taken back. The logits of every accepted row are those of the sequence alone.
TEST(Bits, AnyMixtureOfSpans) {
  const Loaded loaded(tiny("tiny-nvfp4"));
  const Config& c = loaded.model.config;
  Cpu cpu;
  const std::vector<int64_t> lengths = {150, 97, 64, 33, 5};
  std::vector<std::vector<float>> alone;
  std::vector<int32_t> free_pages(40);
  std::iota(free_pages.begin(), free_pages.end(), 0);
  uint64_t seed = 12345;
  auto random = [&](int64_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((seed >> 33) % static_cast<uint64_t>(below));
  };
  for (size_t i = free_pages.size() - 1; i > 0; --i)
    std::swap(free_pages[i], free_pages[static_cast<size_t>(random(static_cast<int64_t>(i) + 1))]);

  for (int round = 0; round < 6; ++round) {
    Storage storage(*cpu.ops, c, static_cast<int64_t>(lengths.size()), 40);
    Workspace workspace(*cpu.ops, c, 256);
    std::vector<Lane> lanes;
    size_t page = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int64_t pages = pages_for(lengths[i] + ops::kWindowRows);
      std::vector<int32_t> own(free_pages.begin() + static_cast<std::ptrdiff_t>(page),
                               free_pages.begin() + static_cast<std::ptrdiff_t>(page) + pages);
      page += static_cast<size_t>(pages);
      lanes.push_back({random_ids(lengths[i], 50 + i), Sequence(static_cast<int32_t>(i), own), {}});
      if (round == 0) alone.push_back(prompt_logits(*cpu.ops, loaded.model, lanes.back().ids));
    }
    for (int step = 0;; ++step) {
      std::vector<ops::Span> spans;
      std::vector<size_t> owners;
      std::vector<int64_t> accepted;
      std::vector<int32_t> ids;
      for (size_t i = 0; i < lanes.size(); ++i) {
        Lane& lane = lanes[i];
        const int64_t left = lengths[i] - lane.sequence.length();
        if (left == 0 || random(4) == 0) continue;
        const int64_t kind = random(3);
        // A prompt chunk, one token, or a window: some right tokens, then wrong ones.
        const int64_t right = kind == 0   ? 1 + random(std::min<int64_t>(left, 40))
                              : kind == 1 ? 1
                                          : 1 + random(std::min<int64_t>(left, 4));
        const int64_t wrong = kind == 2 ? random(ops::kWindowRows - right + 1) : 0;
        const int64_t certain = kind == 2 ? 1 : right;
        spans.push_back(lane.sequence.next(static_cast<int64_t>(ids.size()), right + wrong, certain));
        owners.push_back(i);
        accepted.push_back(right);
        for (int64_t row = 0; row < right; ++row)
          ids.push_back(lane.ids[static_cast<size_t>(lane.sequence.length() + row)]);
        for (int64_t row = 0; row < wrong; ++row) ids.push_back(static_cast<int32_t>(8 + random(480)));
      }
      const bool done = std::all_of(lanes.begin(), lanes.end(), [&](const Lane& lane) {
        return lane.sequence.length() == static_cast<int64_t>(lane.ids.size());
      });
      if (done) break;
      if (spans.empty()) continue;
      forward(*cpu.ops, loaded.model, storage.state(), spans, ids, workspace);
      std::vector<float> logits(ids.size() * 512);
      head(*cpu.ops, loaded.model, workspace.hidden, static_cast<int64_t>(ids.size()), logits.data());
      for (size_t s = 0; s < spans.size(); ++s) {
        Lane& lane = lanes[owners[s]];
        const auto first = logits.begin() + spans[s].first_row * 512;
        lane.logits.insert(lane.logits.end(), first, first + accepted[s] * 512);
        lane.sequence.accept(spans[s], accepted[s]);
      }
    }
    for (size_t i = 0; i < lanes.size(); ++i)
      EXPECT_EQ(first_difference(lanes[i].logits, alone[i]), "") << "sequence " << i << ", round " << round;
  }
}

// What `ranks` tensor-parallel ranks compute: each owns whole parts of every cut sum, the subtrees are added as a tree.
class RankCut : public OpsProxy {
 public:
  RankCut(ops::Ops& inner, int64_t ranks) : OpsProxy(inner), ranks_(ranks) {}

  void matmul(const ops::Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
              int64_t y_stride) override {
    if (parts == 1) return inner_.matmul(w, x, x_stride, rows, parts, y, y_stride);
    ++cut_products;
    const int64_t columns = w.columns / ranks_;
    std::vector<std::vector<float>> partial;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      partial.emplace_back(static_cast<size_t>(rows * y_stride));
      inner_.matmul(w.column_range(rank * columns, columns), x + rank * columns, x_stride, rows,
                    parts / static_cast<int>(ranks_), partial.back().data(), y_stride);
    }
    add_as_tree(partial, rows, w.rows, y, y_stride);
  }

  void experts(std::span<const ops::ExpertWeights> experts, const ops::ExpertWeights& shared, float limit,
               const float* x, int64_t rows, int64_t top, const int32_t* chosen, const float* weights, int parts,
               float* y) override {
    const int64_t width = shared.down.rows;
    std::vector<std::vector<float>> partial;
    auto share = [&](const ops::ExpertWeights& whole, int64_t rank) {
      const int64_t inner = whole.down.columns / ranks_;
      return ops::ExpertWeights{whole.gate.row_range(rank * inner, inner), whole.up.row_range(rank * inner, inner),
                                whole.down.column_range(rank * inner, inner)};
    };
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      std::vector<ops::ExpertWeights> own;
      for (const ops::ExpertWeights& expert : experts) own.push_back(share(expert, rank));
      partial.emplace_back(static_cast<size_t>(rows * width));
      inner_.experts(own, share(shared, rank), limit, x, rows, top, chosen, weights, parts / static_cast<int>(ranks_),
                     partial.back().data());
    }
    add_as_tree(partial, rows, width, y, width);
  }

  int cut_products = 0;

 private:
  static void add_as_tree(std::vector<std::vector<float>>& partial, int64_t rows, int64_t width, float* y,
                          int64_t stride) {
    for (size_t step = 1; step < partial.size(); step *= 2)
      for (size_t i = 0; i + step < partial.size(); i += 2 * step)
        for (size_t k = 0; k < partial[i].size(); ++k) partial[i][k] += partial[i + step][k];
    for (int64_t row = 0; row < rows; ++row) std::copy_n(partial[0].data() + row * stride, width, y + row * stride);
  }
  int64_t ranks_;
};

TEST(Bits, EightSumPartsOnOneTwoFourAndEightRanks) {
  const std::vector<int32_t> ids = random_ids(70, 4);
  for (const char* directory : {"tiny-bf16", "tiny-nvfp4"}) {
    const Loaded loaded(tiny(directory), Precision::kFull, 8);
    Cpu cpu;
    const std::vector<float> expected = prompt_logits(*cpu.ops, loaded.model, ids);
    for (const int64_t ranks : {1, 2, 4, 8}) {
      RankCut cut(*cpu.ops, ranks);
      EXPECT_EQ(first_difference(prompt_logits(cut, loaded.model, ids), expected), "") << directory << " " << ranks;
      EXPECT_GT(cut.cut_products, 0);
    }
    // Another number of parts is another order of sums: were it ignored, this would be equal.
    const Loaded plain(tiny(directory));
    EXPECT_NE(first_difference(prompt_logits(*cpu.ops, plain.model, ids), expected), "");
    EXPECT_LT(relative_error(prompt_logits(*cpu.ops, plain.model, ids), expected), 1e-4);
  }
}

}  // namespace
}  // namespace verbatim::model
