// Judging an answer's text. RULER's measure: Hsieh et al., arXiv 2404.06654, string_match_all.
// Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace condense {

// Share of `expected` that the answer holds, letters of either case alike; 1 where none is
// expected. More answer never lowers it.
double StringMatchAll(std::string_view answer, std::span<const std::string> expected);

}  // namespace condense
