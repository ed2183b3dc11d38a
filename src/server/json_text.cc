#include "server/json_text.h"

#include <cmath>

#include "text/stream_decoder.h"

namespace verbatim::server {

namespace {

template <typename Float>
void append_float(std::string& out, Float number) {
  if (!std::isfinite(number)) {
    out += "-9999.0";
    return;
  }
  const size_t begin = out.size();
  fmt::format_to(std::back_inserter(out), "{}", number);
  if (out.find_first_of(".e", begin) == std::string::npos) out += ".0";
}

}  // namespace

void append_json_bytes_as_string(std::string& out, std::string_view bytes) {
  text::StreamDecoder decoder;
  const std::string whole = decoder.push(bytes);
  out += '"';
  text::append_json_escaped(out, whole);
  text::append_json_escaped(out, decoder.flush());
  out += '"';
}

void append_json_number(std::string& out, double number) { append_float(out, number); }
void append_json_number(std::string& out, float number) { append_float(out, number); }

void append_json_integers(std::string& out, std::span<const int32_t> numbers) {
  out += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out += ',';
    append_json_integer(out, numbers[i]);
  }
  out += ']';
}

}  // namespace verbatim::server
