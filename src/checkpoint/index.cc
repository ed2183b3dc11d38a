#include "checkpoint/index.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_map>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/json_events.h"
#include "checkpoint/quote_name.h"

namespace verbatim::checkpoint {

namespace {

// {"weight_map": {tensor: file}, "metadata": {"total_size": n, ...}, ...}
class IndexReader final : public JsonEvents {
 public:
  IndexReader(std::string where, Index& index) : JsonEvents(std::move(where)), index_(index) {}

  bool seen() const { return weight_map_seen_; }

  void null() override { scalar("null"); }
  void boolean(bool value) override { scalar(value ? "true" : "false"); }
  void negative_number(int64_t value) override { scalar(fmt::format("the number {}", value)); }
  void other_number(double value, const std::string& text) override {
    // Some writers store the size as a float.
    if (in_total_size() && value >= 0 && value < 0x1p63) index_.total_size = static_cast<uint64_t>(value);
    scalar(fmt::format("the number {}", quote_name(text)));
  }
  void unsigned_number(uint64_t value) override {
    if (in_total_size()) index_.total_size = value;
    scalar(fmt::format("the number {}", value));
  }

  void string(std::string& value) override {
    if (depth_ != 2 || member_ != Member::kWeightMap) {
      scalar(fmt::format("the string {}", quote_name(value)));
      return;
    }
    const auto [it, added] = files_.emplace(value, static_cast<uint32_t>(index_.files.size()));
    if (added) {
      check_file_name(value);
      index_.files.push_back(value);
    }
    index_.entries.push_back({std::move(key_), it->second});
  }

  void start_object() override {
    if (depth_ == 1 && member_ == Member::kWeightMap) {
      if (weight_map_seen_) refuse("a second weight_map");
      weight_map_seen_ = true;
    } else if (depth_ == 2 && member_ == Member::kWeightMap) {
      refuse("an object");
    }
    enter();
  }
  void start_array() override {
    if (depth_ == 0 || member_ == Member::kWeightMap) refuse("an array");
    enter();
  }
  void end_object() override { leave(); }
  void end_array() override { leave(); }

  void key(std::string& name) override {
    if (depth_ == 1)
      member_ = name == "weight_map" ? Member::kWeightMap : name == "metadata" ? Member::kMetadata : Member::kOther;
    key_ = std::move(name);
  }

 private:
  enum class Member { kNone, kWeightMap, kMetadata, kOther };
  static constexpr int kMaxDepth = 64;

  bool in_total_size() const { return depth_ == 2 && member_ == Member::kMetadata && key_ == "total_size"; }

  // A value other than a weight_map entry: skipped inside members that this reader does not use.
  void scalar(const std::string& found) {
    if (depth_ == 0 || member_ == Member::kWeightMap) refuse(found);
  }

  void enter() {
    if (++depth_ > kMaxDepth) refuse(fmt::format("nesting deeper than {}", kMaxDepth));
  }
  void leave() {
    if (--depth_ == 1) member_ = Member::kNone;
  }

  // A shard lies in the directory or below it (it may be a symbolic link to elsewhere).
  void check_file_name(const std::string& name) const {
    const std::filesystem::path path(name);
    const bool climbs = std::any_of(path.begin(), path.end(), [](const auto& part) { return part == ".."; });
    if (name.empty() || name.find('\0') != std::string::npos || path.is_absolute() || climbs)
      fail(ErrorKind::kFormat, where(),
           "tensor {}: the file name {} leaves the checkpoint's directory; expected a name inside it", quote_name(key_),
           quote_name(name));
  }

  std::string context() const override {
    if (depth_ == 0) return "index: expected one object with weight_map";
    if (depth_ == 1) return "weight_map: expected one object of tensor names and file names";
    return fmt::format("weight_map: tensor {}: expected a file name", quote_name(key_));
  }

  Index& index_;
  Member member_ = Member::kNone;
  int depth_ = 0;
  bool weight_map_seen_ = false;
  std::string key_;
  std::unordered_map<std::string, uint32_t> files_;
};

}  // namespace

Index parse_index(std::string_view text, const std::string& where) {
  Index index;
  IndexReader reader(where, index);
  read_json(text, reader);
  if (!reader.seen()) fail(ErrorKind::kFormat, where, "index: no weight_map; expected one object with weight_map");

  std::sort(index.entries.begin(), index.entries.end(),
            [](const Index::Entry& a, const Index::Entry& b) { return a.tensor < b.tensor; });
  for (size_t i = 1; i < index.entries.size(); ++i) {
    const Index::Entry &a = index.entries[i - 1], &b = index.entries[i];
    if (a.tensor == b.tensor)
      fail(ErrorKind::kFormat, where, "weight_map: tensor {}: named twice, in {} and {}; expected once",
           quote_name(a.tensor), quote_name(index.files[a.file]), quote_name(index.files[b.file]));
  }
  std::vector<uint32_t> order(index.files.size()), place(order.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return index.files[a] < index.files[b]; });
  for (uint32_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  for (Index::Entry& entry : index.entries) entry.file = place[entry.file];
  std::sort(index.files.begin(), index.files.end());
  return index;
}

void write_index(const std::filesystem::path& directory, const std::map<std::string, std::string>& weight_map,
                 uint64_t total_size_bytes) {
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total_size_bytes;
  index["weight_map"] = weight_map;
  write_file_atomically(directory / kIndexName, index.dump(1) + "\n");
}

}  // namespace verbatim::checkpoint
