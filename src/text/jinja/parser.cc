#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/hidden_names.h"

namespace verbatim::text::jinja {

Parser::Level::Level(Parser& parser) : parser_(parser) {
  if (++parser_.depth_ > parser_.limits_.syntax_depth) {
    --parser_.depth_;
    fault(ErrorKind::kCapacity, "blocks and expressions nest deeper than {} levels", parser_.limits_.syntax_depth);
  }
}

Token Parser::take() {
  Token token = current();
  if (position_ + 1 < tokens_.size()) ++position_;
  line_ = current().line;
  return token;
}

bool Parser::skip_operator(std::string_view text) {
  if (!at_operator(text)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view text) {
  if (!at_name(text)) return false;
  take();
  return true;
}

void Parser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fault(ErrorKind::kFormat, "expected '{}', found {}", text, describe(current()));
}

void Parser::expect_name(std::string_view text) {
  if (!skip_name(text)) fault(ErrorKind::kFormat, "expected '{}', found {}", text, describe(current()));
}

std::string Parser::expect_any_name() {
  if (current().kind != Token::Kind::kName) fault(ErrorKind::kFormat, "expected a name, found {}", describe(current()));
  return take().text;
}

void Parser::expect(Token::Kind kind, std::string_view what) {
  if (current().kind != kind) fault(ErrorKind::kFormat, "expected {}, found {}", what, describe(current()));
  take();
}

NameId Parser::intern(const std::string& name) {
  const auto [found, is_new] = name_ids_.emplace(name, static_cast<NameId>(body_.names.size()));
  if (is_new) body_.names.push_back(name);
  return found->second;
}

Statement Parser::start(Statement::Kind kind) {
  Statement statement;
  statement.kind = kind;
  statement.line = current().line;
  return statement;
}

template <typename Parse>
auto Parser::outside_loops(Parse parse) {
  const size_t loops = loops_;
  loops_ = 0;
  auto result = parse();
  loops_ = loops;
  return result;
}

Block Parser::parse_until(std::initializer_list<std::string_view> end_names) {
  const Level level(*this);
  Block block;
  for (;;) {
    switch (current().kind) {
      case Token::Kind::kEnd: return block;
      case Token::Kind::kData: {
        Statement text = start(Statement::Kind::kText);
        text.text = Text(take().text, Origin::kTemplate);
        block.push_back(std::move(text));
        break;
      }
      case Token::Kind::kVariableBegin: {
        take();
        Statement output = start(Statement::Kind::kOutput);
        output.expression = parse_tuple({});
        expect(Token::Kind::kVariableEnd, "'}}'");
        block.push_back(std::move(output));
        break;
      }
      default: {
        expect(Token::Kind::kBlockBegin, "a tag");
        const bool ends = current().kind == Token::Kind::kName &&
                          std::find(end_names.begin(), end_names.end(), current().text) != end_names.end();
        if (ends) return block;
        parse_statement(block);
        expect(Token::Kind::kBlockEnd, "'%}'");
      }
    }
  }
}

Block Parser::parse_body(std::initializer_list<std::string_view> end_names) {
  skip_operator(":");
  expect(Token::Kind::kBlockEnd, "'%}'");
  Block block = parse_until(end_names);
  if (current().kind == Token::Kind::kEnd)
    fault(ErrorKind::kFormat, "the template ends where '{{% {} %}}' is expected", *(end_names.end() - 1));
  return block;
}

void Parser::refuse_tag(const Token& tag) const {
  constexpr std::string_view kRefused[] = {"autoescape", "block",  "call",    "debug", "do",
                                           "extends",    "import", "include", "from",  "trans"};
  if (std::find(std::begin(kRefused), std::end(kRefused), tag.text) != std::end(kRefused))
    fault(ErrorKind::kUnsupported, "the tag '{}' is not supported", tag.text);
  fault(ErrorKind::kFormat, "the unknown or misplaced tag '{}'", tag.text);
}

void Parser::parse_statement(Block& out) {
  const Token tag = current();
  if (tag.kind != Token::Kind::kName) fault(ErrorKind::kFormat, "expected a tag's name, found {}", describe(tag));
  if (tag.text == "set") {
    out.push_back(parse_set());
  } else if (tag.text == "for") {
    out.push_back(parse_for());
  } else if (tag.text == "if") {
    out.push_back(parse_if());
  } else if (tag.text == "with") {
    out.push_back(parse_with());
  } else if (tag.text == "macro") {
    out.push_back(parse_macro());
  } else if (tag.text == "filter") {
    out.push_back(parse_filter_block());
  } else if (tag.text == "generation") {
    out.push_back(parse_scope("endgeneration"));
  } else if (tag.text == "break") {
    out.push_back(parse_loop_control(Statement::Kind::kBreak));
  } else if (tag.text == "continue") {
    out.push_back(parse_loop_control(Statement::Kind::kContinue));
  } else if (tag.text == "print") {
    parse_print(out);
  } else {
    refuse_tag(tag);
  }
}

Statement Parser::parse_set() {
  take();
  Statement set = start(Statement::Kind::kSet);
  TupleOptions options;
  options.with_namespace = true;
  set.target = parse_target(options);
  if (skip_operator("=")) {
    set.expression = parse_tuple({});
    return set;
  }
  set.kind = Statement::Kind::kSetBlock;
  if (set.target.kind == Target::Kind::kTuple) fault(ErrorKind::kFormat, "a block cannot be assigned to several names");
  set.expression = parse_filters(nullptr);
  set.body = outside_loops([&] { return parse_body({"endset"}); });
  expect_name("endset");
  return set;
}

Statement Parser::parse_for() {
  take();
  Statement loop = start(Statement::Kind::kFor);
  TupleOptions target;
  target.end_name = "in";
  loop.target = parse_target(target);
  expect_name("in");
  TupleOptions iterable;
  iterable.with_conditional = false;
  iterable.end_name = "recursive";
  loop.expression = parse_tuple(iterable);
  if (skip_name("if")) loop.condition = parse_expression();
  if (at_name("recursive")) fault(ErrorKind::kUnsupported, "a 'recursive' for loop is not supported; use a macro");
  const size_t looks_ahead = looks_ahead_;
  ++loops_;
  loop.body = parse_body({"else", "endfor"});
  --loops_;
  loop.looks_ahead = looks_ahead_ != looks_ahead;
  if (skip_name("else")) loop.otherwise = parse_body({"endfor"});
  expect_name("endfor");
  return loop;
}

Statement Parser::parse_if() {
  Statement choice = start(Statement::Kind::kIf);
  take();
  TupleOptions condition;
  condition.with_conditional = false;
  for (bool more = true; more;) {
    Branch branch;
    branch.condition = parse_tuple(condition);
    branch.body = parse_body({"elif", "else", "endif"});
    choice.branches.push_back(std::move(branch));
    more = skip_name("elif");
  }
  if (skip_name("else")) {
    Branch branch;
    branch.body = parse_body({"endif"});
    choice.branches.push_back(std::move(branch));
  }
  expect_name("endif");
  return choice;
}

Statement Parser::parse_with() {
  take();
  Statement with = start(Statement::Kind::kWith);
  while (current().kind != Token::Kind::kBlockEnd) {
    if (!with.bindings.empty()) expect_operator(",");
    Target target = parse_target({});
    expect_operator("=");
    with.bindings.emplace_back(std::move(target), parse_expression());
  }
  with.body = parse_body({"endwith"});
  expect_name("endwith");
  return with;
}

Statement Parser::parse_macro() {
  take();
  Statement statement = start(Statement::Kind::kMacro);
  statement.macro = std::make_unique<MacroNode>();
  MacroNode& macro = *statement.macro;
  macro.name = expect_any_name();
  statement.name = intern(macro.name);
  expect_operator("(");
  while (!at_operator(")")) {
    if (!macro.parameters.empty()) expect_operator(",");
    const NameId parameter = intern(expect_any_name());
    ExpressionPtr fallback;
    if (skip_operator("=")) {
      fallback = parse_expression();
    } else if (!macro.parameters.empty() && macro.parameters.back().second != nullptr) {
      fault(ErrorKind::kFormat, "a parameter without a default follows one with a default");
    }
    macro.parameters.emplace_back(parameter, std::move(fallback));
  }
  expect_operator(")");
  macros_.push_back(&macro);
  macro.body = outside_loops([&] { return parse_body({"endmacro"}); });
  macros_.pop_back();
  expect_name("endmacro");
  return statement;
}

Statement Parser::parse_filter_block() {
  take();
  Statement filter = start(Statement::Kind::kFilterBlock);
  filter.expression = parse_filter(nullptr);
  while (at_operator("|")) {
    take();
    filter.expression = parse_filter(std::move(filter.expression));
  }
  filter.body = outside_loops([&] { return parse_body({"endfilter"}); });
  expect_name("endfilter");
  return filter;
}

Statement Parser::parse_scope(std::string_view end_name) {
  take();
  Statement scope = start(Statement::Kind::kScope);
  scope.body = outside_loops([&] { return parse_body({end_name}); });
  expect_name(end_name);
  return scope;
}

Statement Parser::parse_loop_control(Statement::Kind kind) {
  if (loops_ == 0) fault(ErrorKind::kFormat, "'{}' outside of a for loop", current().text);
  Statement statement = start(kind);
  take();
  return statement;
}

void Parser::parse_print(Block& out) {
  take();
  for (bool first = true; current().kind != Token::Kind::kBlockEnd; first = false) {
    if (!first) expect_operator(",");
    Statement output = start(Statement::Kind::kOutput);
    output.expression = parse_expression();
    out.push_back(std::move(output));
  }
}

Target Parser::parse_target(const TupleOptions& options) {
  TupleOptions names = options;
  names.names_only = true;
  return to_target(*parse_tuple(names));
}

Target Parser::to_target(const Expression& expression) const {
  Target target;
  switch (expression.kind) {
    case Expression::Kind::kName:
      if (body_.names[expression.name] == "loop") fault(ErrorKind::kFormat, "'loop' cannot be assigned to");
      target.name = expression.name;
      return target;
    case Expression::Kind::kNamespaceTarget:
      target.kind = Target::Kind::kAttribute;
      target.name = expression.name;
      target.attribute = expression.text;
      return target;
    case Expression::Kind::kTuple:
      target.kind = Target::Kind::kTuple;
      for (const ExpressionPtr& part : expression.parts) target.parts.push_back(to_target(*part));
      return target;
    default: fault(ErrorKind::kFormat, "only names, namespace attributes and tuples of names can be assigned to");
  }
}

TemplateBody Parser::parse() {
  line_ = 1;
  body_.body = parse_until({});
  find_hidden_names(body_);
  return std::move(body_);
}

TemplateBody parse_template(std::string_view source, const Limits& limits, uint32_t& line) {
  return Parser(tokenize(source, limits, line), limits, line).parse();
}

}  // namespace verbatim::text::jinja
