#include "checkpoint/json_events.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "checkpoint/quote_name.h"

namespace verbatim::checkpoint {

namespace {

class Adapter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Adapter(JsonEvents& events) : events_(events) {}

  bool null() override { return events_.null(), true; }
  bool boolean(bool value) override { return events_.boolean(value), true; }
  bool number_integer(int64_t value) override { return events_.negative_number(value), true; }
  bool number_unsigned(uint64_t value) override { return events_.unsigned_number(value), true; }
  bool number_float(double value, const std::string& text) override { return events_.other_number(value, text), true; }
  bool string(std::string& value) override { return events_.string(value), true; }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return false; }  // not in JSON text
  bool start_object(size_t /*size*/) override { return events_.start_object(), true; }
  bool key(std::string& value) override { return events_.key(value), true; }
  bool end_object() override { return events_.end_object(), true; }
  bool start_array(size_t /*size*/) override { return events_.start_array(), true; }
  bool end_array() override { return events_.end_array(), true; }
  bool parse_error(size_t position, const std::string& /*token*/, const nlohmann::json::exception& error) override {
    fail(ErrorKind::kFormat, events_.where(),
         "not valid JSON at byte {} ({}); expected one JSON object; is the file complete?", position,
         quote_name(error.what()));
  }

 private:
  JsonEvents& events_;
};

}  // namespace

JsonEvents::JsonEvents(std::string where) : where_(std::move(where)) {}

void JsonEvents::null() { refuse("null"); }
void JsonEvents::boolean(bool value) { refuse(value ? "true" : "false"); }
void JsonEvents::unsigned_number(uint64_t value) { refuse(fmt::format("the number {}", value)); }
void JsonEvents::negative_number(int64_t value) { refuse(fmt::format("the number {}", value)); }
void JsonEvents::other_number(double /*value*/, const std::string& text) {
  refuse(fmt::format("the number {}", quote_name(text)));
}
void JsonEvents::string(std::string& value) { refuse(fmt::format("the string {}", quote_name(value))); }
void JsonEvents::key(std::string& value) { refuse(fmt::format("the key {}", quote_name(value))); }
void JsonEvents::start_object() { refuse("an object"); }
void JsonEvents::end_object() { refuse("the end of an object"); }
void JsonEvents::start_array() { refuse("an array"); }
void JsonEvents::end_array() { refuse("the end of an array"); }

void JsonEvents::refuse(std::string_view found) const {
  fail(ErrorKind::kFormat, where_, "{}; found {}", context(), found);
}

void read_json(std::string_view text, JsonEvents& events) {
  Adapter adapter(events);
  nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &adapter);
}

}  // namespace verbatim::checkpoint
