// Text that people type and read: numbers with errors that say what is wrong, the nearest name to a
// mistyped one, lists of names. Knows no policy and no flag. Numbers follow the C locale, whatever
// the host set.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace condense {

// Insertions, deletions, replacements and swaps of neighbours that turn one into the other.
int EditDistance(std::string_view a, std::string_view b);

// The candidate with the least edit distance (the first among equals), or "" where none is near
// enough to be meant: more than a third of the letters, and more than two, would change.
std::string NearestName(std::string_view name, std::span<const std::string> candidates);

// "; did you mean 'quest'?" where a near name exists, else "".
std::string DidYouMean(std::string_view name, std::span<const std::string> candidates);

// 'text' in single quotes, as messages show what was typed.
std::string Quote(std::string_view text);

// "a, b, c"
std::string JoinNames(std::span<const std::string> names);

// The whole text must be the number: no blanks, no sign "+". Errors quote the text.
Result<int64_t> ParseInt(std::string_view text);
// Decimal, optionally with an exponent; infinities and NaN are errors.
Result<double> ParseNumber(std::string_view text);
// "5%" or "7.5%": 5 or 7.5. The percent sign must be there.
Result<double> ParsePercent(std::string_view text);

// "auto", as 0, or a whole number from 1 to `most`. Errors quote the text and say what would be
// right, here and below.
Result<int> ParseAutoOr(std::string_view text, int most);
// "7.5%" as 0.075, from `least` to `most` percent.
Result<double> ParseShare(std::string_view text, double least, double most);

// The shortest decimal text that ParseNumber reads back to the same value.
std::string PrintNumber(double value);

}  // namespace condense
