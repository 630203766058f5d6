#include "select/head_profile.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "base/whole_file.h"

namespace condense {
namespace {

// The numbers of one line; an error without its place.
Result<std::vector<double>> ParseLine(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  line = line.substr(0, line.find('#'));
  std::vector<double> numbers;
  while (true) {
    const size_t begin = line.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return numbers;
    line.remove_prefix(begin);
    const std::string_view word = line.substr(0, line.find_first_of(kBlanks));
    line.remove_prefix(word.size());
    const std::string place = "number " + std::to_string(numbers.size() + 1) + ": ";
    const Result<double> number = ParseNumber(word);
    if (!number.ok()) return Error{place + number.error()};
    if (number.value() < 0 || number.value() > 1)
      return Error{place + std::string(word) + " is out of range: 0 to 1"};
    numbers.push_back(number.value());
  }
}

}  // namespace

Result<HeadProfile> ParseHeadProfile(std::string_view text) {
  HeadProfile profile;
  for (int at = 1; !text.empty(); ++at) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::string place = "line " + std::to_string(at) + ": ";
    const Result<std::vector<double>> numbers = ParseLine(line);
    if (!numbers.ok()) return Error{place + numbers.error()};
    const int n = static_cast<int>(numbers->size());
    if (n == 0) continue;
    if (profile.n_layers > 0 && n != profile.n_kv_heads) {
      return Error{place + std::to_string(n) + " numbers, where the first layer has " +
                   std::to_string(profile.n_kv_heads) + ": a line is a layer's KV heads"};
    }
    profile.n_kv_heads = n;
    ++profile.n_layers;
    profile.needs.insert(profile.needs.end(), numbers->begin(), numbers->end());
  }
  if (profile.n_layers == 0)
    return Error{"there is no number in it: a line holds a layer's KV heads, numbers from 0 to 1"};
  return profile;
}

Result<HeadProfile> ReadHeadProfile(const std::string& path) {
  const Result<std::string> text = ReadWholeFile(path);
  if (!text.ok()) return Error{"profile " + Quote(path) + " cannot be read: is it there?"};
  Result<HeadProfile> profile = ParseHeadProfile(text.value());
  if (!profile.ok()) return Error{"profile " + Quote(path) + ": " + profile.error()};
  return profile;
}

std::vector<bool> HeadsFrom(const HeadProfile& profile, double threshold) {
  std::vector<bool> whole;
  for (double need : profile.needs) whole.push_back(need >= threshold);
  return whole;
}

std::vector<bool> HeadsButLeast(const HeadProfile& profile, double sparsity) {
  const size_t n = profile.needs.size();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return profile.needs[a] < profile.needs[b]; });
  std::vector<bool> whole(n, true);
  const auto n_least = static_cast<size_t>(std::lround(sparsity * static_cast<double>(n)));
  for (size_t i = 0; i < n_least; ++i) whole[order[i]] = false;
  return whole;
}

}  // namespace condense
