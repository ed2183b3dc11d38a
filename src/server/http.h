// HTTP as the rest of the server sees it: a request, a whole response, or a body that is pulled piece by piece.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim::server {

using Clock = std::chrono::steady_clock;

struct Header {
  std::string name, value;
};

struct HttpRequest {
  std::string method, path, query;  // path percent-decoded, query as sent
  std::vector<Header> headers;
  std::string body;

  std::string id;                             // of the request, in logs and in the header X-Request-Id
  std::string remote;                         // address and port of the client
  std::string key;                            // name of the API key it came with; empty in a server without keys
  std::vector<std::string> path_arguments;    // what the route's {} matched
  std::vector<Header> response_headers = {};  // added to whatever is answered
  Clock::time_point received;                 // when its header was complete

  // Of the first header of that name (case ignored); empty if there is none.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::vector<Header> headers = {};
};

// What the log line of a request tells beside method, path, status and time.
struct RequestFigures {
  std::string model_name;
  int64_t prompt_tokens = -1;  // below 0: no tokens were asked for
  int64_t cached_tokens = 0, generated_tokens = 0, reasoning_tokens = 0, drafted_tokens = 0, accepted_tokens = 0;
  double first_token_s = 0;
  std::string finish, token_hash;
};

// One request and the response to it. Kept alive by whoever works on it; if all let go of it without an answer, the
// client gets a 500.
class Exchange {
 public:
  // Appends to `out` what is to be sent next; false: that was the last. Called on the connection's thread, never
  // twice at a time.
  using Pull = std::function<bool(std::string& out)>;
  using Poll = std::function<std::optional<HttpResponse>()>;

  virtual ~Exchange() = default;
  const HttpRequest& request() const { return request_; }
  // Frees the body as soon as it has been read: a reply may take minutes.
  virtual void drop_body() = 0;
  RequestFigures& figures() { return figures_; }  // to be set on the connection's thread, or before an answer begins

  // One of the three, once, from any thread.
  virtual void respond(HttpResponse response) = 0;
  // Sends `head` at once (its body first) and then what `pull` gives: it is called after each wake(), once the client
  // has taken all that went before.
  virtual void stream(HttpResponse head, Pull pull) = 0;
  // Calls `poll` on the connection's thread after each wake(), until it gives a response.
  virtual void collect(Poll poll) = 0;
  // From any thread, quick, may be called before the two above (which then pull or poll at once).
  virtual void wake() = 0;

  // `gone` is called on the connection's thread, at most once, if the client goes away before it has the whole
  // response.
  virtual void on_gone(std::function<void()> gone) = 0;
  virtual bool is_gone() const = 0;

 protected:
  explicit Exchange(HttpRequest request) : request_(std::move(request)) {}
  HttpRequest request_;

 private:
  RequestFigures figures_;
};

// A refusal with an HTTP status. What it looks like in JSON is the route's (api_error.h).
struct ApiError {
  int status = 400;
  std::string message;
  std::string code = {};   // empty: null
  std::string param = {};  // the field; empty: null
  int retry_after_s = 0;   // 0: no such header
};

bool equal_ignoring_case(std::string_view a, std::string_view b);
// "Not Found" for 404.
std::string_view status_text(int status);
// %XX to bytes; nothing if malformed or if a NUL byte results.
std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace verbatim::server
