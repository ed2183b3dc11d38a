#include "checkpoint/module_patterns.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/names.h"

namespace verbatim::checkpoint {

namespace {

// The glob that says what a regular expression, matched from the start of the name, says; nullopt for one that uses
// more than literal characters, `\.`, `.*`, `^` and `$`. An unescaped dot is taken as a dot.
std::optional<std::string> glob_of_regex(std::string_view regex) {
  std::string glob;
  if (regex.starts_with('^')) regex.remove_prefix(1);
  const bool closed = regex.ends_with('$');
  if (closed) regex.remove_suffix(1);
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\' && i + 1 < regex.size() && regex[i + 1] == '.') {
      glob += '.';
      ++i;
    } else if (c == '.' && i + 1 < regex.size() && regex[i + 1] == '*') {
      glob += '*';
      ++i;
    } else if (std::string_view("\\*+?()[]{}|^$").find(c) != std::string_view::npos) {
      return std::nullopt;
    } else {
      glob += c;
    }
  }
  if (!closed) glob += '*';
  return glob;
}

// A name of the metadata as a canonical one. The FP8 release's list leaves `language_model` out.
std::string canonical_pattern(std::string_view pattern) {
  constexpr std::string_view kShort = "model.layers.";
  if (pattern.starts_with(kShort))
    return std::string("model.language_model.layers.").append(pattern.substr(kShort.size()));
  return canonical_name(pattern).value_or(std::string(pattern));
}

}  // namespace

bool glob_matches(std::string_view glob, std::string_view text) {
  size_t g = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = t;
    } else if (g < glob.size() && glob[g] == text[t]) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return glob.find_first_not_of('*', g) == std::string_view::npos;
}

void ModulePatterns::add(std::string_view pattern) {
  all_.emplace_back(pattern);
  if (pattern.starts_with("re:")) {
    if (std::optional<std::string> glob = glob_of_regex(pattern.substr(3))) add_glob(*std::move(glob));
    return;
  }
  if (pattern.find('*') != std::string_view::npos)
    add_glob(canonical_pattern(pattern));
  else
    names_.insert(canonical_pattern(pattern));
}

void ModulePatterns::add_glob(std::string glob) {
  if (glob.find('*') != glob.size() - 1) {
    globs_.push_back(std::move(glob));
    return;
  }
  glob.pop_back();
  prefix_lengths_.insert(glob.size());
  prefixes_.insert(std::move(glob));
}

bool ModulePatterns::matches(std::string_view module) const {
  for (const size_t length : prefix_lengths_) {
    if (length > module.size()) break;
    if (prefixes_.contains(std::string(module.substr(0, length)))) return true;
  }
  if (any_ancestor(module, [&](std::string_view name) { return names_.contains(std::string(name)); })) return true;
  return std::any_of(globs_.begin(), globs_.end(), [&](const std::string& glob) { return glob_matches(glob, module); });
}

}  // namespace verbatim::checkpoint
