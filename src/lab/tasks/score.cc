#include "lab/tasks/score.h"

#include <algorithm>

namespace condense {
namespace {

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

}  // namespace

double StringMatchAll(std::string_view answer, std::span<const std::string> expected) {
  if (expected.empty()) return 1;
  const std::string text = LowerCase(answer);
  const auto n_found = std::count_if(expected.begin(), expected.end(), [&](const auto& wanted) {
    return text.find(LowerCase(wanted)) != std::string::npos;
  });
  return static_cast<double>(n_found) / static_cast<double>(expected.size());
}

}  // namespace condense
