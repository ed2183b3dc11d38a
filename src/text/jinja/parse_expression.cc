#include <algorithm>
#include <array>
#include <optional>

#include "text/jinja/parser.h"

namespace verbatim::text::jinja {

ExpressionPtr Parser::make(Expression::Kind kind, uint32_t line) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  return expression;
}

// Chains such as a + b + c + ... nest without recursion of the parser, but not of what walks the tree.
ExpressionPtr Parser::finish(ExpressionPtr expression) {
  uint32_t deepest = 0;
  for (const ExpressionPtr& part : expression->parts)
    if (part != nullptr) deepest = std::max(deepest, part->depth);
  for (const auto& [name, part] : expression->keywords) deepest = std::max(deepest, part->depth);
  if (deepest >= limits_.syntax_depth)
    fault(ErrorKind::kCapacity, "an expression nests deeper than {} levels", limits_.syntax_depth);
  expression->depth = deepest + 1;
  return expression;
}

ExpressionPtr Parser::binary(BinaryOperator op, uint32_t line, ExpressionPtr left, ExpressionPtr right) {
  ExpressionPtr expression = make(Expression::Kind::kBinary, line);
  expression->binary = op;
  expression->parts.push_back(std::move(left));
  expression->parts.push_back(std::move(right));
  return finish(std::move(expression));
}

ExpressionPtr Parser::parse_expression(bool with_conditional) {
  const Level level(*this);
  return with_conditional ? parse_conditional() : parse_or();
}

ExpressionPtr Parser::parse_conditional() {
  const Level level(*this);
  uint32_t line = current().line;
  ExpressionPtr value = parse_or();
  while (skip_name("if")) {
    ExpressionPtr choice = make(Expression::Kind::kConditional, line);
    choice->parts.push_back(parse_or());
    choice->parts.push_back(std::move(value));
    choice->parts.push_back(skip_name("else") ? parse_conditional() : nullptr);
    value = finish(std::move(choice));
    line = current().line;
  }
  return value;
}

ExpressionPtr Parser::parse_or() {
  uint32_t line = current().line;
  ExpressionPtr left = parse_and();
  while (skip_name("or")) {
    ExpressionPtr both = make(Expression::Kind::kOr, line);
    both->parts.push_back(std::move(left));
    both->parts.push_back(parse_and());
    left = finish(std::move(both));
    line = current().line;
  }
  return left;
}

ExpressionPtr Parser::parse_and() {
  uint32_t line = current().line;
  ExpressionPtr left = parse_not();
  while (skip_name("and")) {
    ExpressionPtr both = make(Expression::Kind::kAnd, line);
    both->parts.push_back(std::move(left));
    both->parts.push_back(parse_not());
    left = finish(std::move(both));
    line = current().line;
  }
  return left;
}

ExpressionPtr Parser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const Level level(*this);
  ExpressionPtr negation = make(Expression::Kind::kNot, take().line);
  negation->parts.push_back(parse_not());
  return finish(std::move(negation));
}

namespace {

std::optional<Comparator> comparator_of(const Token& token) {
  constexpr std::array<std::pair<std::string_view, Comparator>, 6> kComparators = {{
      {"==", Comparator::kEqual},
      {"!=", Comparator::kNotEqual},
      {"<", Comparator::kLess},
      {"<=", Comparator::kLessOrEqual},
      {">", Comparator::kGreater},
      {">=", Comparator::kGreaterOrEqual},
  }};
  if (token.kind != Token::Kind::kOperator) return std::nullopt;
  for (const auto& [text, comparator] : kComparators)
    if (token.text == text) return comparator;
  return std::nullopt;
}

}  // namespace

ExpressionPtr Parser::parse_compare() {
  const uint32_t line = current().line;
  ExpressionPtr first = parse_sum();
  ExpressionPtr comparison = make(Expression::Kind::kCompare, line);
  comparison->parts.push_back(std::move(first));
  for (;;) {
    if (const std::optional<Comparator> comparator = comparator_of(current())) {
      take();
      comparison->comparators.push_back(*comparator);
    } else if (skip_name("in")) {
      comparison->comparators.push_back(Comparator::kIn);
    } else if (at_name("not") && next_token().is(Token::Kind::kName, "in")) {
      take();
      take();
      comparison->comparators.push_back(Comparator::kNotIn);
    } else {
      break;
    }
    comparison->parts.push_back(parse_sum());
  }
  if (comparison->comparators.empty()) return std::move(comparison->parts.front());
  return finish(std::move(comparison));
}

