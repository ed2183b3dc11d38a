#include "model/tensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"

namespace verbatim::model {
namespace {

using checkpoint::Checkpoint;

struct Released {
  const char* name;
  const char* form;
  uint64_t tensors, payload_bytes;
};
// Counts and bytes as published (CHECKPOINTS.md).
constexpr Released kReleased[] = {{"bf16", "bf16", 38770, 642646653816},
                                  {"fp8", "fp8", 76108, 328326771576},
                                  {"nvfp4", "nvfp4", 147661, 204419110596},
                                  {"w4a4_experts", "w4a4-experts", 147634, 205063596408}};

Checkpoint inventory(const std::string& name) {
  const std::string fixtures = VERBATIM_FIXTURES;
  return Checkpoint::from_inventory(fixtures + "/headers/" + name + ".json.gz",
                                    fixtures + "/configs/" + name + "/config.json");
}

TEST(Census, EveryReleasedTensorTakesOneRow) {
  for (const Released& released : kReleased) {
    const Checkpoint stored = inventory(released.name);
    const Config config = parse_config(stored.config_text(), released.name);
    const Census census = take_census(stored, config);
    EXPECT_TRUE(census.problems.empty()) << released.name << ": " << census.problems.front();
    EXPECT_EQ(stored.raw_count(), released.tensors);
    EXPECT_EQ(stored.payload_bytes(), released.payload_bytes);
    EXPECT_EQ(census.form, released.form);
    GroupCount sum;
    for (const GroupCount& group : census.groups) {
      sum.tensors += group.tensors;
      sum.bytes += group.bytes;
    }
    EXPECT_EQ(sum.tensors, released.tensors);
    EXPECT_EQ(sum.bytes, released.payload_bytes);
  }
}

// No name is given by two rows, whatever the config.
TEST(Table, NamesAreUnique) {
  const Checkpoint stored = inventory("bf16");
  const Config config = parse_config(stored.config_text(), "bf16");
  std::set<std::string> names;
  for_each_expected(config, [&](const Expected& expected) {
    EXPECT_TRUE(names.insert(expected.name).second) << expected.name << " stands twice";
  });
  // BF16 matrices are one tensor each, so the table lists as many as are stored.
  EXPECT_EQ(names.size(), 38770u);
}

// Bytes by group of NVIDIA's file, in GiB to three decimals (CHECKPOINTS.md).
TEST(Census, GroupsOfTheNvfp4File) {
  const Checkpoint stored = inventory("nvfp4");
  const Census census = take_census(stored, parse_config(stored.config_text(), "nvfp4"));
  const std::map<Group, double> published = {{Group::kRoutedExperts, 159.469},
                                             {Group::kNextNExperts, 13.500},
                                             {Group::kKda, 8.729},
                                             {Group::kMla, 2.406},
                                             {Group::kIndexer, 0.153},
                                             {Group::kSharedExperts, 1.969},
                                             {Group::kEmbedding, 1.182},
                                             {Group::kHead, 1.182},
                                             {Group::kVision, 1.050},
                                             {Group::kNextNRest, 0.344},
                                             {Group::kDenseMlp, 0.237},
                                             {Group::kRouter, 0.092},
                                             {Group::kHyperConnections, 0.066}};
  for (const auto& [group, gib] : published)
    EXPECT_NEAR(static_cast<double>(census.groups[static_cast<size_t>(group)].bytes) / 0x1p30, gib, 0.0005)
        << group_name(group);
}

// A config that differs from what is stored: the tensors are named, the first few and how many more.
TEST(Census, NamesWhatIsMissingUnknownOrWrong) {
  const Checkpoint stored = inventory("nvfp4");
  auto problems_with = [&](const std::function<void(Config&)>& change) {
    Config config = parse_config(stored.config_text(), "nvfp4");
    change(config);
    std::string text;
    for (const std::string& problem : take_census(stored, config).problems) text += problem + "\n";
    return text;
  };
  const std::string more = problems_with([](Config& c) { c.experts = 289; });
  EXPECT_NE(more.find("layers.3.mlp.experts.288.gate_proj"), std::string::npos) << more;
  EXPECT_NE(more.find("more missing tensors"), std::string::npos) << more;
  EXPECT_NE(more.find("mlp.gate.weight is BF16 [288, 4096]; expected BF16 or F32 [289, 4096]"), std::string::npos)
      << more;

  const std::string fewer = problems_with([](Config& c) { c.experts = 287; });
  EXPECT_NE(fewer.find("mlp.experts.287.down_proj.input_scale F32 [] is not a tensor of this model"), std::string::npos)
      << fewer;

  const std::string narrow = problems_with([](Config& c) { c.expert_intermediate = 1024; });
  EXPECT_NE(narrow.find("BF16 [2048, 4096]; expected BF16 [1024, 4096]"), std::string::npos) << narrow;

  const std::string blind = problems_with([](Config& c) { c.has_vision = false; });
  EXPECT_NE(blind.find("model.visual."), std::string::npos) << blind;
  EXPECT_NE(blind.find("... and 342 more unknown tensors"), std::string::npos) << blind;  // 347 of them
}

TEST(Census, RequireSoundListsProblems) {
  const Checkpoint stored = inventory("bf16");
  Config config = parse_config(stored.config_text(), "bf16");
  require_sound(stored, take_census(stored, config));
  config.layers = 44;
  config.mixers.pop_back();
  config.ffns.pop_back();
  try {
    require_sound(stored, take_census(stored, config));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("model.language_model.layers.44."), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace verbatim::model
