// What the JSON readers of this folder share: events in the order of the text, no tree (headers of the released size
// hold 20 MB of JSON). Every event is refused unless a reader overrides it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace verbatim::checkpoint {

class JsonEvents {
 public:
  // `where` names the file in messages.
  explicit JsonEvents(std::string where);
  virtual ~JsonEvents() = default;

  virtual void null();
  virtual void boolean(bool value);
  virtual void unsigned_number(uint64_t value);
  virtual void negative_number(int64_t value);
  // Anything with a fraction or an exponent, or beyond 64 bits.
  virtual void other_number(double value, const std::string& text);
  // Strings and keys may be moved from.
  virtual void string(std::string& value);
  virtual void key(std::string& value);
  virtual void start_object();
  virtual void end_object();
  virtual void start_array();
  virtual void end_array();

  const std::string& where() const { return where_; }

 protected:
  // What is being read and what is expected there.
  virtual std::string context() const = 0;

  // Throws Error(kFormat): context, then what was found.
  [[noreturn]] void refuse(std::string_view found) const;

 private:
  std::string where_;
};

// Feeds the text to `events`, which throw on what they do not accept. Throws Error(kFormat) for text that is not one
// JSON value, or not UTF-8. Nesting costs no stack.
void read_json(std::string_view text, JsonEvents& events);

}  // namespace verbatim::checkpoint
