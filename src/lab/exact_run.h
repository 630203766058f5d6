// One draft source of exact decoding (decode/exact.h) measured from the end of a prefill: what was
// drafted and confirmed, by place in the draft, whether the text is dense decoding's, and seconds
// beside dense decoding's, the two in turns. Decides nothing of the text; prints nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/exact.h"
#include "lab/dense_reference.h"
#include "lab/records.h"

namespace condense {

struct ExactDraft {
  std::string source;  // as ReadDraft reads it; "dense": no drafts, dense decoding itself
  int length = 0;      // tokens of a draft; 0: chosen by cost and acceptance

  // Rows that one call may verify, as `condense run --mode exact` has it.
  int Rows() const;
};

struct ExactFigures {
  int n_tokens = 0;                       // decoded, the first by the prefill
  int equal_rows = 0, probed_rows = 0;    // as IdentityProbe
  std::optional<int> first_difference{};  // from dense's text, from 1; nothing: identical
  ExactCounters counters;                 // of the first pair
  // By place in the draft: tokens that were drafted there, and of those the confirmed.
  std::vector<int64_t> drafted_at, accepted_at;
  double set_up_seconds = 0;  // of the first pair: summaries, what a draft costs
  bool was_sparse = true;     // false: a policy was to draft and never left rows out
  SpeedRecord speed;          // sparse: exact decoding
};

// `probe`: of the cache at hand, as many rows as the draft wants or all there are. `n_pairs`: of a
// run of dense and one of exact decoding, each of all tokens of `reference`; the order alternates.
// `on_share`: what is done, 0 to 1. Errors: decoding fails; dense decoding is not repeatable.
Result<ExactFigures> MeasureExact(Session& session, const Plugin& plugin,
                                  std::span<const Token> prompt, const DenseReference& reference,
                                  const IdentityProbe& probe, const ExactDraft& draft, int n_pairs,
                                  const std::function<void(double share)>& on_share);

// An `exact` line.
Json ToJson(const ExactFigures& figures, const ExactDraft& draft);

}  // namespace condense
