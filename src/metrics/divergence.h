// Where two runs of one prompt part: T_div, survival and T_sig, and whether the margins foretold
// it. Definitions: arXiv 2602.06317 v3 (T_div, survival, margins) and docs/METRICS.md (T_sig).
// Decisions are counted from one, the first *sparse* decision being 1: the token from the shared
// prefill is not among them. Pure functions of token lists and margins.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace condense {

// The largest margin, in logits, at which two dense kernels were seen to choose unlike tokens.
inline constexpr double kSignificantMargin = 0.25;

// One-based index of the first decision whose tokens differ; nullopt: survived. Both [n_decisions].
std::optional<int> FirstDifference(std::span<const int> dense, std::span<const int> sparse);

// As FirstDifference, counting only decisions whose dense margin is at least `threshold`.
// `dense_margins` [n_decisions], logits.
std::optional<int> FirstSignificantDifference(std::span<const int> dense,
                                              std::span<const int> sparse,
                                              std::span<const double> dense_margins,
                                              double threshold = kSignificantMargin);

// Of all spans of `length` successive decisions, the share without a difference: how likely a
// continuation begun anywhere on the dense history is to go on like dense for that long.
struct SpanSurvival {
  int length = 0, n_spans = 0;
  double share = 0;
};
// At lengths 1, 2, 4, … and the whole. Both [n_decisions]; empty where there are none.
std::vector<SpanSurvival> SurvivalOfSpans(std::span<const int> dense, std::span<const int> sparse);

// Decisions by "the margin condition delta < gamma / 2 held" and "the tokens are equal". The
// condition suffices for equality, so `held_different` counts mistakes of arithmetic and must stay
// 0.
struct MarginCases {
  int held_equal = 0, held_different = 0, open_equal = 0, open_different = 0;
};

struct MarginCase {
  double margin = 0;  // gamma: dense top-1 minus top-2 logit
  double delta = 0;   // largest logit change over the vocabulary
  bool equal = false;
};

MarginCases CountMarginCases(std::span<const MarginCase> decisions);

}  // namespace condense
