#include "select/row_keys.h"

#include <cmath>

namespace condense {
namespace {

constexpr int kMostWindow = 1'000'000;

}  // namespace

int RowOptions::RowsOf(int n_visible) const {
  return byte_share ? static_cast<int>(std::floor(*byte_share * n_visible)) : tokens;
}

PolicyKey TokensKey(int rows) {
  return {"tokens", std::to_string(rows),
          "budget: rows read per KV head, all that are always read counted; 1 to " +
              std::to_string(kMostTokens),
          true};
}

PolicyKey BudgetKey(const std::string& share, const std::string& counted) {
  return {"budget", share,
          "budget: share of the K + V bytes of dense attention, such as 5%; " + counted, true};
}

PolicyKey AnchorKey(int rows, int most) {
  return {"anchor", std::to_string(rows),
          "rows: the first visible ones are always read; 0 to " + std::to_string(most)};
}

PolicyKey WindowKey(int rows) {
  return {"window", std::to_string(rows),
          "rows: the last visible ones are always read; 1 to " + std::to_string(kMostWindow)};
}

std::string GivenOf(KeyReader& reader, std::initializer_list<std::string> names) {
  for (const bool at_layer : {true, false}) {
    std::string given;
    for (const std::string& name : names) {
      if (!(at_layer ? reader.GivenAtLayer(name) : reader.Given(name))) continue;
      if (!given.empty()) {
        reader.Fail(given + " and " + name + " exclude each other" + reader.Where() +
                    ": give one of them");
      }
      given = name;
    }
    if (!given.empty()) return given;
  }
  return "";
}

double ReadByteShare(KeyReader& reader) { return reader.Percent("budget", 0.01, 100) / 100; }

void CheckTokens(KeyReader& reader, int64_t tokens, int64_t least, const std::string& rows) {
  if (tokens >= least) return;
  reader.Fail("tokens=" + std::to_string(tokens) + " is less than " + rows + ", " +
              std::to_string(least) + " rows that are always read" + reader.Where());
}

RowOptions ReadRowOptions(KeyReader& reader, int most_anchor) {
  RowOptions options;
  options.anchor = static_cast<int>(reader.Int("anchor", 0, most_anchor));
  options.window = static_cast<int>(reader.Int("window", 1, kMostWindow));
  options.dense_layers = reader.Layers("dense_layers");
  return options;
}

RowOptions ReadRowBudget(KeyReader& reader, int beside, int most_anchor) {
  RowOptions options = ReadRowOptions(reader, most_anchor);
  if (GivenOf(reader, {"tokens", "budget"}) == "budget") {
    options.byte_share = ReadByteShare(reader);
    return options;
  }
  options.tokens = static_cast<int>(reader.Int("tokens", 1, kMostTokens));
  CheckTokens(reader, options.tokens, int64_t{options.anchor} + options.window + beside,
              "anchor + window" + (beside > 0 ? " + " + std::to_string(beside) : ""));
  return options;
}

}  // namespace condense
