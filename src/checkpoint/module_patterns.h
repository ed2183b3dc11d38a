// Module patterns of quantisation metadata.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace verbatim::checkpoint {

// Plain names (each also stands for the modules below it), globs with `*` over the whole name, and `re:` patterns of
// compressed-tensors as far as they are globs in disguise (`.*`, `\.`, `^`, `$`); others match nothing.
class ModulePatterns {
 public:
  // Names are mapped to canonical ones.
  void add(std::string_view pattern);

  bool matches(std::string_view module) const;
  bool empty() const { return all_.empty(); }
  // As written in the metadata.
  const std::vector<std::string>& all() const { return all_; }
  const std::unordered_set<std::string>& plain_names() const { return names_; }

 private:
  void add_glob(std::string glob);

  std::vector<std::string> all_, globs_;
  std::unordered_set<std::string> names_, prefixes_;  // a prefix is a glob whose only `*` is its last character
  std::set<size_t> prefix_lengths_;
};

// Whether `glob`, in which `*` stands for any run of characters, covers all of `text`.
bool glob_matches(std::string_view glob, std::string_view text);

// Calls visit(name) for `module` and then each module above it, until visit returns true; returns whether it did.
template <typename Visit>
bool any_ancestor(std::string_view module, const Visit& visit) {
  for (;;) {
    if (visit(module)) return true;
    const size_t dot = module.rfind('.');
    if (dot == std::string_view::npos) return false;
    module = module.substr(0, dot);
  }
}

}  // namespace verbatim::checkpoint
