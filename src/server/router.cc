#include "server/router.h"

#include <utility>

namespace verbatim::server {
namespace {

bool matches(std::string_view pattern, std::string_view path, std::vector<std::string>* arguments) {
  for (;;) {
    const size_t open = pattern.find('{');
    if (open == std::string_view::npos) return pattern == path;
    if (path.substr(0, open) != pattern.substr(0, open)) return false;
    path.remove_prefix(open);
    const bool takes_all = pattern.substr(open) == "{*}";
    pattern.remove_prefix(open + (takes_all ? 3 : 2));
    const std::string_view segment = takes_all ? path : path.substr(0, path.find('/'));
    if (segment.empty()) return false;
    if (arguments != nullptr) arguments->emplace_back(segment);
    path.remove_prefix(segment.size());
  }
}

}  // namespace

void Router::add(Route route) { routes_.push_back(std::move(route)); }

const Route* Router::find(std::string_view method, std::string_view path, std::vector<std::string>& arguments) const {
  if (method == "HEAD") method = "GET";
  for (const Route& route : routes_) {
    arguments.clear();
    if (route.method == method && matches(route.pattern, path, &arguments)) return &route;
  }
  arguments.clear();
  return nullptr;
}

std::string Router::methods(std::string_view path) const {
  std::string methods;
  for (const Route& route : routes_)
    if (matches(route.pattern, path, nullptr)) methods.append(methods.empty() ? "" : ", ").append(route.method);
  return methods;
}

ErrorShape Router::errors(std::string_view path) const {
  for (const Route& route : routes_)
    if (matches(route.pattern, path, nullptr)) return route.errors;
  return path.starts_with("/v1/messages") ? ErrorShape::kAnthropic : ErrorShape::kOpenAi;
}

}  // namespace verbatim::server
