// A whole server around a ScriptedModel, listening on a free port of 127.0.0.1.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "evaluate/http_client.h"
#include "server/server.h"
#include "tests/server/protocols/scripted_model.h"

namespace verbatim::server {

struct ScriptedOptions {
  engine::StubOptions model{.hits_in_ten = 8};
  engine::SchedulerOptions scheduler{.snapshot_bytes = 1 << 20};
  ServerOptions server = {};
  int64_t context_tokens = 8192;
};

class ScriptedServer {
 public:
  explicit ScriptedServer(ScriptedOptions options = {})
      : served_(served(options.context_tokens)),
        model_(served_.tokenizer, fitted(options.model, served_.tokenizer), served_.eos.front()),
        engine_(model_, options.scheduler) {
    options.server.logs_requests = false;
    server_ = std::make_unique<Server>(served_, engine_, options.server);
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }
  Server& server() { return *server_; }
  engine::Engine& engine() { return engine_; }
  ScriptedModel& model() { return model_; }
  const text::Tokenizer& tokenizer() const { return served_.tokenizer; }

 private:
  static ServedModel served(int64_t context_tokens) {
    const std::filesystem::path text = std::filesystem::path(VERBATIM_FIXTURES) / "text";
    ServedModel model{.tokenizer = text::Tokenizer::load(text / "tokenizer.json"),
                      .chat_template = text::ChatTemplate::parse(
                          read_text_file(text / "chat_template_tool_block.jinja", 1 << 20), "chat template"),
                      .eos = {},
                      .names = {"scripted", "alias"},
                      .context_tokens = context_tokens,
                      .created_s = 1};
    for (const char* end : {"<|endoftext|>", "<|user|>", "<|observation|>"})
      model.eos.push_back(*model.tokenizer.find(end));
    return model;
  }
  static engine::StubOptions fitted(engine::StubOptions options, const text::Tokenizer& tokenizer) {
    options.vocabulary = tokenizer.size();
    return options;
  }

  const ServedModel served_;
  ScriptedModel model_;
  engine::Engine engine_;
  std::unique_ptr<Server> server_;
};

}  // namespace verbatim::server
