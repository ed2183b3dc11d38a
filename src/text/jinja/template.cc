#include "text/jinja/template.h"

#include <nlohmann/json.hpp>

#include "text/jinja/evaluator.h"
#include "text/jinja/syntax.h"

namespace verbatim::text::jinja {

Template Template::parse(std::string_view source, std::string name, const Limits& limits) {
  Template parsed(std::move(name), limits);
  uint32_t line = 1;
  try {
    parsed.body_ = std::make_shared<const TemplateBody>(parse_template(source, limits, line));
  } catch (const Fault& problem) {
    fail(problem.kind(), fmt::format("template {} line {}", parsed.name_, line), "{}", problem.what());
  }
  return parsed;
}

Text Template::render(const nlohmann::ordered_json& inputs) const {
  return render(inputs, nlohmann::ordered_json::object());
}

Text Template::render(const nlohmann::ordered_json& inputs, const nlohmann::ordered_json& checkpoint_variables) const {
  if (!inputs.is_object() || !checkpoint_variables.is_object())
    fail(ErrorKind::kFormat, "template " + name_, "the inputs are {}; an object with one member a variable is expected",
         inputs.type_name());
  Meter meter(limits_);
  Scope context;
  try {
    for (NameId name = 0; name < body_->names.size(); ++name) {
      if (const auto found = inputs.find(body_->names[name]); found != inputs.end()) {
        context.set(name, from_json(meter, *found, Origin::kInput));
      } else if (const auto own = checkpoint_variables.find(body_->names[name]); own != checkpoint_variables.end()) {
        context.set(name, from_json(meter, *own, Origin::kTemplate));
      }
    }
  } catch (const Fault& problem) {
    fail(problem.kind(), "inputs of template " + name_, "{}", problem.what());
  }
  Evaluator evaluator(*body_, meter);
  try {
    return evaluator.run(context);
  } catch (const Fault& problem) {
    fail(problem.kind(), fmt::format("template {} line {}", name_, evaluator.line()), "{}", problem.what());
  }
}

}  // namespace verbatim::text::jinja
