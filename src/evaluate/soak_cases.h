// The requests of a soak: a mix of what clients send, made from a seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "evaluate/soak_reply.h"

namespace verbatim::evaluate {

// A request whose reply is a function of it alone: sampled ones name their seed.
struct SoakCase {
  std::string kind;  // "chat", "tools", ... : a line of the report
  SoakRoute route = SoakRoute::kChat;
  std::string body;        // a JSON object, without "stream" and "draft"
  int choices = 1;         // n
  bool can_go_on = false;  // a conversation: next_turn takes it

  // The body with both fields.
  std::string request(bool stream, bool draft) const;
};

struct SoakMix {
  std::string model;           // as the requests name it
  int64_t prompt_words = 600;  // of the longest prompts
  int64_t reply_tokens = 96;   // max_tokens of the longest replies
};

class CaseMaker {
 public:
  CaseMaker(SoakMix mix, uint64_t seed) : mix_(std::move(mix)), random_(seed) {}

  // All kinds in turn.
  SoakCase next();
  // The conversation with the reply to it and another question.
  SoakCase next_turn(const SoakCase& before, const SoakReply& reply);

 private:
  int64_t below(int64_t most);  // 0 to most - 1
  std::string words(int64_t least, int64_t most);
  std::string system();

  const SoakMix mix_;
  std::mt19937_64 random_;
  uint64_t made_ = 0;
};

}  // namespace verbatim::evaluate