ExpressionPtr Parser::parse_sum() {
  uint32_t line = current().line;
  ExpressionPtr left = parse_concatenation();
  while (at_operator("+") || at_operator("-")) {
    const BinaryOperator op = take().text == "+" ? BinaryOperator::kAdd : BinaryOperator::kSubtract;
    left = binary(op, line, std::move(left), parse_concatenation());
    line = current().line;
  }
  return left;
}

ExpressionPtr Parser::parse_concatenation() {
  const uint32_t line = current().line;
  ExpressionPtr first = parse_product();
  if (!at_operator("~")) return first;
  ExpressionPtr all = make(Expression::Kind::kConcatenate, line);
  all->parts.push_back(std::move(first));
  while (skip_operator("~")) all->parts.push_back(parse_product());
  return finish(std::move(all));
}

ExpressionPtr Parser::parse_product() {
  constexpr std::array<std::pair<std::string_view, BinaryOperator>, 4> kOperators = {{
      {"*", BinaryOperator::kMultiply},
      {"/", BinaryOperator::kDivide},
      {"//", BinaryOperator::kFloorDivide},
      {"%", BinaryOperator::kModulo},
  }};
  uint32_t line = current().line;
  ExpressionPtr left = parse_power();
  for (;;) {
    const auto* found =
        std::find_if(kOperators.begin(), kOperators.end(), [&](const auto& op) { return at_operator(op.first); });
    if (found == kOperators.end()) return left;
    take();
    left = binary(found->second, line, std::move(left), parse_power());
    line = current().line;
  }
}

ExpressionPtr Parser::parse_power() {
  uint32_t line = current().line;
  ExpressionPtr left = parse_unary();
  while (skip_operator("**")) {
    left = binary(BinaryOperator::kPower, line, std::move(left), parse_unary());
    line = current().line;
  }
  return left;
}

