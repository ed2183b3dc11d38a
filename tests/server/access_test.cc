// Who may ask: keys, hosts, origins, content types.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/server/test_server.h"

namespace verbatim::server {
namespace {

const std::string kChat = R"({"messages":[{"role":"user","content":"hi"}],"temperature":0})";

TEST(Keys, EveryRouteButHealthAndVersionNeedsOne) {
  const KeyFile file("# ours\nsk-first-key\nalice sk-alices-key\n");
  TestServer server({.server = {.api_key_file = file.path()}});
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(server.get("/health/ready").status, 200);
  EXPECT_EQ(server.get("/version").status, 200);
  for (const char* path : {"/", "/v1/models", "/metrics", "/v1/models/scripted", "/nowhere"})
    EXPECT_EQ(server.get(path).status, 401) << path;
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/nowhere"}) {
    const Answer answer = server.post_text(path, kChat);
    EXPECT_EQ(answer.status, 401) << path;
    EXPECT_EQ(answer.error("type"), "authentication_error");
    EXPECT_EQ(answer.error("code"), "invalid_api_key");
  }
  for (const auto& [name, value] : Headers{{"Authorization", "Bearer sk-first-key"},
                                           {"Authorization", "bearer sk-alices-key"},
                                           {"x-api-key", "sk-alices-key"}})
    EXPECT_EQ(server.post_text("/v1/chat/completions", kChat, {{name, value}}).status, 200) << value;
  for (const auto& [name, value] : Headers{{"Authorization", "Bearer sk-first-ke"},
                                           {"Authorization", "Bearer sk-first-keyy"},
                                           {"Authorization", "Bearer "},
                                           {"Authorization", "sk-first-key"},
                                           {"Authorization", "Basic sk-first-key"},
                                           {"x-api-key", ""},
                                           {"x-api-key", "alice"}})
    EXPECT_EQ(server.post_text("/v1/chat/completions", kChat, {{name, value}}).status, 401) << value;
}

// A browser asks its reader and sends the answer as HTTP Basic's password; for the page alone.
TEST(Keys, ThePageTakesOneAsAPassword) {
  const KeyFile file("sk-first-key\n");
  TestServer server({.server = {.api_key_file = file.path()}});
  EXPECT_EQ(server.get("/").headers.at("www-authenticate").substr(0, 6), "Basic ");
  const std::pair<std::string, std::string> right{"Authorization",
                                                  "Basic YW55OnNrLWZpcnN0LWtleQ=="};  // any:sk-first-key
  EXPECT_EQ(server.get("/", {right}).status, 200);
  EXPECT_EQ(server.get("/", {{"x-api-key", "sk-first-key"}}).status, 200);
  for (const char* wrong :
       {"Basic YW55OnNrLWZpcnN0LWtleXk=", "Basic c2stZmlyc3Qta2V5", "Basic ****", "Basic ", "Basic"})
    EXPECT_EQ(server.get("/", {{"Authorization", wrong}}).status, 401) << wrong;
  EXPECT_EQ(server.get("/v1/models", {right}).status, 401);
}

TEST(Keys, AreReadAgain) {
  const KeyFile file("sk-first-key\n");
  TestServer server({.server = {.api_key_file = file.path()}});
  const auto status = [&](const std::string& key) { return server.get("/v1/models", {{"x-api-key", key}}).status; };
  EXPECT_EQ(status("sk-first-key"), 200);
  file.write("sk-second-key\n");
  EXPECT_EQ(status("sk-first-key"), 200);  // not before it is told
  server.server->reload_keys();
  EXPECT_EQ(status("sk-first-key"), 401);
  EXPECT_EQ(status("sk-second-key"), 200);
  file.write("short\n");
  server.server->reload_keys();
  EXPECT_EQ(status("sk-second-key"), 200);  // a bad file changes nothing
}

TEST(Keys, BadFilesAreRefused) {
  for (const char* text :
       {"", "# none\n", "short\n", "a sk-long-enough\na sk-another-one\n", "one two three-words\n"}) {
    const KeyFile file(text);
    EXPECT_THROW(ApiKeys keys(file.path()), Error) << text;
  }
  EXPECT_THROW(ApiKeys keys("/nonexistent/keys"), Error);
}

TEST(Keys, WithKeysAnyHostAndOriginMayAsk) {
  const KeyFile file("sk-first-key\n");
  TestServer server({.server = {.api_key_file = file.path()}});
  EXPECT_EQ(server
                .get("/v1/models",
                     {{"x-api-key", "sk-first-key"}, {"Host", "model.example"}, {"Origin", "https://page.example"}})
                .status,
            200);
}

TEST(Hosts, WithoutKeysOnlyItsOwnNames) {
  TestServer server({.server = {.access = {.served_hosts = {"box.lan"}}}});
  const auto status = [&](const std::string& host) { return server.get("/v1/models", {{"Host", host}}).status; };
  for (const char* own :
       {"localhost", "localhost:8080", "LOCALHOST", "127.0.0.1", "127.0.0.1:9", "box.lan", "box.lan:80"})
    EXPECT_EQ(status(own), 200) << own;
  for (const char* other :
       {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::1]x", ""})
    EXPECT_EQ(status(other), 403) << other;
  EXPECT_EQ(server.get("/health", {{"Host", "evil.example"}}).status, 200);  // says nothing worth hiding
  const Answer answer = server.post_text("/v1/chat/completions", kChat, {{"Host", "evil.example"}});
  EXPECT_EQ(answer.status, 403);
  EXPECT_EQ(answer.error("code"), "foreign_host");
}

TEST(Origins, ForeignPagesAreRefused) {
  TestServer server;
  const auto status = [&](const std::string& origin) {
    return server.post_text("/v1/chat/completions", kChat, {{"Host", "localhost:1"}, {"Origin", origin}}).status;
  };
  EXPECT_EQ(status("http://localhost:1"), 200);  // the server's own page
  for (const char* foreign : {"https://evil.example", "http://localhost:2", "null", "file://"})
    EXPECT_EQ(status(foreign), 403) << foreign;
  const Answer preflight =
      Client(server.port()).request("OPTIONS", "/v1/chat/completions", "", {{"Origin", "https://evil.example"}});
  EXPECT_EQ(preflight.status, 403);
  EXPECT_FALSE(preflight.headers.contains("access-control-allow-origin"));
}

TEST(Origins, CorsForTheOnesNamed) {
  TestServer server({.server = {.access = {.cors_origins = {"https://page.example"}}}});
  const Headers from_page = {{"Origin", "https://page.example"}};
  const Answer preflight = Client(server.port()).request("OPTIONS", "/v1/chat/completions", "", from_page);
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "https://page.example");
  EXPECT_NE(preflight.headers.at("access-control-allow-headers").find("content-type"), std::string::npos);
  const Answer answer = server.post_text("/v1/chat/completions", kChat, from_page);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://page.example");
  EXPECT_EQ(server.post_text("/v1/chat/completions", kChat, {{"Origin", "https://other.example"}}).status, 403);
  EXPECT_FALSE(server.get("/v1/models").headers.contains("access-control-allow-origin"));
}

TEST(ContentType, MustBeJson) {
  TestServer server;
  const auto status = [&](const std::string& type) {
    return server.post_text("/v1/chat/completions", kChat, {{"Content-Type", type}}).status;
  };
  for (const char* right :
       {"application/json", "Application/JSON", "application/json; charset=utf-8", "application/json ;x"})
    EXPECT_EQ(status(right), 200) << right;
  for (const char* wrong : {"text/plain", "", "application/x-www-form-urlencoded", "application/jsonx"})
    EXPECT_EQ(status(wrong), 415) << wrong;
}

}  // namespace
}  // namespace verbatim::server
