// POST /v1/responses; GET, DELETE /v1/responses/ID; GET /v1/responses/ID/input_items
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "server/json_text.h"
#include "server/response_store.h"
#include "server/responses_request.h"
#include "server/routes.h"

namespace verbatim::server {
namespace {

using Json = nlohmann::ordered_json;

// One thing that a reply consists of.
struct Item {
  enum class Kind { kReasoning, kText, kCall };
  Kind kind = Kind::kText;
  std::string id;
  std::string text;           // of a call: its arguments
  std::string call_id, name;  // of a call
  bool is_whole = true;
};

void append_part(std::string& out, const Item& item) {
  out += item.kind == Item::Kind::kText ? R"({"type":"output_text","annotations":[],"logprobs":[],"text":)"
                                        : R"({"type":"reasoning_text","text":)";
  append_json_string(out, item.text);
  out += '}';
}

// `begins`: as it is shown before anything of it came.
void append_item(std::string& out, const Item& item, bool begins) {
  const char* status = begins ? "in_progress" : item.is_whole ? "completed" : "incomplete";
  out += R"({"id":)";
  append_json_string(out, item.id);
  if (item.kind == Item::Kind::kCall) {
    fmt::format_to(std::back_inserter(out), R"(,"type":"function_call","status":"{}","call_id":)", status);
    append_json_string(out, item.call_id);
    out += R"(,"name":)";
    append_json_string(out, item.name);
    out += R"(,"arguments":)";
    append_json_string(out, begins ? "" : item.text);
    out += '}';
    return;
  }
  fmt::format_to(std::back_inserter(out), "{}\"status\":\"{}\",\"content\":[",
                 item.kind == Item::Kind::kText ? R"(,"type":"message","role":"assistant",)"
                                                : R"(,"type":"reasoning","summary":[],)",
                 status);
  if (!begins) append_part(out, item);
  out += "]}";
}

void append_items(std::string& out, const std::vector<Item>& items) {
  out += '[';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ',';
    append_item(out, items[i], false);
  }
  out += ']';
}

// What a response says of itself, whatever the reply.
class Envelope {
 public:
  Envelope(std::string response_id, std::string model, std::string owner, const ResponsesRequest& request,
           std::shared_ptr<ResponseStore> store)
      : id(std::move(response_id)),
        model_(std::move(model)),
        owner_(std::move(owner)),
        created_(unix_time()),
        echo_(request.echo->dump()),
        store_(request.store ? std::move(store) : nullptr) {
    if (!store_) return;
    input_ = request.input->dump();
    conversation_ = request.conversation->dump();
  }

  std::string item_id(Item::Kind kind, size_t index) const {
    const char* prefix = kind == Item::Kind::kText ? "msg_" : kind == Item::Kind::kCall ? "fc_" : "rs_";
    return fmt::format("{}{}_{}", prefix, id.substr(id.find('_') + 1), index);
  }

  std::string in_progress() const {
    std::string out = head("in_progress");
    out += R"(,"incomplete_details":null,"error":null,"output":[],"usage":null})";
    return out;
  }

  std::string failed(const ApiError& error) const {
    std::string out = head("failed") + R"(,"incomplete_details":null,"error":{"code":"server_error","message":)";
    append_json_string(out, error.message);
    out += R"(},"output":[],"usage":null})";
    return out;
  }

  // The response, which is kept if that was asked for.
  std::string finished(const std::vector<Item>& items, const ReplyUsage& usage, const ChoiceEnd& end) const {
    const bool is_cut = end.reason == text::FinishReason::kLength;
    std::string out = head(is_cut ? "incomplete" : "completed");
    out += is_cut ? R"(,"incomplete_details":{"reason":"max_output_tokens"})" : R"(,"incomplete_details":null)";
    fmt::format_to(std::back_inserter(out), R"(,"error":null,"completed_at":{},"output":)", unix_time());
    std::string output;
    append_items(output, items);
    out += output;
    fmt::format_to(
        std::back_inserter(out),
        R"(,"usage":{{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{},"cache_write_tokens":0}},)"
        R"("output_tokens":{},"output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}},)"
        R"("verbatim":)",
        usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens, usage.reasoning_tokens,
        usage.prompt_tokens + usage.generated_tokens);
    append_verbatim_block(out, end);
    out += '}';
    if (store_) {
      std::string conversation = conversation_;
      conversation.pop_back();
      // A call that was cut has no arguments that could be sent again.
      std::vector<Item> whole;
      for (const Item& item : items)
        if (item.is_whole || item.kind != Item::Kind::kCall) whole.push_back(item);
      std::string said;
      append_items(said, whole);
      if (!whole.empty()) conversation.append(",").append(said, 1, said.size() - 2);
      conversation += ']';
      store_->put({id, owner_, out, input_, std::move(conversation)});
    }
    return out;
  }

  const std::string id;

 private:
  std::string head(const char* status) const {
    std::string out = R"({"id":)";
    append_json_string(out, id);
    fmt::format_to(std::back_inserter(out),
                   R"(,"object":"response","created_at":{},"status":"{}","background":false,"model":)", created_,
                   status);
    append_json_string(out, model_);
    out += ',';
    out.append(echo_, 1, echo_.size() - 2);
    return out;
  }

  const std::string model_, owner_;
  const int64_t created_;
  const std::string echo_;
  std::string input_, conversation_;  // JSON, made here and not on the connection's thread; only if they are to be kept
  const std::shared_ptr<ResponseStore> store_;
};

