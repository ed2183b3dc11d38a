// A chat request, as OpenAI's clients send it, to the variables of a chat template.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim::text {

// JSON text whose members keep their order. Unlike the library's own parser it refuses (kFormat) integers that do not
// fit in 64 bits, instead of rounding them: a prompt shows every digit. Nesting beyond 200 levels is refused too.
// `where` begins the messages.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where);

// An image or video part, in the order in which the messages hold them.
struct MediaPart {
  bool is_video;
  size_t message;  // index into the request's messages
  size_t part;     // index into that message's content
};

// request: an object with "messages" and optionally "tools", "documents", "add_generation_prompt" (true unless given),
// "reasoning_effort", "clear_thinking" and "chat_template_kwargs" (any further variables; they win over the three
// before). Other members are not the prompt's business and are left out. As in Hugging Face's call, tools and documents
// are none when absent. What is changed on the way:
//  - role developer becomes system; other roles than system, user, assistant and tool are refused, since a template
//  would
//    drop their text silently
//  - content null or absent becomes "" (a template would print "None")
//  - parts: text keeps its text; image, image_url and input_image become {"type": "image"}, video and video_url
//  {"type":
//    "video"} (their data stays out of the template, and is listed in media); other parts are refused, except in tool
//    messages, where they are passed on
//  - a tool call's arguments given as a JSON string become the object it holds; one that holds no object is refused
//  - reasoning becomes reasoning_content when there is none; null ones are dropped
// Throws Error(kFormat) or, for parts and roles, Error(kUnsupported), naming the message.
// media, unless null, gets the media parts.
nlohmann::ordered_json chat_inputs(const nlohmann::ordered_json& request, std::vector<MediaPart>* media = nullptr);

}  // namespace verbatim::text
