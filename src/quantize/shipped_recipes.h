// The files of recipes/, compiled in.
#pragma once

#include <span>

namespace verbatim::quantize {

struct ShippedRecipe {
  const char* name;
  const char* json;
};
std::span<const ShippedRecipe> shipped_recipe_files();

}  // namespace verbatim::quantize
