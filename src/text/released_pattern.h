// A matcher for the released pattern alone.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace verbatim::text {

// Appends where each match of kReleasedPattern ends in `text`, which must be valid UTF-8. The pattern matches at every
// position, so the matches are consecutive and cover the text. Time is linear: no character is looked at more than a
// small, fixed number of times.
void split_by_released_pattern(std::string_view text, std::vector<size_t>& ends);

}  // namespace verbatim::text
