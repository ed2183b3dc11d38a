// GET /v1/models, GET /v1/models/{id}, POST /tokenize, POST /detokenize
#include <chrono>
#include <nlohmann/json.hpp>

#include "server/json_text.h"
#include "server/routes.h"
#include "text/stream_decoder.h"

namespace verbatim::server {
namespace {

// As OpenAI's clients read it, with vLLM's max_model_len, and as Anthropic's do.
std::string model_json(const Service& service, const std::string& name) {
  const ServedModel& model = service.model();
  std::string out = R"({"id":)";
  append_json_string(out, name);
  fmt::format_to(std::back_inserter(out), R"(,"object":"model","created":{},"owned_by":"verbatim","root":)",
                 model.created_s);
  append_json_string(out, model.names.front());
  fmt::format_to(std::back_inserter(out), R"(,"parent":null,"max_model_len":{},"type":"model","display_name":)",
                 model.context_tokens);
  append_json_string(out, name);
  const std::time_t created = static_cast<std::time_t>(model.created_s);
  std::tm when{};
  ::gmtime_r(&created, &when);
  fmt::format_to(std::back_inserter(out), R"(,"created_at":"{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z"}})",
                 when.tm_year + 1900, when.tm_mon + 1, when.tm_mday, when.tm_hour, when.tm_min, when.tm_sec);
  return out;
}

void list_models(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const auto& names = service.model().names;
  std::string out = R"({"object":"list","data":[)";
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += ',';
    out += model_json(service, names[i]);
  }
  out += R"(],"has_more":false,"first_id":)";
  append_json_string(out, names.front());
  out += R"(,"last_id":)";
  append_json_string(out, names.back());
  out += '}';
  exchange->respond({.body = std::move(out)});
}

void one_model(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const std::string& name = exchange->request().path_arguments.front();
  service.check_model(name);
  exchange->respond({.body = model_json(service, name)});
}

void tokenize(Service& service, const std::shared_ptr<Exchange>& exchange) {
  nlohmann::ordered_json body = parse_body(exchange->request().body, {.depth = service.options().limits.json_depth});
  exchange->drop_body();
  const text::Tokenizer& tokenizer = service.model().tokenizer;
  std::vector<int32_t> ids;
  std::vector<std::string> unknown;
  Fields fields(body);
  const bool wants_strings = fields.boolean("return_token_strs").value_or(false);
  if (fields.any("messages") != nullptr) {
    if (fields.any("prompt") != nullptr) refuse_field("prompt", "not together with messages");
    body.erase("return_token_strs");
    body.erase("add_special_tokens");
    const ChatRequest request = parse_chat_request(body, service.options().limits, service.options().effort, unknown);
    service.check_model(request.generation.model);
    ids = service.chat_prompt(request);
  } else {
    service.check_model(fields.string("model").value_or(""));
    const auto prompt = fields.string("prompt");
    if (!prompt) refuse_field("prompt", "it is missing; a string is expected");
    // The template writes what a conversation begins with; a text gets no further tokens either way.
    fields.boolean("add_special_tokens");
    unknown = fields.unknown();
    ids = tokenizer.encode(*prompt, true);
  }
  log_unknown_fields(exchange->request(), unknown);
  std::string out =
      fmt::format(R"({{"count":{},"max_model_len":{},"tokens":)", ids.size(), service.model().context_tokens);
  append_json_integers(out, ids);
  out += R"(,"token_strs":)";
  if (wants_strings) {
    out += '[';
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out += ',';
      append_json_bytes_as_string(out, tokenizer.piece(ids[i]));
    }
    out += ']';
  } else {
    out += "null";
  }
  out += '}';
  exchange->respond({.body = std::move(out)});
}

void detokenize(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const nlohmann::ordered_json body = parse_body(exchange->request().body);
  exchange->drop_body();
  Fields fields(body);
  service.check_model(fields.string("model").value_or(""));
  const nlohmann::ordered_json* tokens = fields.array("tokens");
  if (tokens == nullptr) refuse_field("tokens", "it is missing; an array of token ids is expected");
  const text::Tokenizer& tokenizer = service.model().tokenizer;
  const std::vector<int32_t> ids = read_token_ids(*tokens, "tokens", tokenizer.size());
  log_unknown_fields(exchange->request(), fields.unknown());
  std::string out = R"({"prompt":)";
  append_json_bytes_as_string(out, tokenizer.decode(ids, false));
  out += '}';
  exchange->respond({.body = std::move(out)});
}

}  // namespace

void add_model_routes(Router& router, Service& service) {
  const auto with = [&service](void (*handle)(Service&, const std::shared_ptr<Exchange>&)) {
    return [&service, handle](const std::shared_ptr<Exchange>& exchange) { handle(service, exchange); };
  };
  router.add({"GET", "/v1/models", with(list_models), Work::kQuick});
  router.add({"GET", "/v1/models/{*}", with(one_model), Work::kQuick});
  router.add({"POST", "/tokenize", with(tokenize)});
  router.add({"POST", "/detokenize", with(detokenize)});
}

}  // namespace verbatim::server
