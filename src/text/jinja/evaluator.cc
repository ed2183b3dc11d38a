#include "text/jinja/evaluator.h"

#include <algorithm>

#include "text/jinja/access.h"
#include "text/jinja/represent.h"

namespace verbatim::text::jinja {

const Value* Scope::find(NameId name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent)
    for (const auto& [id, value] : scope->variables)
      if (id == name) return &value;
  return nullptr;
}

void Scope::set(NameId name, Value value) {
  for (auto& [id, present] : variables) {
    if (id != name) continue;
    present = std::move(value);
    return;
  }
  variables.emplace_back(name, std::move(value));
}

Evaluator::OpenScope::OpenScope(Evaluator& evaluator, Scope* parent, const Hidden& hidden)
    : evaluator_(evaluator), scope_(std::make_unique<Scope>()) {
  scope_->parent = parent;
  evaluator.hide(*scope_, hidden);
}

Evaluator::OpenScope::~OpenScope() {
  if (scope_->captured) evaluator_.captured_scopes_.push_back(std::move(scope_));
}

void Evaluator::hide(Scope& scope, const Hidden& hidden) {
  for (const NameId name : hidden)
    scope.set(name, Value::undefined(fmt::format("'{}' is undefined", body_.names[name])));
}

Text Evaluator::run(Scope& context) {
  const OpenScope scope(*this, &context, body_.hidden);
  Text out;
  execute(body_.body, *scope, out);
  return out;
}

void Evaluator::emit(Text& out, const Text& text) {
  meter_.charge(1 + text.size() / 16);
  if (text.size() > meter_.limits().text_bytes - out.size())
    fault(ErrorKind::kCapacity, "the output passes the limit on text of {} bytes", meter_.limits().text_bytes);
  out.append(text);
}

