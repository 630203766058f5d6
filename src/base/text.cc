#include "base/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

namespace condense {

std::string Quote(std::string_view text) {
  std::string out;
  out.append("'").append(text).append("'");
  return out;
}

int EditDistance(std::string_view a, std::string_view b) {
  // Three rows of the table of optimal string alignment.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = last[j - 1] + (a[i - 1] != b[j - 1]);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(now);
  }
  return last[b.size()];
}

std::string NearestName(std::string_view name, std::span<const std::string> candidates) {
  const std::string* nearest = nullptr;
  int least = 0;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(name, candidate);
    if (nearest == nullptr || distance < least) {
      nearest = &candidate;
      least = distance;
    }
  }
  if (nearest == nullptr) return "";
  const int letters = static_cast<int>(std::max(name.size(), nearest->size()));
  // A name none of whose letters stays is not near, however short.
  if (least > std::max(2, letters / 3) || least >= letters) return "";
  return *nearest;
}

std::string DidYouMean(std::string_view name, std::span<const std::string> candidates) {
  const std::string nearest = NearestName(name, candidates);
  std::string out;
  if (!nearest.empty()) out.append("; did you mean ").append(Quote(nearest)).append("?");
  return out;
}

std::string JoinNames(std::span<const std::string> names) {
  std::string out;
  for (const std::string& name : names) {
    if (!out.empty()) out += ", ";
    out += name;
  }
  return out;
}

Result<int64_t> ParseInt(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) return Error{Quote(text) + " is too large a number"};
  if (error != std::errc() || stop != end) return Error{Quote(text) + " is not a whole number"};
  return value;
}

Result<double> ParseNumber(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) {
    return Error{Quote(text) + " is too large or too small a number"};
  }
  if (error != std::errc() || stop != end || !std::isfinite(value)) {
    return Error{Quote(text) + " is not a number"};
  }
  return value;
}

Result<double> ParsePercent(std::string_view text) {
  if (text.empty() || text.back() != '%') {
    return Error{Quote(text) + " is no percentage (such as 5%)"};
  }
  Result<double> value = ParseNumber(text.substr(0, text.size() - 1));
  if (!value.ok()) return Error{Quote(text) + " is no percentage (such as 5%)"};
  return value;
}

Result<int> ParseAutoOr(std::string_view text, int most) {
  if (text == "auto") return 0;
  const Result<int64_t> n = ParseInt(text);
  if (!n.ok() || n.value() < 1 || n.value() > most)
    return Error{Quote(text) + " is neither auto nor 1 to " + std::to_string(most)};
  return static_cast<int>(n.value());
}

Result<double> ParseShare(std::string_view text, double least, double most) {
  const Result<double> percent = ParsePercent(text);
  if (!percent.ok() || percent.value() < least || percent.value() > most) {
    return Error{Quote(text) + " is no share: write " + PrintNumber(least) + "% to " +
                 PrintNumber(most) + "%"};
  }
  return percent.value() / 100;
}

std::string PrintNumber(double value) {
  char buffer[64];
  const auto [stop, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return error == std::errc() ? std::string(buffer, stop) : "";
}

}  // namespace condense
