// How much each KV head needs what lies far back, 0 … 1, as DuoAttention's authors publish it
// (full_attention_heads.tsv): a line a layer, its KV heads' numbers separated by tabs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace condense {

struct HeadProfile {
  int n_layers = 0, n_kv_heads = 0;
  std::vector<double> needs;  // [n_layers, n_kv_heads]
};

// Blanks separate numbers as well as tabs; what follows '#' is no number. Errors say line and
// place.
Result<HeadProfile> ParseHeadProfile(std::string_view text);
// Errors name the file.
Result<HeadProfile> ReadHeadProfile(const std::string& path);

// Which heads are read whole, [n_layers, n_kv_heads]: those that need `threshold` or more.
std::vector<bool> HeadsFrom(const HeadProfile& profile, double threshold);
// All but the part `sparsity` (0 … 1, rounded to whole heads) of all heads that needs the least; of
// equal ones the earlier layer's, then the lower head, counts as less.
std::vector<bool> HeadsButLeast(const HeadProfile& profile, double sparsity);

}  // namespace condense