Evaluator::Flow Evaluator::execute(const Block& block, Scope& scope, Text& out) {
  const Meter::Level level(meter_);
  for (const Statement& statement : block) {
    meter_.charge(1);
    line_ = statement.line;
    if (const Flow flow = execute(statement, scope, out); flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::execute(const Statement& statement, Scope& scope, Text& out) {
  switch (statement.kind) {
    case Statement::Kind::kText: emit(out, *statement.text.as_text()); break;
    case Statement::Kind::kOutput: {
      const Value value = evaluate(*statement.expression, scope);
      if (const Text* text = value.as_text()) {
        emit(out, *text);
      } else {
        emit(out, to_text(meter_, value));
      }
      break;
    }
    case Statement::Kind::kIf: return execute_if(statement, scope, out);
    case Statement::Kind::kFor: return execute_for(statement, scope, out);
    case Statement::Kind::kSet: assign(statement.target, evaluate(*statement.expression, scope), scope); break;
    case Statement::Kind::kSetBlock: {
      Value text = block_text(statement, scope);
      if (statement.expression != nullptr) text = through_filters(*statement.expression, std::move(text), scope);
      assign(statement.target, text, scope);
      break;
    }
    case Statement::Kind::kMacro: define_macro(statement, scope); break;
    case Statement::Kind::kWith: return execute_with(statement, scope, out);
    case Statement::Kind::kFilterBlock:
      emit(out, to_text(meter_, through_filters(*statement.expression, block_text(statement, scope), scope)));
      break;
    case Statement::Kind::kScope: {
      const OpenScope inner(*this, &scope, statement.hidden);
      return execute(statement.body, *inner, out);
    }
    case Statement::Kind::kBreak: return Flow::kBreak;
    case Statement::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::execute_if(const Statement& statement, Scope& scope, Text& out) {
  for (const Branch& branch : statement.branches)
    if (branch.condition == nullptr || truth(evaluate(*branch.condition, scope)))
      return execute(branch.body, scope, out);
  return Flow::kNext;
}

Evaluator::Flow Evaluator::execute_for(const Statement& statement, Scope& scope, Text& out) {
  std::vector<Value> items = iterate(meter_, evaluate(*statement.expression, scope));
  const auto passes = [&](const Value& item) {
    const OpenScope inner(*this, &scope);
    assign(statement.target, item, *inner);
    return truth(evaluate(*statement.condition, *inner));
  };
  // The condition sees what earlier rounds of the body did, unless the body looks ahead.
  bool filter_each = statement.condition != nullptr;
  if (filter_each && statement.looks_ahead) {
    std::vector<Value> passed;
    for (const Value& item : items)
      if (passes(item)) passed.push_back(item);
    items = std::move(passed);
    filter_each = false;
  }
  const auto loop = std::make_shared<Loop>();
  if (!filter_each) loop->items = items;
  const auto loop_name = std::find(body_.names.begin(), body_.names.end(), "loop");
  const OpenScope inner(*this, &scope);
  // As in Jinja2, else runs unless some round reached the end of the body: one that broke off does not count.
  bool completed = false;
  size_t rounds = 0;
  for (const Value& item : items) {
    meter_.charge(1);
    if (filter_each) {
      if (!passes(item)) continue;
      loop->items.push_back(item);
    }
    loop->index0 = rounds++;
    inner->variables.clear();
    hide(*inner, statement.hidden);
    if (loop_name != body_.names.end()) inner->set(static_cast<NameId>(loop_name - body_.names.begin()), loop);
    assign(statement.target, item, *inner);
    const Flow flow = execute(statement.body, *inner, out);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNext) completed = true;
  }
  // A loop object that escaped keeps nothing alive, least of all a chain of loops.
  loop->items.clear();
  loop->last_changed.clear();
  loop->index0 = 0;
  if (completed || statement.otherwise.empty()) return Flow::kNext;
  const OpenScope other(*this, &scope, statement.hidden_otherwise);
  return execute(statement.otherwise, *other, out);
}

Evaluator::Flow Evaluator::execute_with(const Statement& statement, Scope& scope, Text& out) {
  const OpenScope inner(*this, &scope, statement.hidden);
  for (const auto& [target, expression] : statement.bindings) assign(target, evaluate(*expression, scope), *inner);
  return execute(statement.body, *inner, out);
}

void Evaluator::define_macro(const Statement& statement, Scope& scope) {
  Callable macro;
  macro.kind = Callable::Kind::kMacro;
  macro.name = statement.macro->name;
  macro.macro = statement.macro.get();
  macro.scope = &scope;
  for (Scope* each = &scope; each != nullptr && !each->captured; each = each->parent) each->captured = true;
  scope.set(statement.name, std::make_shared<const Callable>(std::move(macro)));
}

Text Evaluator::block_text(const Statement& statement, Scope& scope) {
  const OpenScope inner(*this, &scope, statement.hidden);
  Text text;
  execute(statement.body, *inner, text);
  return text;
}

Value Evaluator::through_filters(const Expression& filters, Value text, Scope& scope) {
  const Meter::Level level(meter_);
  if (filters.parts[0] != nullptr) text = through_filters(*filters.parts[0], std::move(text), scope);
  return apply_filter(filters, text, scope);
}

void Evaluator::assign(const Target& target, const Value& value, Scope& scope) {
  switch (target.kind) {
    case Target::Kind::kName: scope.set(target.name, value); return;
    case Target::Kind::kAttribute: {
      const Value* found = scope.find(target.name);
      Namespace* space = found != nullptr ? found->as_namespace() : nullptr;
      if (space == nullptr)
        fault(ErrorKind::kFormat, "'{}.{}' is assigned to, but '{}' is not a namespace", body_.names[target.name],
              target.attribute, body_.names[target.name]);
      for (auto& [name, present] : space->attributes) {
        if (name != target.attribute) continue;
        present = value;
        return;
      }
      space->attributes.emplace_back(target.attribute, value);
      return;
    }
    case Target::Kind::kTuple: break;
  }
  if (!value.is_undefined() && !is_iterable(value))
    fault(ErrorKind::kFormat, "a {} cannot be unpacked", type_name(value));
  const std::vector<Value> items = iterate(meter_, value);
  if (items.size() != target.parts.size())
    fault(ErrorKind::kFormat, "{} values to unpack where {} names are", items.size(), target.parts.size());
  for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
}

}  // namespace verbatim::text::jinja
