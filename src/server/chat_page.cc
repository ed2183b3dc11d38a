// GET /
#include "server/chat_page.h"

#include <span>

#include "base/error.h"
#include "base/sha256.h"
#include "server/routes.h"

namespace verbatim::server {
namespace {

std::string base64(std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(bytes.size() - i, 3);
    uint32_t three = 0;
    for (size_t byte = 0; byte < 3; ++byte) three = three << 8 | (byte < count ? bytes[i + byte] : 0u);
    for (size_t digit = 0; digit < 4; ++digit) out += digit <= count ? kDigits[three >> (18 - 6 * digit) & 63] : '=';
  }
  return out;
}

// 'sha256-...' of the one element of that name.
std::string hash_source(std::string_view page, const std::string& element) {
  const std::string open = "<" + element + ">", end = "</" + element + ">";
  const size_t begin = page.find(open);
  if (begin == std::string_view::npos || page.find(open, begin + 1) != std::string_view::npos)
    fail(ErrorKind::kFormat, "chat page", "expected one {} element", element);
  const std::string_view content = page.substr(begin + open.size());
  Sha256 hash;
  hash.update(std::as_bytes(std::span(content.substr(0, content.find(end)))));
  return "'sha256-" + base64(hash.finish()) + "'";
}

}  // namespace

std::string chat_page_policy(std::string_view page) {
  return "default-src 'none'; script-src " + hash_source(page, "script") + "; style-src " + hash_source(page, "style") +
         "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
}

void add_page_route(Router& router) {
  const std::vector<Header> headers = {{"Content-Security-Policy", chat_page_policy(kChatPage)},
                                       {"X-Content-Type-Options", "nosniff"},
                                       {"Referrer-Policy", "no-referrer"},
                                       {"Cache-Control", "no-cache"}};
  router.add({"GET", "/",
              [headers](const std::shared_ptr<Exchange>& exchange) {
                exchange->respond(
                    {.body = std::string(kChatPage), .content_type = "text/html; charset=utf-8", .headers = headers});
              },
              Work::kQuick, Access::kBrowser});
}

}  // namespace verbatim::server
