// Ways of decoding timed in turns: a machine whose speed drifts moves both sides of a pair.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "base/result.h"
#include "decode/plugin.h"
#include "decode/session.h"
#include "lab/records.h"

namespace condense {

// Runs one block and gives its seconds a step.
using TimedBlock = std::function<Result<double>()>;

// `n_pairs` blocks of each; which goes first alternates.
Result<SpeedRecord> TimePairs(int n_pairs, const TimedBlock& dense, const TimedBlock& other);

// Seconds a step of `n_steps` under `policy`, from the end of the prefill. One step before them,
// which takes the change of policy upon itself, is not timed.
Result<double> TimePolicyBlock(Session& session, const Plugin& plugin, const std::string& policy,
                               std::span<const Token> tokens, int n_steps);

}  // namespace condense
