// Renderings recorded from Jinja2 by scripts/oracle_jinja.py, and those of the released template where it is at hand.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/chat_inputs.h"
#include "text/jinja/template.h"

namespace verbatim::text::jinja {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr size_t kLargestFixtureBytes = size_t{16} << 20;

const Json& vectors() {
  static const Json parsed = parse_ordered_json(
      read_text_file(fs::path(VERBATIM_FIXTURES) / "text" / "template_vectors.json", kLargestFixtureBytes), "vectors");
  return parsed;
}

// One recorded rendering: the same text, or an error on both sides.
void expect_recorded(const std::string& source, const Json& inputs, const Json& recorded) {
  std::string text;
  try {
    text = Template::parse(source, "test").render(inputs).bytes();
  } catch (const Error& error) {
    EXPECT_TRUE(recorded.contains("error")) << error.what() << "\n" << source;
    return;
  }
  if (recorded.contains("error")) {
    ADD_FAILURE() << source << "\nrenders, but Jinja2 fails: " << recorded["error"];
    return;
  }
  EXPECT_EQ(text, recorded["text"].get<std::string>()) << source;
}

TEST(JinjaVectors, SnippetsRenderAsRecorded) {
  ASSERT_GE(vectors()["snippets"].size(), 130u);
  for (const Json& one : vectors()["snippets"])
    expect_recorded(one["template"].get<std::string>(), vectors()["variables"], one);
}

TEST(JinjaVectors, ConversationsRenderAsRecorded) {
  std::map<std::string, std::string> sources;
  ASSERT_GE(vectors()["conversations"].size(), 240u);
  for (const Json& one : vectors()["conversations"]) {
    const std::string name = one["template"].get<std::string>();
    std::string& source = sources[name];
    if (source.empty()) source = read_text_file(fs::path(VERBATIM_SOURCE) / name, kLargestFixtureBytes);
    expect_recorded(source, one["inputs"], one);
  }
  EXPECT_EQ(sources.size(), 4u);
}

TEST(JinjaVectors, ReleasedTemplateRendersAsRecorded) {
  const fs::path directory = VERBATIM_RELEASED_CHAT;
  if (!fs::exists(directory / "chat_template.jinja"))
    GTEST_SKIP() << "the released template is not part of this repository and not at " << directory;
  const Template parsed =
      Template::parse(read_text_file(directory / "chat_template.jinja", kLargestFixtureBytes), "chat_template.jinja");
  const Json renders = parse_ordered_json(read_text_file(directory / "renders.json", kLargestFixtureBytes), "renders");
  ASSERT_EQ(renders.size(), 97u);
  for (const Json& one : renders)
    EXPECT_EQ(parsed.render(one["inputs"]).bytes(), one["text"].get<std::string>()) << one["name"];
}

}  // namespace
}  // namespace verbatim::text::jinja