class ResponseStream final : public ReplyWriter {
 public:
  explicit ResponseStream(Envelope envelope) : envelope_(std::move(envelope)) {}

  // What is sent before the first token.
  std::string opening() {
    std::string out;
    for (const char* type : {"response.created", "response.in_progress"}) {
      begin(type, out);
      out += R"(,"response":)" + envelope_.in_progress();
      finish(out);
    }
    return out;
  }

  void event(int, text::ReplyEvent& event, std::string& out) override {
    using Kind = text::ReplyEvent::Kind;
    switch (event.kind) {
      case Kind::kReasoning:
        open(Item::Kind::kReasoning, out);
        delta("response.reasoning_text.delta", event.text, out);
        break;
      case Kind::kText:
        open(Item::Kind::kText, out);
        delta("response.output_text.delta", event.text, out);
        break;
      case Kind::kCallBegin:
        close(out);
        call_ = {.kind = Item::Kind::kCall, .id = {}, .text = {}, .call_id = event.id, .name = event.text};
        open(Item::Kind::kCall, out);
        break;
      case Kind::kCallArguments: delta("response.function_call_arguments.delta", event.text, out); break;
      case Kind::kCallEnd:
        items_.back().is_whole = event.complete;
        close(out);
        break;
    }
  }

  void choice_end(int, ChoiceEnd& end, std::string& out) override {
    if (is_open_) items_.back().is_whole = end.reason != text::FinishReason::kLength;
    close(out);
    end_ = std::move(end);
  }

  void end(const ReplyUsage& usage, std::string& out) override {
    begin(end_.reason == text::FinishReason::kLength ? "response.incomplete" : "response.completed", out);
    out += R"(,"response":)" + envelope_.finished(items_, usage, end_);
    finish(out);
  }

  void failed(const ApiError& error, std::string& out) override {
    begin("response.failed", out);
    out += R"(,"response":)" + envelope_.failed(error);
    finish(out);
  }

 private:
  void begin(std::string_view type, std::string& out) {
    fmt::format_to(std::back_inserter(out), "event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1}", type,
                   number_++);
  }
  static void finish(std::string& out) { out += "}\n\n"; }

  // An event about the last item.
  void begin_about(std::string_view type, std::string& out) {
    begin(type, out);
    fmt::format_to(std::back_inserter(out), R"(,"output_index":{},"item_id":)", items_.size() - 1);
    append_json_string(out, items_.back().id);
    if (items_.back().kind != Item::Kind::kCall) out += R"(,"content_index":0)";
  }
  void about_item(std::string_view type, bool begins, std::string& out) {
    begin(type, out);
    fmt::format_to(std::back_inserter(out), R"(,"output_index":{},"item":)", items_.size() - 1);
    append_item(out, items_.back(), begins);
    finish(out);
  }
  void about_part(std::string_view type, std::string& out) {
    begin_about(type, out);
    out += R"(,"part":)";
    append_part(out, items_.back());
    finish(out);
  }

  void open(Item::Kind kind, std::string& out) {
    if (is_open_ && items_.back().kind == kind) return;
    close(out);
    Item item;
    if (kind == Item::Kind::kCall) item = std::move(call_);
    item.kind = kind;
    item.id = envelope_.item_id(kind, items_.size());
    items_.push_back(std::move(item));
    is_open_ = true;
    about_item("response.output_item.added", true, out);
    if (kind != Item::Kind::kCall) about_part("response.content_part.added", out);
  }
  void delta(std::string_view type, const std::string& text, std::string& out) {
    items_.back().text += text;
    begin_about(type, out);
    out += R"(,"delta":)";
    append_json_string(out, text);
    if (items_.back().kind == Item::Kind::kText) out += R"(,"logprobs":[])";
    finish(out);
  }
  void close(std::string& out) {
    if (!is_open_) return;
    is_open_ = false;
    const Item& item = items_.back();
    const auto whole = [&](std::string_view type, std::string_view member) {
      begin_about(type, out);
      fmt::format_to(std::back_inserter(out), ",\"{}\":", member);
      append_json_string(out, item.text);
    };
    if (item.kind == Item::Kind::kCall) {
      whole("response.function_call_arguments.done", "arguments");
      out += R"(,"name":)";
      append_json_string(out, item.name);
      finish(out);
    } else {
      whole(item.kind == Item::Kind::kText ? "response.output_text.done" : "response.reasoning_text.done", "text");
      if (item.kind == Item::Kind::kText) out += R"(,"logprobs":[])";
      finish(out);
      about_part("response.content_part.done", out);
    }
    about_item("response.output_item.done", false, out);
  }

