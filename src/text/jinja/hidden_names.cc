#include "text/jinja/hidden_names.h"

#include <map>
#include <set>

namespace verbatim::text::jinja {
namespace {

constexpr size_t kMostCopies = 20'000'000;

// Where a name's first value in a scope comes from.
enum class Source : uint8_t { kParameter, kOuter, kInputs, kNowhere };

// What jinja2.idtracking.Symbols knows of one scope.
struct Symbols {
  const Symbols* parent = nullptr;
  std::map<NameId, Source> sources;
  std::set<NameId> stores;

  bool knows(NameId name) const { return sources.count(name) != 0 || (parent != nullptr && parent->knows(name)); }
  bool outer_knows(NameId name) const { return parent != nullptr && parent->knows(name); }
  void load(NameId name) {
    if (!knows(name)) sources[name] = Source::kInputs;
  }
  void store(NameId name) {
    stores.insert(name);
    if (sources.count(name) == 0) sources[name] = outer_knows(name) ? Source::kOuter : Source::kNowhere;
  }
  void declare(NameId name) {
    stores.insert(name);
    sources[name] = Source::kParameter;
  }
};

class Analysis {
 public:
  // A scope whose symbols are complete: finds its hidden names, then looks at the scopes inside.
  void finish(Block& block, const Symbols& symbols, Hidden& hidden) {
    for (const auto& [name, source] : symbols.sources)
      if (source == Source::kNowhere) hidden.push_back(name);
    inner_scopes(block, symbols);
  }

  void visit(const Block& block, Symbols& symbols) {
    for (const Statement& statement : block) visit(statement, symbols);
  }

 private:
  void visit(const Expression* expression, Symbols& symbols) {
    if (expression == nullptr) return;
    if (expression->kind == Expression::Kind::kName) symbols.load(expression->name);
    for (const ExpressionPtr& part : expression->parts) visit(part.get(), symbols);
    for (const auto& [name, part] : expression->keywords) visit(part.get(), symbols);
  }

  void visit(const Target& target, Symbols& symbols, bool as_parameter) {
    switch (target.kind) {
      case Target::Kind::kName: as_parameter ? symbols.declare(target.name) : symbols.store(target.name); break;
      case Target::Kind::kAttribute: symbols.load(target.name); break;
      case Target::Kind::kTuple:
        for (const Target& part : target.parts) visit(part, symbols, as_parameter);
    }
  }

  // What a statement means for the scope it stands in; scopes inside are left out.
  void visit(const Statement& statement, Symbols& symbols) {
    switch (statement.kind) {
      case Statement::Kind::kOutput:
      case Statement::Kind::kFor: visit(statement.expression.get(), symbols); break;
      case Statement::Kind::kSet:
        visit(statement.expression.get(), symbols);
        visit(statement.target, symbols, false);
        break;
      case Statement::Kind::kSetBlock: visit(statement.target, symbols, false); break;
      case Statement::Kind::kFilterBlock: visit(statement.expression.get(), symbols); break;
      case Statement::Kind::kMacro: symbols.store(statement.name); break;
      case Statement::Kind::kWith:
        for (const auto& [target, expression] : statement.bindings) visit(expression.get(), symbols);
        break;
      case Statement::Kind::kIf: visit_if(statement, 0, symbols); break;
      case Statement::Kind::kText:
      case Statement::Kind::kScope:
      case Statement::Kind::kBreak:
      case Statement::Kind::kContinue: break;
    }
  }

  // Branches see what came before them; a name that some branch sets may come from the inputs or from outside.
  void visit_if(const Statement& statement, size_t first, Symbols& symbols) {
    visit(statement.branches[first].condition.get(), symbols);
    std::vector<Symbols> results;
    for (size_t i = first; i < statement.branches.size(); ++i) {
      copies_ += symbols.sources.size() + symbols.stores.size() + 1;
      if (copies_ > kMostCopies) fault(ErrorKind::kCapacity, "the template has too many names in too many branches");
      results.push_back(symbols);
      if (i > first) visit(statement.branches[i].condition.get(), results.back());
      visit(statement.branches[i].body, results.back());
      if (i > first) settle(symbols, results.back());
    }
    std::set<NameId> stored;
    for (const Symbols& result : results) {
      for (const NameId name : result.stores)
        if (symbols.stores.count(name) == 0) stored.insert(name);
    }
    for (Symbols& result : results) {
      for (const auto& [name, source] : result.sources) symbols.sources[name] = source;
      symbols.stores.insert(result.stores.begin(), result.stores.end());
    }
    for (const NameId name : stored)
      symbols.sources[name] = symbols.outer_knows(name) ? Source::kOuter : Source::kInputs;
  }

  // An elif is an if of its own for Jinja2: what it sets alone is settled before the branches are put together.
  static void settle(const Symbols& before, Symbols& result) {
    for (const NameId name : result.stores)
      if (before.stores.count(name) == 0)
        result.sources[name] = result.outer_knows(name) ? Source::kOuter : Source::kInputs;
  }

  void inner_scopes(Block& block, const Symbols& symbols) {
    for (Statement& statement : block) inner_scopes(statement, symbols);
  }

  void inner_scopes(Statement& statement, const Symbols& symbols) {
    Symbols inner;
    inner.parent = &symbols;
    switch (statement.kind) {
      case Statement::Kind::kIf:
        for (Branch& branch : statement.branches) inner_scopes(branch.body, symbols);
        break;
      case Statement::Kind::kFor: {
        visit(statement.target, inner, true);
        visit(statement.body, inner);
        finish(statement.body, inner, statement.hidden);
        Symbols other;
        other.parent = &symbols;
        visit(statement.otherwise, other);
        finish(statement.otherwise, other, statement.hidden_otherwise);
        break;
      }
      case Statement::Kind::kWith:
        for (const auto& [target, expression] : statement.bindings) visit(target, inner, true);
        [[fallthrough]];
      case Statement::Kind::kSetBlock:
      case Statement::Kind::kScope:
      case Statement::Kind::kFilterBlock:
        if (statement.kind == Statement::Kind::kFilterBlock) visit(statement.expression.get(), inner);
        visit(statement.body, inner);
        finish(statement.body, inner, statement.hidden);
        break;
      case Statement::Kind::kMacro:
        for (const auto& [name, fallback] : statement.macro->parameters) inner.declare(name);
        for (const auto& [name, fallback] : statement.macro->parameters) visit(fallback.get(), inner);
        visit(statement.macro->body, inner);
        finish(statement.macro->body, inner, statement.macro->hidden);
        break;
      default: break;
    }
  }

  size_t copies_ = 0;
};

}  // namespace

void find_hidden_names(TemplateBody& body) {
  Analysis analysis;
  Symbols symbols;
  analysis.visit(body.body, symbols);
  analysis.finish(body.body, symbols, body.hidden);
}

}  // namespace verbatim::text::jinja
