#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "base/sha256.h"
#include "checkpoint/index.h"
#include "tests/checkpoint/test_files.h"
#include "tests/checkpoint/writer_sample.h"

namespace verbatim::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string sha256_of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return to_hex(hash.finish());
}

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = writer_sample_byte(i);
  return bytes;
}

size_t files_in(const fs::path& directory) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

TEST(Safetensors, EmptyFilesOfTensorsAreFine) {
  for (const char* header : {"{}", "{ }   ", R"({"__metadata__":{}})"}) {
    const std::string file = file_of(header);
    EXPECT_TRUE(parse_header(std::as_bytes(std::span(file)), "f").tensors.empty()) << header;
  }
}

TEST(Safetensors, OrderOfNamesNeedNotBeOrderOfOffsets) {
  const std::string file = file_of(
      R"({"z":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"},"e":{"dtype":"F32","shape":[0],"data_offsets":[1,1]},"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
      "xyz");
  const Header header = parse_header(std::as_bytes(std::span(file)), "f");
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "z");
  EXPECT_EQ(header.tensors[1].name, "e");
  EXPECT_EQ(header.tensors[2].name, "a");
  EXPECT_EQ(header.tensors[2].begin, header.data_begin + 1);
}

TEST(Safetensors, FileFindsByName) {
  const SafetensorsFile golden(fs::path(VERBATIM_TINY) / "golden.safetensors");
  EXPECT_EQ(golden.find("no such"), nullptr);
  EXPECT_EQ(golden.at("text.5.ids").shape, (Shape{5}));
  EXPECT_EQ(golden.data(golden.at("text.5.ids")).size(), 20u);
  const Refusal refusal = refusal_of([&] { golden.at("no such"); });
  EXPECT_NE(refusal.message.find("'no such': not found among"), std::string::npos) << refusal.message;
}

// The committed vector: what the reference implementation saw in the file that the writer makes.
TEST(SafetensorsWriter, WritesWhatTheReferenceReads) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "sample.safetensors";
  write_writer_sample(path);
  const auto seen = nlohmann::json::parse(read_text_file(fs::path(VERBATIM_FIXTURES) / "writer_sample.json", 1 << 20));
  const SafetensorsFile file(path);
  EXPECT_EQ(sha256_of(MappedFile(path).bytes()), seen["file_sha256"].get<std::string>());
  ASSERT_EQ(file.header().tensors.size(), seen["tensors"].size());
  EXPECT_EQ(nlohmann::json(file.header().metadata), seen["metadata"]);
  for (const HeaderTensor& tensor : file.header().tensors) {
    const auto& row = seen["tensors"][tensor.name];
    EXPECT_EQ(dtype_name(tensor.dtype), row["dtype"].get<std::string>()) << tensor.name;
    EXPECT_EQ((std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())),
              row["shape"].get<std::vector<int64_t>>());
    EXPECT_EQ(sha256_of(file.data(tensor)), row["sha256"].get<std::string>()) << tensor.name;
  }
}

TEST(SafetensorsWriter, RoundTripsToTheBitAtEveryOffset) {
  const std::vector<TensorSpec> tensors = writer_sample_tensors();
  for (uint32_t modulo = 0; modulo < 8; ++modulo) {
    const TemporaryDirectory directory;
    const fs::path path = directory.path() / "t.safetensors";
    SafetensorsWriter writer(path, tensors, {{"k", "v"}}, {.data_begin_modulo_8 = modulo});
    const std::vector<std::byte> payload = some_bytes(writer.payload_bytes());
    // Cut anywhere, across tensors.
    for (size_t at = 0; at < payload.size(); at += 7)
      writer.append(std::span(payload).subspan(at, std::min<size_t>(7, payload.size() - at)));
    EXPECT_FALSE(fs::exists(path));
    writer.finish();
    EXPECT_EQ(files_in(directory.path()), 1u);
    const SafetensorsFile file(path);
    EXPECT_EQ(file.header().data_begin % 8, modulo);
    EXPECT_EQ(file.header().metadata.at("k"), "v");
    size_t at = 0;
    for (const TensorSpec& spec : tensors) {
      const HeaderTensor& tensor = file.at(spec.name);
      EXPECT_EQ(tensor.dtype, spec.dtype);
      EXPECT_EQ(tensor.shape, spec.shape);
      const auto data = file.data(tensor);
      EXPECT_TRUE(std::equal(data.begin(), data.end(), payload.begin() + static_cast<std::ptrdiff_t>(at))) << spec.name;
      at += data.size();
    }
  }
}

