#include "server/chat_page.h"

#include "tests/server/protocols/asking.h"
#include "tests/server/protocols/scripted_server.h"

namespace verbatim::server {
namespace {

TEST(ChatPage, IsServedWithAPolicy) {
  ScriptedServer server;
  const auto answer =
      evaluate::HttpClient(evaluate::ServerAddress::parse(server.url()), "", std::chrono::seconds(5)).get("/");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(answer.body, kChatPage);
  const std::string policy = answer.header("Content-Security-Policy");
  EXPECT_NE(policy.find("default-src 'none'; script-src 'sha256-"), std::string::npos) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
  EXPECT_EQ(answer.header("X-Content-Type-Options"), "nosniff");
}

// Hash from: printf %s TEXT | openssl dgst -sha256 -binary | base64
TEST(ChatPage, PolicyNamesScriptAndStyleByHash) {
  const std::string policy = chat_page_policy("<style>a</style><script>alert('Hello, world.');</script>");
  EXPECT_NE(policy.find("script-src 'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='"), std::string::npos)
      << policy;
  EXPECT_NE(policy.find("style-src 'sha256-ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs='"), std::string::npos)
      << policy;
}

// What could make text into markup or script, or keep the key.
TEST(ChatPage, WritesTextOnly) {
  for (const char* word : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(",
                           "localStorage", "sessionStorage", "cookie", "onclick", "javascript:", "http://", "https://"})
    EXPECT_EQ(kChatPage.find(word), std::string_view::npos) << word;
}

}  // namespace
}  // namespace verbatim::server
