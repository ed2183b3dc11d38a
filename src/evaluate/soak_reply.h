// Replies of a server in each of its protocols, as far as a soak compares them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim::evaluate {

enum class SoakRoute { kChat, kCompletions, kMessages, kResponses };
const char* path_of(SoakRoute route);

struct SoakReply {
  struct Choice {
    std::string token_hash;
    std::string reasoning, text;
    std::vector<std::string> calls;  // name and arguments
  };
  std::vector<Choice> choices;
  int64_t generated_tokens = 0;
  std::string problem;  // why it is no whole reply; empty if it is one
};

// What differs between a whole reply and the same request's reply alone, in words; empty: nothing.
std::string difference(const SoakReply& found, const SoakReply& alone);
// The same for one that was broken off: what came must be a beginning.
std::string difference_of_beginning(const SoakReply& found, const SoakReply& alone);

// The body of a response that was not streamed.
SoakReply read_whole(SoakRoute route, std::string_view body);

// Puts a streamed reply together.
class StreamedReply {
 public:
  StreamedReply(SoakRoute route, int choices);
  // True if the event brought something of the reply itself.
  bool event(std::string_view data);
  // Of a stream that has ended, or was broken off.
  SoakReply reply(bool is_whole) const;

 private:
  bool openai(const nlohmann::json& event);
  bool message(const nlohmann::json& event);
  bool response(const nlohmann::json& event);

  const SoakRoute route_;
  SoakReply reply_;
  size_t finished_ = 0;
  bool is_done_ = false;
};

}  // namespace verbatim::evaluate
