#include "text/grammar/formats.h"

#include <initializer_list>
#include <map>
#include <string>

namespace verbatim::text {
namespace {

std::string join(std::initializer_list<std::string_view> parts) {
  std::string out;
  for (const std::string_view part : parts) out.append(part);
  return out;
}

constexpr std::string_view kHex = "[0-9A-Fa-f]";

// Years from 0001 to 9999; the 29th of February in leap years alone.
std::string date() {
  constexpr std::string_view kYear = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
  constexpr std::string_view kLeapYear = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)";
  constexpr std::string_view kDay =
      "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
  return join({"(", kYear, "-", kDay, "|", kLeapYear, "-02-29)"});
}

constexpr std::string_view kTime =
    R"(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9]))";

// ISO 8601 as RFC 3339, appendix A, has it.
std::string duration() {
  constexpr std::string_view kSeconds = "[0-9]{1,9}S";
  const std::string minutes = join({"[0-9]{1,9}M(", kSeconds, ")?"});
  const std::string hours = join({"[0-9]{1,9}H(", minutes, ")?"});
  const std::string time = join({"T(", hours, "|", minutes, "|", kSeconds, ")"});
  constexpr std::string_view kDays = "[0-9]{1,9}D";
  const std::string months = join({"[0-9]{1,9}M(", kDays, ")?"});
  const std::string years = join({"[0-9]{1,9}Y(", months, ")?"});
  return join({"P([0-9]{1,9}W|", time, "|(", years, "|", months, "|", kDays, ")(", time, ")?)"});
}

std::string ipv4() {
  constexpr std::string_view kOctet = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  return join({kOctet, R"((\.)", kOctet, "){3}"});
}

// RFC 3986: `::` for one group of zeros or more.
std::string ipv6() {
  const std::string group = join({kHex, "{1,4}"}), colon = join({group, ":"});
  const std::string last = join({"(", colon, group, "|", ipv4(), ")"});
  std::string out = join({"(", colon, "){6}", last, "|::(", colon, "){5}", last});
  const auto before = [&](int most) { return join({"((", colon, "){0,", std::to_string(most), "}", group, ")?"}); };
  for (int left = 4; left >= 1; --left)
    out += join({"|", before(4 - left), "::(", colon, "){", std::to_string(left), "}", last});
  return out + join({"|", before(4), "::", last, "|", before(5), "::", group, "|", before(6), "::"});
}

std::string hostname() {
  constexpr std::string_view kLabel = R"([A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?)";
  return join({kLabel, R"((\.)", kLabel, ")*"});
}

std::string email() {
  constexpr std::string_view kAtom = R"([A-Za-z0-9!#$%&'*+/=?\^_`{|}~\-]+)";
  return join({kAtom, R"((\.)", kAtom, ")*@", hostname()});
}

// RFC 3986, hosts in brackets left out.
std::string uri(bool needs_scheme) {
  const auto characters = [](std::string_view more) {
    return join({R"(([A-Za-z0-9\-._~!$&'()*+,;=)", more, "]|%", kHex, "{2})"});
  };
  const std::string segment = characters(":@"), tail_character = characters(":@/?");
  const std::string authority = join({"//(", characters(":"), "*@)?", characters(""), "*(:[0-9]*)?"});
  const std::string rest = join({"(/", segment, "*)*"});
  const std::string tail = join({R"((\?)", tail_character, "*)?(#", tail_character, "*)?"});
  const std::string absolute = join({authority, rest, "|/(", segment, "+", rest, ")?"});
  if (needs_scheme) return join({R"([A-Za-z][A-Za-z0-9+.\-]*:()", absolute, "|(", segment, "+", rest, ")?)", tail});
  return join({"(", uri(true), "|(", absolute, "|(", characters("@"), "+", rest, ")?)", tail, ")"});
}

const std::map<std::string_view, std::string>& patterns() {
  static const std::map<std::string_view, std::string> kPatterns = {
      {"date", date()},
      {"time", std::string(kTime)},
      {"date-time", join({date(), "T", kTime})},
      {"duration", duration()},
      {"uuid", join({kHex, "{8}(-", kHex, "{4}){3}-", kHex, "{12}"})},
      {"email", email()},
      {"hostname", hostname()},
      {"ipv4", ipv4()},
      {"ipv6", ipv6()},
      {"uri", uri(true)},
      {"uri-reference", uri(false)},
      {"json-pointer", "(/([^/~]|~[01])*)*"},
      // Said of a string's use, not of its text.
      {"password", {}},
      {"binary", {}},
      {"float", {}},
      {"double", {}},
      {"int32", {}},
      {"int64", {}}};
  return kPatterns;
}

}  // namespace

bool is_format(std::string_view name) { return patterns().contains(name); }

std::string_view pattern_of_format(std::string_view name) {
  const auto found = patterns().find(name);
  return found == patterns().end() ? std::string_view{} : std::string_view(found->second);
}

std::optional<NumberBounds> bounds_of_format(std::string_view name) {
  const bool is_short = name == "int32";
  if (!is_short && name != "int64") return std::nullopt;
  NumberBounds bounds;
  bounds.lower = NumberBounds::Bound{*Decimal::parse(is_short ? "-2147483648" : "-9223372036854775808"), false};
  bounds.upper = NumberBounds::Bound{*Decimal::parse(is_short ? "2147483647" : "9223372036854775807"), false};
  return bounds;
}

}  // namespace verbatim::text
