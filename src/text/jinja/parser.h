// Tokens to a TemplateBody. Statements are in parser.cc, expressions in parse_expression.cc.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace verbatim::text::jinja {

// Follows Jinja2's own recursive descent, function by function, so that precedence and odd corners agree.
class Parser {
 public:
  Parser(std::vector<Token> tokens, const Limits& limits, uint32_t& line)
      : tokens_(std::move(tokens)), limits_(limits), line_(line) {}

  TemplateBody parse();

 private:
  // One level of nesting of the source; faults past Limits::syntax_depth.
  class Level {
   public:
    explicit Level(Parser& parser);
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  const Token& current() const { return tokens_[position_]; }
  const Token& next_token() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool at_operator(std::string_view text) const { return current().is(Token::Kind::kOperator, text); }
  bool at_name(std::string_view text) const { return current().is(Token::Kind::kName, text); }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_any_name();
  void expect(Token::Kind kind, std::string_view what);
  NameId intern(const std::string& name);

  // Statements.
  Block parse_until(std::initializer_list<std::string_view> end_names);  // stops at the end name, which stays current
  Block parse_body(std::initializer_list<std::string_view> end_names);   // from the end of the opening tag
  void parse_statement(Block& out);
  Statement parse_set();
  Statement parse_for();
  Statement parse_if();
  Statement parse_with();
  Statement parse_macro();
  Statement parse_filter_block();
  Statement parse_scope(std::string_view end_name);
  Statement parse_loop_control(Statement::Kind kind);
  void parse_print(Block& out);
  [[noreturn]] void refuse_tag(const Token& tag) const;
  Statement start(Statement::Kind kind);  // a statement at the current token's line
  // Runs `parse` with no loop around: break and continue are errors in it.
  template <typename Parse>
  auto outside_loops(Parse parse);

  // Expressions.
  ExpressionPtr make(Expression::Kind kind, uint32_t line);
  ExpressionPtr finish(ExpressionPtr expression);  // computes depth and checks it
  ExpressionPtr binary(BinaryOperator op, uint32_t line, ExpressionPtr left, ExpressionPtr right);
  ExpressionPtr parse_expression(bool with_conditional = true);
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters = true);
  ExpressionPtr parse_primary(bool with_namespace = false);
  ExpressionPtr parse_name(const Token& token, bool with_namespace);
  struct TupleOptions {
    bool names_only = false;  // only primaries, as in assignment targets
    bool with_conditional = true;
    bool parenthesized = false;   // an empty tuple is allowed
    bool with_namespace = false;  // namespace attributes, in targets of set
    std::string_view end_name = {};
  };
  ExpressionPtr parse_tuple(const TupleOptions& options);
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_call(ExpressionPtr node);
  void parse_arguments(Expression& call);
  ExpressionPtr parse_filters(ExpressionPtr node);  // node may be null, for blocks; null when there is no filter
  ExpressionPtr parse_filter(ExpressionPtr node);
  ExpressionPtr parse_test(ExpressionPtr node);
  Target parse_target(const TupleOptions& options);
  Target to_target(const Expression& expression) const;

  std::vector<Token> tokens_;
  Limits limits_;
  uint32_t& line_;
  size_t position_ = 0;
  size_t depth_ = 0;
  size_t loops_ = 0;                      // for statements around the current position
  size_t looks_ahead_ = 0;                // uses of loop so far that need the whole sequence
  std::vector<const MacroNode*> macros_;  // around the current position
  TemplateBody body_;
  std::unordered_map<std::string, NameId> name_ids_;
};

}  // namespace verbatim::text::jinja
