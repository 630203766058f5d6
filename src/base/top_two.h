// The two likeliest tokens of one decision, as far as decoders and metrics ask: the greedy one and
// how far it leads.
#pragma once

#include <span>

namespace condense {

// The greedy token (the lowest id among equals) and its margin gamma: top-1 minus top-2 logit, >=
// 0.
struct TopTwo {
  int token = 0;
  double margin = 0;
};

// `logits` [n_vocab], n_vocab >= 2, finite.
TopTwo FindTopTwo(std::span<const float> logits);

}  // namespace condense
