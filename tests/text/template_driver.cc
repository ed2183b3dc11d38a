// For scripts/oracle_jinja.py: reads lines of JSON {"template": source, "inputs": {...}} and answers each with a line
// {"text": ..., "template_spans": [[begin, end], ...]} or {"error": message, "kind": number}.
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/chat_inputs.h"
#include "text/jinja/template.h"

int main() {
  using namespace verbatim;
  std::ios::sync_with_stdio(false);
  std::map<std::string, text::jinja::Template> parsed;
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::ordered_json answer;
    try {
      const nlohmann::ordered_json task = text::parse_ordered_json(line, "task");
      const std::string source = task.at("template").get<std::string>();
      auto found = parsed.find(source);
      if (found == parsed.end()) found = parsed.emplace(source, text::jinja::Template::parse(source, "task")).first;
      const text::jinja::Text rendered = found->second.render(task.at("inputs"));
      answer["text"] = rendered.bytes();
      answer["template_spans"] = nlohmann::json::array();
      for (const auto& span : rendered.template_spans()) answer["template_spans"].push_back({span.begin, span.end});
    } catch (const Error& problem) {
      answer = {{"error", problem.what()}, {"kind", static_cast<int>(problem.kind())}};
    }
    std::cout << answer.dump() << '\n';
  }
  return 0;
}
