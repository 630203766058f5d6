// The attention weights of the rows that a policy leaves out, held against the rounding of number
// formats: the first version of arXiv 2602.06317 gives "below half a unit in the last place" as the
// reason why leaving them out changes no bit. Counted from the logits of all visible rows. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/row_mask.h"

namespace condense {

// Half a unit in the last place of 1: a weight no larger leaves a softmax sum of 1 as it is.
struct RoundingOf {
  const char* format;
  double half_ulp;
};
inline constexpr std::array<RoundingOf, 3> kRoundings = {
    {{"f32", 0x1p-24}, {"f16", 0x1p-11}, {"bf16", 0x1p-8}}};

class ExcludedWeights {
 public:
  // One query head of one decision: its rows' logits, -inf where not visible, and those read.
  void Take(std::span<const float> logits, std::span<const uint16_t> read);

  int64_t n_rows() const { return n_rows_; }    // left out, over heads and decisions
  int64_t n_heads() const { return n_heads_; }  // query heads times decisions
  // Shares of the rows whose own weight, and of the heads whose rows' weights together, are no
  // larger than half a unit of kRoundings[i]; NaN where nothing was left out.
  double ShareOfRows(size_t i) const;
  double ShareOfHeads(size_t i) const;
  double largest() const { return largest_; }  // weight of one row
  double MeanMass() const;                     // of a head's rows together

 private:
  int64_t n_rows_ = 0, n_heads_ = 0;
  std::array<int64_t, kRoundings.size()> rows_below_{}, heads_below_{};
  double largest_ = 0, mass_ = 0;
};

}  // namespace condense
