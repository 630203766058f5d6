// The keys that say how many rows a policy reads: a budget, and how many of the first and the last
// rows it reads always.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "select/key_reader.h"

namespace condense {

// How much a policy reads of each KV head, and what of it always.
struct RowOptions {
  int tokens = 0;                    // rows in all, unless byte_share is set
  std::optional<double> byte_share;  // (0, 1] of the bytes that dense attention reads
  int anchor = 1, window = 64;
  LayerRange dense_layers;

  // Rows of one KV head that the budget pays for; a row's K and V are read or neither.
  int RowsOf(int n_visible) const;
};

inline constexpr int kMostTokens = 32'000'000;
inline constexpr int kMostAnchorRows = 1024;  // unless a policy says otherwise

// The keys `tokens`, `anchor` and `window` of that many rows, and `budget` ("8%", or "" where
// another key decides unless it is given). `counted`: what the budget counts. `most`: what the
// anchor may be.
PolicyKey TokensKey(int rows);
PolicyKey BudgetKey(const std::string& share, const std::string& counted);
PolicyKey AnchorKey(int rows, int most = kMostAnchorRows);
PolicyKey WindowKey(int rows);

// Which of `names`, keys that exclude each other, is given for the reader's layer, or else for all
// of them; "" where none is. Two of them are an error.
std::string GivenOf(KeyReader& reader, std::initializer_list<std::string> names);
// The share that `budget` gives, of 1.
double ReadByteShare(KeyReader& reader);
// tokens below `least` rows that are always read are an error; `rows` says which these are.
void CheckTokens(KeyReader& reader, int64_t tokens, int64_t least,
                 const std::string& rows = "anchor + window");

// Reads `anchor` up to most_anchor, `window`, `dense_layers`.
RowOptions ReadRowOptions(KeyReader& reader, int most_anchor = kMostAnchorRows);
// The same, with `tokens` or `budget`, which exclude each other. `beside`: rows that are read
// always beside anchor and window, at most; `tokens` below all these is an error.
RowOptions ReadRowBudget(KeyReader& reader, int beside = 0, int most_anchor = kMostAnchorRows);

}  // namespace condense
