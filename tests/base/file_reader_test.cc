#include "base/file_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/process_memory.h"

namespace verbatim {
namespace {

std::filesystem::path temporary(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) / ("file_reader_test." + name);
}

TEST(FileReader, ReadsFromFrontToBack) {
  const auto path = temporary("bytes");
  std::string text(FileReader::kPieceBytes + 1000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 251);
  write_file_atomically(path, text);
  FileReader file(path);
  EXPECT_EQ(file.size(), text.size());
  std::vector<std::byte> piece(2 * FileReader::kPieceBytes);  // a call gives kPieceBytes at most
  std::string read;
  while (const size_t n = file.read(piece)) {
    EXPECT_LE(n, FileReader::kPieceBytes);
    read.append(reinterpret_cast<const char*>(piece.data()), n);
    file.drop_behind();
  }
  EXPECT_EQ(file.position(), text.size());
  EXPECT_EQ(read == text, true);
  std::filesystem::remove(path);
}

TEST(FileReader, RefusesWhatCannotBeRead) {
  EXPECT_THROW(FileReader{temporary("absent")}, Error);
  EXPECT_THROW(drop_cached_pages(temporary("absent")), Error);
  EXPECT_THROW(cached_bytes(temporary("absent")), Error);
  FileReader directory{testing::TempDir()};
  std::vector<std::byte> piece(16);
  EXPECT_THROW(directory.read(piece), Error);
}

// What is read is held, unless a system without a page cache of its own says otherwise; nobody maps it, so what a
// system that has one drops is all of it.
TEST(CachedBytes, FollowWhatIsReadAndDropped) {
  const auto path = temporary("cached");
  write_file_atomically(path, std::string(100000, 'x'));
  EXPECT_EQ(cached_bytes(path), 100000u);  // written just now
  drop_cached_pages(path);
  const uint64_t kept = cached_bytes(path);
  EXPECT_TRUE(kept == 0 || kept == 100000) << kept;  // a file system in memory keeps all
  EXPECT_EQ(read_text_file(path, 100000).size(), 100000u);
  EXPECT_EQ(cached_bytes(path), 100000u);
  write_file_atomically(path, "");
  EXPECT_EQ(cached_bytes(path), 0u);
  std::filesystem::remove(path);
}

// What a mapped file lets go of is in no cache either; the rest of it stays, and all is read again.
TEST(CachedBytes, LoseWhatAMappedFileReleases) {
  const auto path = temporary("released");
  constexpr size_t kBytes = 8 << 20, kHalf = kBytes / 2;
  write_file_atomically(path, std::string(kBytes, 'x'));
  drop_cached_pages(path);
  if (cached_bytes(path) != 0) GTEST_SKIP() << "a file system in memory keeps all";
  const MappedFile file(path);
  const auto touch = [&] {
    size_t sum = 0;
    for (const std::byte each : file.bytes()) sum += std::to_integer<size_t>(each);
    return sum;
  };
  EXPECT_EQ(touch(), kBytes * 'x');
  EXPECT_EQ(cached_bytes(path), kBytes);
  file.release(0, kHalf);
  // The system may keep a large page that reaches over the end.
  EXPECT_LE(cached_bytes(path), kBytes - kHalf + (2 << 20));
  EXPECT_GE(cached_bytes(path), kBytes - kHalf);
  EXPECT_EQ(touch(), kBytes * 'x');
  std::filesystem::remove(path);
}

TEST(PeakResident, FollowsWhatIsTouched) {
  if (!reset_peak_resident() || peak_resident_bytes() == 0) GTEST_SKIP() << "the system does not tell";
  constexpr size_t kBytes = 64 << 20;
  const uint64_t before = peak_resident_bytes();
  {
    const std::vector<char> touched(kBytes, 1);
    EXPECT_EQ(touched[kBytes / 2], 1);
  }
  EXPECT_GE(peak_resident_bytes(), before + kBytes * 9 / 10);
  ASSERT_TRUE(reset_peak_resident());
  EXPECT_LT(peak_resident_bytes(), before + kBytes / 2);
}

}  // namespace
}  // namespace verbatim
