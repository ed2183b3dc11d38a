#include "evaluate/http_client.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace verbatim::evaluate {
namespace {

TEST(ServerAddress, Parses) {
  const auto shown = [](const char* url) {
    const ServerAddress address = ServerAddress::parse(url);
    return address.host + " " + address.port + " " + address.prefix;
  };
  EXPECT_EQ(shown("http://127.0.0.1:8080"), "127.0.0.1 8080 ");
  EXPECT_EQ(shown("http://host/"), "host 80 ");
  EXPECT_EQ(shown("host:1/some/path/"), "host 1 /some/path");
  EXPECT_EQ(shown("http://[::1]:8080"), "::1 8080 ");
  EXPECT_EQ(shown("http://[::1]"), "::1 80 ");
  for (const char* url : {"", "https://host", "http://", "http://host:0", "http://host:99999", "http://host:x", ":80"})
    EXPECT_THROW(ServerAddress::parse(url), Error) << url;
}

TEST(HttpClient, SaysThatNobodyListens) {
  HttpClient client(ServerAddress::parse("127.0.0.1:1"), "", std::chrono::seconds(5));
  try {
    client.get("/");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_NE(std::string(error.what()).find("http://127.0.0.1:1"), std::string::npos) << error.what();
  }
}

TEST(EventReader, ReadsEventsHoweverTheyAreCut) {
  const std::string stream =
      ": a comment\n\nevent: first\ndata: {\"a\":1}\n\ndata: one\r\ndata: two\r\n\r\nid: 7\n\ndata:[DONE]\n\ndata: "
      "never";
  for (size_t bytes = 1; bytes < stream.size(); ++bytes) {
    EventReader reader;
    std::vector<std::string> events;
    for (size_t at = 0; at < stream.size(); at += bytes)
      reader.feed(stream.substr(at, bytes), [&](std::string_view name, std::string_view data) {
        events.push_back(std::string(name) + "|" + std::string(data));
        return true;
      });
    EXPECT_EQ(events, (std::vector<std::string>{"first|{\"a\":1}", "|one\ntwo", "|[DONE]"})) << bytes;
  }
  EventReader reader;
  int events = 0;
  EXPECT_FALSE(reader.feed(stream, [&](std::string_view, std::string_view) { return ++events < 2; }));
  EXPECT_EQ(events, 2);
}

}  // namespace
}  // namespace verbatim::evaluate