TEST(SafetensorsWriter, RemovesWhatIsPartial) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "t.safetensors";
  write_bytes(path, "an older file");
  {
    SafetensorsWriter writer(path, {{"t", DType::kU8, {4}}});
    writer.append(some_bytes(2));
    EXPECT_EQ(files_in(directory.path()), 2u);
  }
  EXPECT_EQ(files_in(directory.path()), 1u);
  EXPECT_EQ(read_bytes(path), "an older file");
  SafetensorsWriter writer(path, {{"s", DType::kU8, {2}}, {"t", DType::kU8, {4}}});
  writer.append(some_bytes(3));
  const Refusal incomplete = refusal_of([&] { writer.finish(); });
  EXPECT_NE(incomplete.message.find("tensor 't': incomplete, 3 bytes were written; expected 6"), std::string::npos)
      << incomplete.message;
  EXPECT_EQ(files_in(directory.path()), 1u);
  EXPECT_EQ(refusal_of([&] { writer.append(some_bytes(1)); }).kind, ErrorKind::kUsage);
  EXPECT_EQ(refusal_of([&] { writer.finish(); }).kind, ErrorKind::kUsage);
  SafetensorsWriter longer(path, {{"t", DType::kU8, {4}}});
  const Refusal surplus = refusal_of([&] { longer.append(some_bytes(5)); });
  EXPECT_NE(surplus.message.find("5 bytes after the first 0; expected 4"), std::string::npos) << surplus.message;
  EXPECT_EQ(files_in(directory.path()), 1u);
}

TEST(SafetensorsWriter, RefusesWhatCannotBeWritten) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "t.safetensors";
  auto refused = [&](std::vector<TensorSpec> tensors) {
    const Refusal refusal = refusal_of([&] { SafetensorsWriter(path, std::move(tensors)); });
    EXPECT_EQ(refusal.kind, ErrorKind::kUsage);
    return refusal.message;
  };
  EXPECT_NE(refused({{"t", DType::kU8, {1}}, {"t", DType::kU8, {1}}}).find("'t': declared twice"), std::string::npos);
  EXPECT_NE(refused({{"__metadata__", DType::kU8, {1}}}).find("reserved"), std::string::npos);
  EXPECT_NE(refused({{"t", DType::kU8, {-1}}}).find("[-1]"), std::string::npos);
  EXPECT_NE(refused({{"t", DType::kF32, {int64_t{1} << 61, 4}}}).find("impossible"), std::string::npos);
  EXPECT_NE(refused({{"t\xff", DType::kU8, {1}}}).find("not UTF-8"), std::string::npos);
  EXPECT_EQ(files_in(directory.path()), 0u);
  const Refusal absent = refusal_of([&] {
    SafetensorsWriter(directory.path() / "no" / "t", {{"t", DType::kU8, {1}}});
  });
  EXPECT_EQ(absent.kind, ErrorKind::kIo);
  EXPECT_NE(absent.message.find("cannot create"), std::string::npos);
}

// A full disk: the partial file's name leads to /dev/full, which says so on every write.
TEST(SafetensorsWriter, FullDisk) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "t.safetensors";
  fs::create_symlink("/dev/full", directory.path() / "t.safetensors.partial");
  const Refusal refusal = refusal_of([&] { SafetensorsWriter(path, {{"t", DType::kU8, {4}}}); });
  ASSERT_TRUE(refusal.thrown);
  EXPECT_EQ(static_cast<int>(refusal.kind), static_cast<int>(ErrorKind::kIo));
  EXPECT_NE(refusal.message.find("t.safetensors] cannot write: No space left on device"), std::string::npos)
      << refusal.message;
  EXPECT_EQ(files_in(directory.path()), 0u);
}

// The disk fills in the middle of the data.
TEST(SafetensorsWriter, DiskThatFillsInTheMiddle) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "t.safetensors";
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Refusal refusal = refusal_of([&] {
    SafetensorsWriter writer(path, {{"t", DType::kU8, {100000}}});
    for (int i = 0; i < 100; ++i) writer.append(some_bytes(1000));
    writer.finish();
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_TRUE(refusal.thrown);
  EXPECT_EQ(static_cast<int>(refusal.kind), static_cast<int>(ErrorKind::kIo));
  EXPECT_NE(refusal.message.find("cannot write"), std::string::npos) << refusal.message;
  EXPECT_EQ(files_in(directory.path()), 0u);
}

TEST(Index, WritesWhatItReads) {
  const TemporaryDirectory directory;
  write_index(directory.path(), {{"b", "2.safetensors"}, {"a", "1.safetensors"}, {"c", "2.safetensors"}}, 123);
  const Index index = parse_index(read_bytes(directory.path() / kIndexName), "index");
  EXPECT_EQ(index.total_size, 123u);
  EXPECT_EQ(index.files, (std::vector<std::string>{"1.safetensors", "2.safetensors"}));
  ASSERT_EQ(index.entries.size(), 3u);
  EXPECT_EQ(index.entries[0].tensor, "a");
  EXPECT_EQ(index.entries[0].file, 0u);
  EXPECT_EQ(index.entries[2].tensor, "c");
  EXPECT_EQ(index.entries[2].file, 1u);
}

TEST(Index, SkipsWhatItDoesNotUse) {
  const Index index = parse_index(
      R"({"other":[1,null,{"weight_map":{"x":1}}],"metadata":{"total_size":1.5e3,"a":{"total_size":2},"b":true,"c":-1},"weight_map":{"a":"f"},"z":null})",
      "index");
  EXPECT_EQ(index.total_size, 1500u);
  ASSERT_EQ(index.entries.size(), 1u);
}

}  // namespace
}  // namespace verbatim::checkpoint
