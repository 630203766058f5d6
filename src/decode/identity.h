// Whether this host computes several rows of this model to the same bits as one row after the
// other. Condense's attention does by construction; the host's matrix products do or do not, by
// quantisation and by how many rows there are. Exact decoding rests on it, so it is probed, on the
// cache at hand.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "decode/session.h"

namespace condense {

struct IdentityProbe {
  // Every number of rows up to this one gives single steps' bits; 1: none of several does.
  int equal_rows = 1;
  int probed_rows = 1;
  float largest_difference = 0;  // of a logit, over the numbers of rows that differ
  // Wall time of one call by its number of rows, [probed_rows]; index 0: one row.
  std::vector<double> seconds;
};

// n tokens to probe with: the prompt's last, backwards, from its end again where it is short.
std::vector<Token> ProbeTokens(std::span<const Token> prompt, int n);

// Decodes `tokens` behind what is in the cache, one by one and then in calls of 2, 3, ...,
// tokens.size() rows, compares the logits and removes the rows; ends where rows differ, unless they
// do from the first. The policy in force must be dense, and the context have room. Fails where a
// step does; the cache is as it was then too. `progress`: tokens decoded; may be empty.
Result<IdentityProbe> ProbeIdentity(
    Session& session, std::span<const Token> tokens,
    const std::function<void(int n_done, int n_total)>& progress = {});

}  // namespace condense
