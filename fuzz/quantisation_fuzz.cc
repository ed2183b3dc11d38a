// Quantisation metadata: config.json's text up to the first NUL, then hf_quant_config.json's, then a module's name.
// Any bytes either parse or are refused by Error.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/quantisation.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbatim;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  auto next = [&] {
    const std::string_view part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(part.size() < rest.size() ? part.size() + 1 : part.size());
    return part;
  };
  const std::string_view config = next(), beside = next();
  try {
    const checkpoint::Quantisation quantisation = checkpoint::parse_quantisation(
        config, beside.empty() ? std::nullopt : std::optional<std::string>(beside), "fuzz");
    const std::string_view module = rest.substr(0, 200);
    quantisation.claims(module);
    quantisation.is_weight_only(module);
    quantisation.claims("model.language_model.layers.3.mlp.experts.0.up_proj");
  } catch (const Error&) {
  }
  return 0;
}
