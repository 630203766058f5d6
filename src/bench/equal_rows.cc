#include "bench/equal_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "select/registry.h"

namespace condense {
namespace {

constexpr const char* kAll = "all";
constexpr double kMeanBlockRows = 16;

const PolicyKey* FindKey(const PolicyInfo& info, const std::string& name) {
  const auto found = std::find_if(info.keys.begin(), info.keys.end(),
                                  [&](const PolicyKey& key) { return key.name == name; });
  return found == info.keys.end() ? nullptr : &*found;
}

int64_t DefaultRows(const PolicyInfo& info, const std::string& name) {
  const PolicyKey* key = FindKey(info, name);
  const Result<int64_t> rows = key ? ParseInt(key->default_value) : Result<int64_t>(0);
  return rows.ok() ? rows.value() : 0;
}

std::string SpecAt(const PolicyInfo& info, int n_tokens, int n_rows) {
  if (FindKey(info, "tokens")) return fmt::format("{}:tokens={}", info.name, n_tokens);
  if (FindKey(info, "budget")) {
    const double share = (n_tokens + n_rows / (2 * kMeanBlockRows)) / n_rows;
    return fmt::format("{}:budget={:.2f}%", info.name, 100 * std::min(share, 1.0));
  }
  if (FindKey(info, "window")) {
    const int64_t first = DefaultRows(info, "sink") + DefaultRows(info, "anchor");
    return fmt::format("{}:window={}", info.name, std::max<int64_t>(1, n_tokens - first));
  }
  return info.name;
}

}  // namespace

Result<EqualRows> PoliciesAtEqualRows(const std::vector<std::string>& names, int n_tokens,
                                      int n_rows) {
  std::vector<std::string> known;
  for (const PolicyInfo* info : RegisteredPolicies()) known.push_back(info->name);
  for (const std::string& name : names) {
    if (name == kAll || std::find(known.begin(), known.end(), name) != known.end()) continue;
    return Error{fmt::format("--policies: policy {} is unknown{} (policies: {}, or all)",
                             Quote(name), DidYouMean(name, known), JoinNames(known))};
  }
  EqualRows equal;
  for (const PolicyInfo* info : RegisteredPolicies()) {
    const bool named = std::find(names.begin(), names.end(), info->name) != names.end();
    if (info->name == "dense" ||
        (!named && std::find(names.begin(), names.end(), kAll) == names.end()))
      continue;
    std::string spec = SpecAt(*info, n_tokens, n_rows);
    const Result<BoundPolicy> made = MakePolicy(spec);
    if (made.ok()) {
      equal.specs.push_back(std::move(spec));
    } else if (named) {
      return Error{made.error()};
    } else {
      equal.left_out.push_back(made.error());
    }
  }
  return equal;
}

}  // namespace condense
