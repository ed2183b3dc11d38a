// Asking a server under test: JSON in, JSON or events out.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "evaluate/http_client.h"

namespace verbatim::server {

using nlohmann::json;

struct JsonAnswer {
  int status = 0;
  json body;  // discarded if it was no JSON
  evaluate::ClientResponse response;

  std::string text() const { return response.body; }
};

struct StreamEvent {
  std::string name;
  json data;
};

class Asker {
 public:
  explicit Asker(const std::string& url, evaluate::ClientHeaders headers = {})
      : client_(evaluate::ServerAddress::parse(url), "", std::chrono::seconds(20)), headers_(std::move(headers)) {}

  JsonAnswer send(const std::string& method, const std::string& path, const std::string& body = "") {
    JsonAnswer answer;
    answer.response = client_.send(method, path, body, headers_, {});
    answer.status = answer.response.status;
    answer.body = json::parse(answer.response.body, nullptr, false);
    return answer;
  }
  JsonAnswer get(const std::string& path) { return send("GET", path); }
  JsonAnswer post(const std::string& path, const json& body) { return send("POST", path, body.dump()); }

  // The events of a stream, the last one with data [DONE] as a string.
  std::vector<StreamEvent> stream(const std::string& path, json body) {
    body["stream"] = true;
    std::vector<StreamEvent> events;
    evaluate::EventReader reader;
    const auto response = client_.send(
        "POST", path, body.dump(), headers_, {.on_body = [&](std::string_view piece) {
          return reader.feed(piece, [&](std::string_view name, std::string_view data) {
            events.push_back({std::string(name), data == "[DONE]" ? json(data) : json::parse(data, nullptr, false)});
            return true;
          });
        }});
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.header("Content-Type"), "text/event-stream; charset=utf-8");
    return events;
  }

  evaluate::HttpClient& client() { return client_; }

 private:
  evaluate::HttpClient client_;
  evaluate::ClientHeaders headers_;
};

}  // namespace verbatim::server
