// Asks the reference implementation (python3 with the package safetensors) what it sees in the writer's sample.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/mapped_file.h"
#include "tests/checkpoint/test_files.h"
#include "tests/checkpoint/writer_sample.h"

namespace verbatim::checkpoint {
namespace {

TEST(SafetensorsOracle, SeesWhatIsCommitted) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "sample.safetensors";
  write_writer_sample(path);
  const std::filesystem::path fixtures(VERBATIM_FIXTURES);
  const std::string script = (fixtures.parent_path().parent_path() / "scripts" / "oracle_safetensors.py").string();
  FILE* pipe = ::popen(fmt::format("python3 '{}' '{}'", script, path.string()).c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string seen;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) seen += static_cast<char>(c);
  ASSERT_EQ(::pclose(pipe), 0) << "python3 needs the package safetensors";
  EXPECT_EQ(seen, read_text_file(fixtures / "writer_sample.json", 1 << 20));
}

}  // namespace
}  // namespace verbatim::checkpoint
