#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/gzip.h"

namespace verbatim {
namespace {

std::filesystem::path temporary(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) / ("mapped_file_test." + name);
}

TEST(MappedFile, MapsWhatIsThere) {
  const auto path = temporary("bytes");
  write_file_atomically(path, "hello");
  MappedFile first(path);
  const MappedFile file = std::move(first);
  ASSERT_EQ(file.size(), 5u);
  EXPECT_EQ(static_cast<char>(file.bytes()[4]), 'o');
  EXPECT_EQ(first.size(), 0u);  // NOLINT(bugprone-use-after-move): a moved-from mapping is empty
  EXPECT_EQ(read_text_file(path, 5), "hello");
  EXPECT_THROW(read_text_file(path, 4), Error);
  write_file_atomically(path, "");
  EXPECT_EQ(MappedFile(path).size(), 0u);
}

TEST(MappedFile, RefusesWhatIsNotAFile) {
  EXPECT_THROW(MappedFile{temporary("absent")}, Error);
  EXPECT_THROW(MappedFile{testing::TempDir()}, Error);
}

TEST(WriteFileAtomically, LeavesNothingBehindOnFailure) {
  const auto path = temporary("no_such_directory") / "file";
  EXPECT_THROW(write_file_atomically(path, "x"), Error);
  EXPECT_FALSE(std::filesystem::exists(path));
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(compressBound(text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(Gunzip, InflatesAndRefusesDamage) {
  const std::string text(300000, 'x');
  const std::string packed = gzip(text);
  const auto bytes = std::as_bytes(std::span(packed));
  EXPECT_EQ(gunzip(bytes, text.size(), "t"), text);
  EXPECT_THROW(gunzip(bytes, text.size() - 1, "t"), Error);                  // a bomb
  EXPECT_THROW(gunzip(bytes.first(bytes.size() - 9), 1 << 20, "t"), Error);  // truncated
  EXPECT_THROW(gunzip(bytes.subspan(1), 1 << 20, "t"), Error);               // not gzip
  EXPECT_THROW(gunzip({}, 1 << 20, "t"), Error);
}

}  // namespace
}  // namespace verbatim
