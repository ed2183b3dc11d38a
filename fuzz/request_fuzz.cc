// Request bodies: whatever arrives is a request within its limits or an ApiFailure that says why not.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "server/api_error.h"
#include "server/json_body.h"
#include "server/openai_request.h"
#include "text/chat_inputs.h"

namespace {

using namespace verbatim;
using namespace verbatim::server;

void check(bool holds) {
  if (!holds) std::abort();
}

void check_generation(const Generation& generation, const RequestLimits& limits) {
  check(generation.choices >= 1 && generation.choices <= limits.choices);
  check(std::ssize(generation.stop) <= limits.stops);
  check(generation.sampling.temperature >= 0 && generation.sampling.top_p > 0 && generation.sampling.top_p <= 1);
  check(generation.logprobs <= limits.top_logprobs && generation.prompt_logprobs <= limits.top_logprobs);
  check(std::ssize(generation.sampling.logit_bias) <= limits.logit_biases);
  check(std::ssize(generation.structured.text) <= limits.schema_bytes);
  check(!generation.max_tokens || *generation.max_tokens >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const bool is_chat = (data[0] & 1) == 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const RequestLimits limits;
  std::vector<std::string> unknown;
  try {
    nlohmann::ordered_json body = parse_body(text, {.depth = limits.json_depth});
    if (is_chat) {
      const ChatRequest request = parse_chat_request(body, limits, {}, unknown);
      check_generation(request.generation, limits);
      check(std::ssize(request.tools) <= limits.tools);
      check(request.inputs->contains("messages"));
      const text::ToolSet tools(request.tools);
      text::chat_inputs(*request.inputs);
    } else {
      const CompletionRequest request = parse_completion_request(body, limits, unknown);
      check_generation(request.generation, limits);
      check(!request.prompts.empty() && std::ssize(request.prompts) <= limits.prompts);
    }
  } catch (const ApiFailure& failure) {
    check(failure.error().status >= 400 && failure.error().status < 500 && !failure.error().message.empty());
    error_json(failure.error(), ErrorShape::kOpenAi);
  } catch (const Error&) {  // of the messages, by the text library
  }
  return 0;
}
