// A chat template in the Jinja language: parsed once, rendered any number of times, from any thread.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "text/jinja/meter.h"
#include "text/jinja/text.h"

namespace verbatim::text::jinja {

struct TemplateBody;

// What Jinja2 gives in Hugging Face's environment (sandboxed, trim_blocks, lstrip_blocks, loop controls, tojson as
// json.dumps without ensure_ascii, {% generation %}), or an Error; docs/templates.md lists what is refused. A template
// sees its inputs and nothing else, so the same inputs always give the same text.
class Template {
 public:
  // Errors carry `name` and the line. kFormat: not a template; kUnsupported: needs something that is refused (named).
  static Template parse(std::string_view source, std::string name, const Limits& limits = {});

  // inputs: an object, one member a variable. The text knows what of it the template wrote; the strings of
  // `checkpoint_variables` (the tokenizer's own: eos_token and the like) count as written by the template, and a member
  // of inputs of the same name wins over them. kFormat: the template failed or refused, as it would in Python;
  // kCapacity: a limit was passed.
  Text render(const nlohmann::ordered_json& inputs) const;
  Text render(const nlohmann::ordered_json& inputs, const nlohmann::ordered_json& checkpoint_variables) const;

  const std::string& name() const { return name_; }

 private:
  Template(std::string name, const Limits& limits) : name_(std::move(name)), limits_(limits) {}

  std::string name_;
  Limits limits_;
  std::shared_ptr<const TemplateBody> body_;
};

}  // namespace verbatim::text::jinja
