// The table of routes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/http.h"

namespace verbatim::server {

// What a route does. May throw: ApiFailure and Error become an answer in the route's error shape.
using Handler = std::function<void(const std::shared_ptr<Exchange>&)>;

enum class Access {
  kOpen,  // without a key, from any Host, and while the server drains
  kKey,
  kBrowser,  // a key too, which may come as the password of HTTP Basic: what a browser can ask its reader for
};
enum class Work {
  kQuick,  // on the connection's thread: microseconds
  kHeavy,  // on a worker: reads a body, renders, tokenises, compiles
};

struct Route {
  std::string method;
  std::string pattern;  // "/v1/responses/{}": {} matches one path segment, a last {*} all that follows
  Handler handle;
  Work work = Work::kHeavy;
  Access access = Access::kKey;
  ErrorShape errors = ErrorShape::kOpenAi;
};

class Router {
 public:
  void add(Route route);
  // Null if there is none; `arguments` gets what the {} matched. HEAD finds GET's routes.
  const Route* find(std::string_view method, std::string_view path, std::vector<std::string>& arguments) const;
  // Methods that the path has, "GET, POST"; empty: the path is unknown.
  std::string methods(std::string_view path) const;
  // Of any route of that path, or of the paths below /v1/messages; for errors found before a route.
  ErrorShape errors(std::string_view path) const;
  const std::vector<Route>& routes() const { return routes_; }

 private:
  std::vector<Route> routes_;
};

}  // namespace verbatim::server