ExpressionPtr Parser::parse_unary(bool with_filters) {
  ExpressionPtr node;
  if (at_operator("-") || at_operator("+")) {
    const Level level(*this);
    const Token sign = take();
    node = make(sign.text == "-" ? Expression::Kind::kNegate : Expression::Kind::kIdentity, sign.line);
    node->parts.push_back(parse_unary(false));
    node = finish(std::move(node));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::parse_name(const Token& token, bool with_namespace) {
  const std::string& text = token.text;
  ExpressionPtr node = make(Expression::Kind::kConstant, token.line);
  if (text == "true" || text == "True" || text == "false" || text == "False") {
    node->value = text == "true" || text == "True";
    return node;
  }
  if (text == "none" || text == "None") {
    node->value = None{};
    return node;
  }
  if (with_namespace && skip_operator(".")) {
    node->kind = Expression::Kind::kNamespaceTarget;
    node->name = intern(text);
    node->text = expect_any_name();
    return node;
  }
  const bool is_parameter = std::any_of(macros_.begin(), macros_.end(), [&](const MacroNode* macro) {
    return std::any_of(macro->parameters.begin(), macro->parameters.end(),
                       [&](const auto& parameter) { return body_.names[parameter.first] == text; });
  });
  if (!macros_.empty() && !is_parameter && (text == "caller" || text == "varargs" || text == "kwargs"))
    fault(ErrorKind::kUnsupported, "'{}' in a macro is not supported; name the parameters", text);
  if (text == "self" || text == "super")
    fault(ErrorKind::kUnsupported, "'{}' (template inheritance) is not supported", text);
  if (text == "loop") {
    // What of loop needs to know the rest of the sequence; loop alone may be used for anything.
    constexpr std::array kBehind = {
        std::string_view("index"), std::string_view("index0"),  std::string_view("first"), std::string_view("previtem"),
        std::string_view("cycle"), std::string_view("changed"), std::string_view("depth"), std::string_view("depth0")};
    const bool behind =
        at_operator(".") && std::find(kBehind.begin(), kBehind.end(), next_token().text) != kBehind.end();
    if (!behind) ++looks_ahead_;
  }
  node->kind = Expression::Kind::kName;
  node->name = intern(text);
  return node;
}

ExpressionPtr Parser::parse_primary(bool with_namespace) {
  const Token token = current();
  switch (token.kind) {
    case Token::Kind::kName: take(); return parse_name(token, with_namespace);
    case Token::Kind::kString: {
      std::string text;
      while (current().kind == Token::Kind::kString) text += take().text;
      ExpressionPtr node = make(Expression::Kind::kConstant, token.line);
      node->value = Text(std::move(text), Origin::kTemplate);
      return node;
    }
    case Token::Kind::kInteger:
    case Token::Kind::kFloat: {
      take();
      ExpressionPtr node = make(Expression::Kind::kConstant, token.line);
      node->value = token.kind == Token::Kind::kInteger ? Value(token.integer) : Value(token.number);
      return node;
    }
    default: break;
  }
  if (skip_operator("(")) {
    const Level level(*this);
    TupleOptions options;
    options.parenthesized = true;
    ExpressionPtr node = parse_tuple(options);
    expect_operator(")");
    return node;
  }
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  fault(ErrorKind::kFormat, "expected an expression, found {}", describe(token));
}

ExpressionPtr Parser::parse_tuple(const TupleOptions& options) {
  const uint32_t line = current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  const auto at_end = [&] {
    return current().kind == Token::Kind::kVariableEnd || current().kind == Token::Kind::kBlockEnd ||
           at_operator(")") || (!options.end_name.empty() && at_name(options.end_name));
  };
  for (;;) {
    if (!items.empty()) expect_operator(",");
    if (at_end()) break;
    items.push_back(options.names_only ? parse_primary(options.with_namespace)
                                       : parse_expression(options.with_conditional));
    if (!at_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (!is_tuple && !options.parenthesized)
    fault(ErrorKind::kFormat, "expected an expression, found {}", describe(current()));
  ExpressionPtr tuple = make(Expression::Kind::kTuple, line);
  tuple->parts = std::move(items);
  return finish(std::move(tuple));
}

ExpressionPtr Parser::parse_list() {
  ExpressionPtr list = make(Expression::Kind::kList, take().line);
  while (!at_operator("]")) {
    if (!list->parts.empty()) expect_operator(",");
    if (at_operator("]")) break;
    list->parts.push_back(parse_expression());
  }
  expect_operator("]");
  return finish(std::move(list));
}

ExpressionPtr Parser::parse_dict() {
  ExpressionPtr dict = make(Expression::Kind::kDict, take().line);
  while (!at_operator("}")) {
    if (!dict->parts.empty()) expect_operator(",");
    if (at_operator("}")) break;
    dict->parts.push_back(parse_expression());
    expect_operator(":");
    dict->parts.push_back(parse_expression());
  }
  expect_operator("}");
  return finish(std::move(dict));
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr node) {
  for (;;) {
    if (at_operator(".") || at_operator("[")) {
      node = parse_subscript(std::move(node));
    } else if (at_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_filters_and_tests(ExpressionPtr node) {
  for (;;) {
    if (skip_operator("|")) {
      node = parse_filter(std::move(node));
    } else if (at_name("is")) {
      node = parse_test(std::move(node));
    } else if (at_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr node) {
  const Token open = take();
  if (open.text == ".") {
    const Token name = take();
    if (name.kind == Token::Kind::kName) {
      ExpressionPtr attribute = make(Expression::Kind::kAttribute, open.line);
      attribute->text = name.text;
      attribute->parts.push_back(std::move(node));
      return finish(std::move(attribute));
    }
    if (name.kind != Token::Kind::kInteger)
      fault(ErrorKind::kFormat, "expected a name or a number after '.', found {}", describe(name));
    ExpressionPtr item = make(Expression::Kind::kItem, open.line);
    ExpressionPtr index = make(Expression::Kind::kConstant, name.line);
    index->value = name.integer;
    item->parts.push_back(std::move(node));
    item->parts.push_back(std::move(index));
    return finish(std::move(item));
  }
  // A lone key, or start:stop:step.
  ExpressionPtr slice = make(Expression::Kind::kSlice, open.line);
  slice->parts.push_back(std::move(node));
  slice->parts.push_back(at_operator(":") ? nullptr : parse_expression());
  if (!at_operator(":")) {
    if (at_operator(",")) fault(ErrorKind::kUnsupported, "several items between [ and ] after a value");
    slice->kind = Expression::Kind::kItem;
    expect_operator("]");
    return finish(std::move(slice));
  }
  take();
  slice->parts.push_back(at_operator(":") || at_operator("]") || at_operator(",") ? nullptr : parse_expression());
  const bool has_step = skip_operator(":") && !at_operator("]") && !at_operator(",");
  slice->parts.push_back(has_step ? parse_expression() : nullptr);
  if (at_operator(",")) fault(ErrorKind::kUnsupported, "several items between [ and ] after a value");
  expect_operator("]");
  return finish(std::move(slice));
}

ExpressionPtr Parser::parse_call(ExpressionPtr node) {
  ExpressionPtr call = make(Expression::Kind::kCall, current().line);
  call->parts.push_back(std::move(node));
  parse_arguments(*call);
  return finish(std::move(call));
}

void Parser::parse_arguments(Expression& call) {
  expect_operator("(");
  bool first = true;
  while (!at_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (at_operator(")")) break;
    }
    first = false;
    if (at_operator("*") || at_operator("**"))
      fault(ErrorKind::kUnsupported, "arguments unpacked with '{}' are not supported", current().text);
    if (current().kind == Token::Kind::kName && next_token().is(Token::Kind::kOperator, "=")) {
      std::string name = take().text;
      take();
      const bool repeated =
          std::any_of(call.keywords.begin(), call.keywords.end(), [&](const auto& k) { return k.first == name; });
      if (repeated) fault(ErrorKind::kFormat, "the keyword argument '{}' is given twice", name);
      call.keywords.emplace_back(std::move(name), parse_expression());
    } else {
      if (!call.keywords.empty()) fault(ErrorKind::kFormat, "a positional argument follows a keyword argument");
      call.parts.push_back(parse_expression());
    }
  }
  expect_operator(")");
}

ExpressionPtr Parser::parse_filters(ExpressionPtr node) {
  while (skip_operator("|")) node = parse_filter(std::move(node));
  return node;
}

ExpressionPtr Parser::parse_filter(ExpressionPtr node) {
  ExpressionPtr filter = make(Expression::Kind::kFilter, current().line);
  filter->text = expect_any_name();
  while (skip_operator(".")) filter->text.append(".").append(expect_any_name());
  filter->filter = find_filter(filter->text);
  if (filter->filter == nullptr) fault(ErrorKind::kFormat, "there is no filter '{}'", filter->text);
  filter->parts.push_back(std::move(node));
  if (at_operator("(")) parse_arguments(*filter);
  return finish(std::move(filter));
}

ExpressionPtr Parser::parse_test(ExpressionPtr node) {
  ExpressionPtr test = make(Expression::Kind::kTest, take().line);
  const uint32_t line = test->line;
  const bool negated = skip_name("not");
  test->text = expect_any_name();
  while (skip_operator(".")) test->text.append(".").append(expect_any_name());
  test->test = find_test(test->text);
  if (test->test == nullptr) fault(ErrorKind::kFormat, "there is no test '{}'", test->text);
  test->parts.push_back(std::move(node));
  const Token::Kind kind = current().kind;
  const bool has_operand = kind == Token::Kind::kString || kind == Token::Kind::kInteger ||
                           kind == Token::Kind::kFloat || at_operator("[") || at_operator("{") ||
                           (kind == Token::Kind::kName && !at_name("else") && !at_name("or") && !at_name("and"));
  if (at_operator("(")) {
    parse_arguments(*test);
  } else if (has_operand) {
    if (at_name("is")) fault(ErrorKind::kFormat, "tests cannot be chained with 'is'");
    ExpressionPtr operand = parse_primary();
    test->parts.push_back(parse_postfix(std::move(operand)));
  }
  ExpressionPtr result = finish(std::move(test));
  if (!negated) return result;
  ExpressionPtr negation = make(Expression::Kind::kNot, line);
  negation->parts.push_back(std::move(result));
  return finish(std::move(negation));
}

}  // namespace verbatim::text::jinja
