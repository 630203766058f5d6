// Specs of policies at one support: what `bench select --policies all` compares.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace condense {

struct EqualRows {
  std::vector<std::string> specs;
  std::vector<std::string> left_out;  // "seer: why": only where `names` has "all"
};

// `names`: registered policies, or "all". A policy with the key `tokens` reads n_tokens rows; one
// with `window` alone as many less what it reads at the start; one with `budget` alone the bytes of
// n_tokens rows and of the 16-bit means of n_rows rows in blocks of 16, as `mean` would; any other
// is as it is by default. Dense is left out: it is measured in any case. Errors: an unknown name,
// or what is wrong with the spec of a policy that was named.
Result<EqualRows> PoliciesAtEqualRows(const std::vector<std::string>& names, int n_tokens,
                                      int n_rows);

}  // namespace condense
