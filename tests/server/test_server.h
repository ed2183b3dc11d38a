// A server in this process around a scripted model, on a port of its own.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "server/server.h"
#include "tests/server/client.h"
#include "tests/server/told_model.h"

namespace verbatim::server {

struct TestOptions {
  ToldOptions model = {};
  ServerOptions server = {};
  engine::SchedulerOptions scheduler = {.draft_from_text = false};
};

// A file of API keys.
class KeyFile {
 public:
  explicit KeyFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("verbatim-keys-" + std::to_string(::getpid()))) {
    write(text);
  }
  ~KeyFile() { std::filesystem::remove(path_); }
  void write(const std::string& text) const {
    std::ofstream(path_, std::ios::trunc) << text;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline ServerOptions quiet(ServerOptions options = {}) {
  options.logs_requests = false;
  return options;
}

class TestServer {
 public:
  explicit TestServer(TestOptions options = {})
      : model(options.model),
        engine(model, options.scheduler),
        server(std::make_unique<Server>(
            ServedModel{.tokenizer = model.tokenizer(),
                        .chat_template = text::ChatTemplate::parse(kToldTemplate, "scripted"),
                        .eos = {*model.tokenizer().find("<|user|>"), *model.tokenizer().find("<|observation|>"),
                                *model.tokenizer().find("<|endoftext|>")},
                        .names = {"scripted", "alias/of-it"},
                        .context_tokens = std::min(options.model.max_positions, options.model.pages * 64 - 1),
                        .created_s = 1700000000},
            engine, quiet(std::move(options.server)))) {}

  uint16_t port() const { return server->port(); }
  Answer get(const std::string& path, const Headers& headers = {}) const {
    return Client(port()).request("GET", path, "", headers);
  }
  Answer post(const std::string& path, const nlohmann::json& body, const Headers& headers = {}) const {
    return post_text(path, body.dump(), headers);
  }
  Answer post_text(const std::string& path, const std::string& body, const Headers& headers = {}) const {
    return Client(port()).request("POST", path, body, headers);
  }
  Answer chat(const std::string& user, nlohmann::json more = nlohmann::json::object()) const {
    more["messages"] = {{{"role", "user"}, {"content", user}}};
    if (!more.contains("temperature")) more["temperature"] = 0;
    return post("/v1/chat/completions", more);
  }

  ToldModel model;
  engine::Engine engine;
  std::unique_ptr<Server> server;
};

}  // namespace verbatim::server
