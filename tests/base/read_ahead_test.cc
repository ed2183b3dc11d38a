// ReadAhead: no further ahead than it may, errors to who calls it, and an end at any time.
#include "base/read_ahead.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"

namespace verbatim {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMiB = 1 << 20;

class ReadAheadTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::path(testing::TempDir()) / ("read_ahead_" + std::to_string(::getpid()));
    std::ofstream(path_) << "x";
    fs::resize_file(path_, 64 * kMiB);
  }
  void TearDown() override { fs::remove(path_); }

  // Bytes that this process has asked read calls for.
  static uint64_t asked() {
    std::ifstream file("/proc/self/io");
    std::string key;
    uint64_t bytes = 0;
    file >> key >> bytes;
    return key == "rchar:" ? bytes : 0;
  }
  // Waits until `bytes` more have been asked for; what has been a little later.
  static uint64_t settled(uint64_t before, uint64_t bytes) {
    for (int i = 0; i < 500 && asked() - before < bytes; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return asked() - before;
  }

  fs::path path_;
};

TEST_F(ReadAheadTest, StaysNearItsReader) {
  const MappedFile file(path_);
  if (asked() == 0) GTEST_SKIP() << "/proc/self/io does not say what was read";
  constexpr uint64_t kSlack = kMiB;  // of reading /proc itself
  const uint64_t before = asked();
  ReadAhead ahead({{&file, 0, 32 * kMiB}, {&file, 40 * kMiB, 24 * kMiB}}, 8 * kMiB);
  uint64_t read = settled(before, 8 * kMiB);
  EXPECT_GE(read, 8 * kMiB);
  EXPECT_LE(read, 8 * kMiB + kSlack);
  ahead.passed(8 * kMiB);
  read = settled(before, 16 * kMiB);
  EXPECT_GE(read, 16 * kMiB);
  EXPECT_LE(read, 16 * kMiB + kSlack);
  // What has been passed already is not read.
  ahead.passed(52 * kMiB);
  read = settled(before, 20 * kMiB);
  EXPECT_GE(read, 20 * kMiB);
  EXPECT_LE(read, 20 * kMiB + kSlack);
}

TEST_F(ReadAheadTest, TellsOfAFileThatEndsEarly) {
  const MappedFile file(path_);
  fs::resize_file(path_, 3 * kMiB);
  ReadAhead ahead({{&file, 2 * kMiB, 4 * kMiB}}, 8 * kMiB);
  try {
    for (int i = 0; i < 500; ++i) {
      ahead.passed(0);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_NE(std::string(error.what()).find("ends at byte 3145728"), std::string::npos) << error.what();
  }
}

TEST_F(ReadAheadTest, EndsWhileItWaits) {
  const MappedFile file(path_);
  const ReadAhead ahead({{&file, 0, 64 * kMiB}}, 0);
  const ReadAhead nothing({}, 0);
}

}  // namespace
}  // namespace verbatim
