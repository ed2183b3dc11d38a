// Names out of files, made safe to print.
#pragma once

#include <string>
#include <string_view>

namespace verbatim::checkpoint {

// 'name', with control bytes as \xNN and the middle of a name beyond 200 bytes left out.
std::string quote_name(std::string_view name);

}  // namespace verbatim::checkpoint