  const Envelope envelope_;
  std::vector<Item> items_;
  Item call_;             // to be opened
  bool is_open_ = false;  // the last item
  int64_t number_ = 0;    // of the next event
  ChoiceEnd end_;
};

std::string whole_response(const Envelope& envelope, const WholeReply& reply) {
  const WholeReply::Choice& choice = reply.choices.front();
  const bool is_cut = choice.end.reason == text::FinishReason::kLength;
  std::vector<Item> items;
  const auto add = [&](Item item) {
    item.id = envelope.item_id(item.kind, items.size());
    items.push_back(std::move(item));
  };
  const bool ends_in_reasoning = choice.text.empty() && choice.calls.empty();
  if (!choice.reasoning.empty())
    add({Item::Kind::kReasoning, {}, choice.reasoning, {}, {}, !(is_cut && ends_in_reasoning)});
  if (!choice.text.empty()) add({Item::Kind::kText, {}, choice.text, {}, {}, !(is_cut && choice.calls.empty())});
  for (const WholeReply::Call& call : choice.calls)
    add({Item::Kind::kCall, {}, call.arguments, call.id, call.name, call.complete});
  return envelope.finished(items, reply.usage, choice.end);
}

[[noreturn]] void refuse_unknown(const std::string& id, const char* param) {
  throw ApiFailure({.status = 404,
                    .message = fmt::format("Response with id '{}' not found.", id.substr(0, 100)),
                    .code = "response_not_found",
                    .param = param});
}

std::shared_ptr<const StoredResponse> stored(ResponseStore& store, const HttpRequest& request) {
  const std::string& id = request.path_arguments.front();
  auto found = store.find(id, request.key);
  if (!found) refuse_unknown(id, "");
  return found;
}

void create(Service& service, const std::shared_ptr<ResponseStore>& store, const std::shared_ptr<Exchange>& exchange) {
  Json body = parse_body(exchange->request().body, {.depth = service.options().limits.json_depth});
  exchange->drop_body();
  const std::string owner = exchange->request().key;
  const auto previous = [&](const std::string& id) {
    const auto found = store->find(id, owner);
    if (!found) refuse_unknown(id, "previous_response_id");
    return found->conversation;
  };
  std::vector<std::string> unknown;
  const ResponsesRequest request =
      parse_responses_request(body, previous, service.options().limits, service.options().effort, unknown);
  log_unknown_fields(exchange->request(), unknown);
  const Generation& generation = request.chat.generation;
  service.check_model(generation.model);
  Envelope envelope(random_id("resp_"), generation.model.empty() ? service.model().names.front() : generation.model,
                    owner, request, store);
  std::vector<ReplyPlan> plans;
  plans.push_back(service.plan(request.chat, envelope.id));
  if (generation.stream) {
    auto writer = std::make_unique<ResponseStream>(std::move(envelope));
    HttpResponse head{.body = writer->opening()};
    Reply::stream(service.context(), std::move(plans), exchange, std::move(head), std::move(writer));
  } else {
    Reply::collect(
        service.context(), std::move(plans), exchange,
        [shared = std::make_shared<const Envelope>(std::move(envelope))](WholeReply& reply) {
          return HttpResponse{.body = whole_response(*shared, reply)};
        },
        [](const ApiError& error) { return error_response(error, ErrorShape::kOpenAi); });
  }
}

void list_input(ResponseStore& store, const std::shared_ptr<Exchange>& exchange) {
  const auto found = stored(store, exchange->request());
  Json items = Json::parse(found->input);
  // The newest first, as upstream, unless asked otherwise.
  if (exchange->request().query.find("order=asc") == std::string::npos) std::reverse(items.begin(), items.end());
  Json list = {{"object", "list"}, {"data", items}, {"has_more", false}};
  list["first_id"] = items.front().value("id", "");
  list["last_id"] = items.back().value("id", "");
  exchange->respond({.body = list.dump()});
}

}  // namespace

void add_response_routes(Router& router, Service& service, ResponseStoreLimits limits) {
  const auto store = std::make_shared<ResponseStore>(limits);
  router.add({"POST", "/v1/responses",
              [&service, store](const std::shared_ptr<Exchange>& exchange) { create(service, store, exchange); }});
  router.add({"GET", "/v1/responses/{}", [store](const std::shared_ptr<Exchange>& exchange) {
                exchange->respond({.body = stored(*store, exchange->request())->body});
              }});
  router.add({"DELETE", "/v1/responses/{}", [store](const std::shared_ptr<Exchange>& exchange) {
                const HttpRequest& request = exchange->request();
                const std::string& id = request.path_arguments.front();
                if (!store->erase(id, request.key)) refuse_unknown(id, "");
                exchange->respond({.body = Json({{"id", id}, {"object", "response"}, {"deleted", true}}).dump()});
              }});
  router.add({"GET", "/v1/responses/{}/input_items",
              [store](const std::shared_ptr<Exchange>& exchange) { list_input(*store, exchange); }});
}

}  // namespace verbatim::server
