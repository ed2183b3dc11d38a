// Runs a parsed template. Statements are in evaluator.cc, expressions in evaluate_expression.cc.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "text/jinja/syntax.h"

namespace verbatim::text::jinja {

// Variables of one level; what is not found here is looked for in the parent.
struct Scope {
  Scope* parent = nullptr;
  bool captured = false;  // a macro defined here may outlive the level
  std::vector<std::pair<NameId, Value>> variables;

  const Value* find(NameId name) const;  // here or in a parent; null when nowhere
  void set(NameId name, Value value);    // here
};

// One rendering. The body must outlive it.
class Evaluator {
 public:
  Evaluator(const TemplateBody& body, Meter& meter) : body_(body), meter_(meter) {}

  // Variables are looked up in `context` when the template does not set them.
  Text run(Scope& context);
  uint32_t line() const { return line_; }  // of what was run last

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  // Opens a scope for the time of a call; keeps it alive until the end of the rendering when a macro captured it.
  class OpenScope {
   public:
    OpenScope(Evaluator& evaluator, Scope* parent, const Hidden& hidden = {});
    ~OpenScope();
    OpenScope(const OpenScope&) = delete;
    OpenScope& operator=(const OpenScope&) = delete;
    Scope& operator*() const { return *scope_; }
    Scope* operator->() const { return scope_.get(); }

   private:
    Evaluator& evaluator_;
    std::unique_ptr<Scope> scope_;
  };

  Flow execute(const Block& block, Scope& scope, Text& out);
  Flow execute(const Statement& statement, Scope& scope, Text& out);
  Flow execute_if(const Statement& statement, Scope& scope, Text& out);
  Flow execute_for(const Statement& statement, Scope& scope, Text& out);
  Flow execute_with(const Statement& statement, Scope& scope, Text& out);
  void define_macro(const Statement& statement, Scope& scope);
  Text block_text(const Statement& statement, Scope& scope);
  Value through_filters(const Expression& filters, Value text, Scope& scope);
  void hide(Scope& scope, const Hidden& hidden);
  void assign(const Target& target, const Value& value, Scope& scope);
  void emit(Text& out, const Text& text);

  Value evaluate(const Expression& expression, Scope& scope);
  Value evaluate_name(const Expression& expression, Scope& scope);
  Value evaluate_dict(const Expression& expression, Scope& scope);
  Value evaluate_call(const Expression& expression, Scope& scope);
  Value evaluate_compare(const Expression& expression, Scope& scope);
  Value apply_filter(const Expression& expression, const Value& value, Scope& scope);
  bool compare_pair(Comparator comparator, const Value& left, const Value& right);
  std::vector<Value> evaluate_all(const std::vector<ExpressionPtr>& parts, size_t first, Scope& scope);
  Arguments evaluate_arguments(const Expression& expression, Scope& scope);
  Value call_macro(const Callable& callable, const Arguments& arguments);
  Value call_global(std::string_view name, const Arguments& arguments);

  const TemplateBody& body_;
  Meter& meter_;
  uint32_t line_ = 1;
  std::vector<std::unique_ptr<Scope>> captured_scopes_;
  std::deque<Namespace> namespaces_;
};

}  // namespace verbatim::text::jinja
