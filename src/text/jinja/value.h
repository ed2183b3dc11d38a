// The values of a template: Python's, as far as JSON and the template language can make them.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/meter.h"
#include "text/jinja/text.h"

namespace verbatim::text::jinja {

class Value;
struct Sequence;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

struct None {};

// The absence of a value: prints as nothing, is false and empty, and is an error in most other uses.
struct Undefined {
  std::shared_ptr<const std::string> reason;  // "'x' is undefined", or null
};

// range(start, stop, step), not expanded. step is not 0.
struct Range {
  int64_t start, stop, step;
  size_t size() const;
  int64_t at(size_t index) const {  // below size(), so the result fits though the product may not
    return static_cast<int64_t>(static_cast<uint64_t>(start) + index * static_cast<uint64_t>(step));
  }
};

// Cheap to copy: what is large is shared and does not change, except iterators (which are used up), namespaces and
// loops.
class Value {
 public:
  using Storage = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                               std::shared_ptr<Sequence>, std::shared_ptr<const Dict>, Range, Namespace*,
                               std::shared_ptr<const Callable>, std::shared_ptr<Loop>>;
  Value() = default;                                                             // undefined
  Value(None) : storage_(None{}) {}                                              // NOLINT(google-explicit-constructor)
  Value(bool value) : storage_(value) {}                                         // NOLINT(google-explicit-constructor)
  Value(int64_t value) : storage_(value) {}                                      // NOLINT(google-explicit-constructor)
  Value(double value) : storage_(value) {}                                       // NOLINT(google-explicit-constructor)
  Value(Range value) : storage_(value) {}                                        // NOLINT(google-explicit-constructor)
  Value(Namespace* value) : storage_(value) {}                                   // NOLINT(google-explicit-constructor)
  Value(Text text) : storage_(std::make_shared<const Text>(std::move(text))) {}  // NOLINT(google-explicit-constructor)
  Value(const char*) = delete;
  template <typename T>
  Value(std::shared_ptr<T> value) : storage_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  static Value undefined(std::string reason);

  bool is_undefined() const { return std::holds_alternative<Undefined>(storage_); }
  bool is_none() const { return std::holds_alternative<None>(storage_); }
  bool is_bool() const { return std::holds_alternative<bool>(storage_); }
  bool is_int() const { return std::holds_alternative<int64_t>(storage_); }  // not bool
  bool is_float() const { return std::holds_alternative<double>(storage_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_integral() const { return is_bool() || is_int(); }

  // Null when the value is of another type.
  const Undefined* as_undefined() const { return std::get_if<Undefined>(&storage_); }
  const Text* as_text() const { return shared<const Text>(); }
  Sequence* as_sequence() const { return shared<Sequence>(); }
  const Dict* as_dict() const { return shared<const Dict>(); }
  const Range* as_range() const { return std::get_if<Range>(&storage_); }
  Namespace* as_namespace() const {
    Namespace* const* found = std::get_if<Namespace*>(&storage_);
    return found != nullptr ? *found : nullptr;
  }
  const Callable* as_callable() const { return shared<const Callable>(); }
  Loop* as_loop() const { return shared<Loop>(); }
  // Of a bool or an int (integer), of any number (number).
  int64_t integer() const { return is_bool() ? std::get<bool>(storage_) : std::get<int64_t>(storage_); }
  double number() const { return is_float() ? std::get<double>(storage_) : static_cast<double>(integer()); }

 private:
  template <typename T>
  T* shared() const {
    const std::shared_ptr<T>* found = std::get_if<std::shared_ptr<T>>(&storage_);
    return found != nullptr ? found->get() : nullptr;
  }
  Storage storage_;
};

// A list, a tuple, a view of a dict, or an iterator (what filters such as `map` yield: no length, used up by one pass).
struct Sequence {
  enum class Kind : uint8_t { kList, kTuple, kKeys, kValues, kItems, kIterator };
  Kind kind = Kind::kList;
  uint32_t depth = 1;  // 1 + the deepest item's
  std::vector<Value> items;
};

// Keys are strings or scalars, in order of insertion; a later equal key replaces the value and keeps the place.
struct Dict {
  uint32_t depth = 1;
  std::vector<std::pair<Value, Value>> items;
  std::unordered_map<std::string_view, size_t> text_index;  // into items; views into the keys' own bytes

  const Value* find(const Value& key) const;  // null when absent; faults on a key that cannot be one
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
};

// Owned by the rendering, so that a namespace may hold itself.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

// The `loop` of a running for statement.
struct Loop {
  std::vector<Value> items;
  size_t index0 = 0;
  bool changed_called = false;
  std::vector<Value> last_changed;
};

struct MacroNode;
struct Scope;

struct Callable {
  enum class Kind : uint8_t { kMacro, kGlobal, kMethod };
  Kind kind = Kind::kGlobal;
  std::string name;                  // of a global or a method
  const MacroNode* macro = nullptr;  // of a macro; the template outlives the rendering
  Scope* scope = nullptr;            // where the macro was defined
  Value self;                        // of a method
};

Value make_sequence(Meter& meter, Sequence::Kind kind, std::vector<Value> items);
Value make_dict(Meter& meter, Dict dict);
inline Value make_list(Meter& meter, std::vector<Value> items) {
  return make_sequence(meter, Sequence::Kind::kList, std::move(items));
}

// JSON to values; every string is of the origin given. Faults on invalid UTF-8, integers past 64 bits and nesting
// deeper than the limit.
Value from_json(Meter& meter, const nlohmann::ordered_json& json, Origin origin);

// Python's type name, for messages: "str", "dict", "NoneType".
std::string_view type_name(const Value& value);
bool truth(const Value& value);
bool equal(Meter& meter, const Value& left, const Value& right);
// <0, 0, >0; faults where Python raises TypeError. NaN compares as neither: `unordered` is set.
int compare(Meter& meter, const Value& left, const Value& right, bool& unordered);
bool less(Meter& meter, const Value& left, const Value& right);

// Faults with the reason when the value is undefined.
void require_defined(const Value& value);

}  // namespace verbatim::text::jinja
