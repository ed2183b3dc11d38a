#include "checkpoint/quote_name.h"

#include <fmt/core.h>

#include <iterator>

namespace verbatim::checkpoint {

std::string quote_name(std::string_view name) {
  std::string out = "'";
  auto append = [&](std::string_view part) {
    for (const char c : part) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte == 0x7f)
        fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
      else
        out += c;
    }
  };
  if (name.size() <= 200) {
    append(name);
  } else {
    append(name.substr(0, 120));
    out += "...";
    append(name.substr(name.size() - 60));
  }
  out += '\'';
  return out;
}

}  // namespace verbatim::checkpoint
