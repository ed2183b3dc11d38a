// Bodies of /v1/messages and /v1/responses: whatever arrives is a request within its limits or an ApiFailure that says
// why not.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "server/anthropic_request.h"
#include "server/api_error.h"
#include "server/json_body.h"
#include "server/responses_request.h"
#include "text/chat_inputs.h"

namespace {

using namespace verbatim;
using namespace verbatim::server;

void check(bool holds) {
  if (!holds) std::abort();
}

void check_chat(const ChatRequest& request, const RequestLimits& limits) {
  const Generation& generation = request.generation;
  check(generation.choices == 1 && std::ssize(generation.stop) <= limits.stops);
  check(generation.sampling.temperature >= 0 && generation.sampling.top_p > 0 && generation.sampling.top_p <= 1);
  check(std::ssize(generation.structured.text) <= limits.schema_bytes);
  check(std::ssize(request.tools) <= limits.tools);
  check(!request.inputs->at("messages").empty());
  const text::ToolSet tools(request.tools);
  text::chat_inputs(*request.inputs);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const RequestLimits limits;
  std::vector<std::string> unknown;
  try {
    nlohmann::ordered_json body = parse_body(text, {.depth = limits.json_depth});
    if ((data[0] & 1) == 0) {
      const MessagesRequest request = parse_messages_request(body, (data[0] & 2) != 0, limits, {}, unknown);
      check_chat(request.chat, limits);
    } else {
      const auto previous = [](const std::string&) {
        return std::string(R"([{"type":"message","role":"user","content":"Hi"},{"type":"message","role":"assistant",)"
                           R"("content":[{"type":"output_text","text":"Yes"}]}])");
      };
      const ResponsesRequest request = parse_responses_request(body, previous, limits, {}, unknown);
      check_chat(request.chat, limits);
      check(!request.input->empty() && request.conversation->size() >= request.input->size());
      check(nlohmann::ordered_json::parse(request.echo->dump()).is_object());
    }
  } catch (const ApiFailure& failure) {
    check(failure.error().status >= 400 && failure.error().status < 500 && !failure.error().message.empty());
    error_json(failure.error(), ErrorShape::kAnthropic);
  } catch (const Error&) {  // of the messages, by the text library
  }
  return 0;
}
