// Opens the released size: 147,661 tensors in 33 shards with an index, as sparse files.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "checkpoint/stored_matrix.h"
#include "tests/checkpoint/test_files.h"

namespace verbatim::checkpoint {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(ReleasedSize, OpensInTwoSecondsAnd300MB) {
  const TemporaryDirectory directory;
  const std::filesystem::path script =
      std::filesystem::path(VERBATIM_FIXTURES).parent_path().parent_path() / "scripts" / "make_sparse_release.py";
  ASSERT_EQ(std::system(fmt::format("python3 '{}' '{}'", script.string(), directory.path().string()).c_str()), 0);

  // The best of three: other work on the machine may take the processor away for a while.
  double open_seconds = 1e9;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const Checkpoint opened = Checkpoint::open(directory.path());
    open_seconds = std::min(open_seconds, seconds_since(start));
  }
  const Checkpoint c = Checkpoint::open(directory.path());
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const double resident_megabytes = static_cast<double>(usage.ru_maxrss) / 1000;
  EXPECT_EQ(c.tensors().size(), 147661u);
  EXPECT_EQ(c.payload_bytes(), 204419110596u);
  EXPECT_EQ(c.shard_count(), 33u);
  EXPECT_LT(open_seconds, 2);
  EXPECT_LT(resident_megabytes, 300);

  // Every routed expert as a matrix: the companions are found among the 147,661.
  const auto resolving = std::chrono::steady_clock::now();
  size_t matrices = 0;
  for (int layer = 3; layer < 45; ++layer)
    for (int expert = 0; expert < 288; ++expert)
      for (const char* name : {"gate", "up", "down"}) {
        const bool down = name[0] == 'd';
        const StoredMatrix matrix =
            resolve_matrix(c, fmt::format("model.language_model.layers.{}.mlp.experts.{}.{}_proj", layer, expert, name),
                           down ? 4096 : 2048, down ? 2048 : 4096);
        matrices += matrix.form == Form::kNvfp4 && matrix.input_scale != nullptr;
      }
  EXPECT_EQ(matrices, 36288u);
  fmt::print("open {:.3f} s, {:.0f} MB resident; {} matrices resolved in {:.3f} s\n", open_seconds, resident_megabytes,
             matrices, seconds_since(resolving));
}

}  // namespace
}  // namespace verbatim::checkpoint
