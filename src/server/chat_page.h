// The chat page, whose text (chat_page.html) is built into the program.
#pragma once

#include <string>
#include <string_view>

namespace verbatim::server {

extern const std::string_view kChatPage;

// What the page may do: run its own script and style, named by their hashes, and ask its own server.
std::string chat_page_policy(std::string_view page);

}  // namespace verbatim::server
