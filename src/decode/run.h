// The runs that measurements are made of, from the end of a prefill: autonomous greedy,
// teacher-forced, and timed blocks of steps. Policies and observers are set by the caller; nothing
// here looks at them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "decode/session.h"

namespace condense {

// Called after each decision (one-based) with the logits that make it.
using OnDecision = std::function<void(int decision, Logits logits)>;

// One step, as Session::Step or a Stepper's.
using StepFunction = std::function<Result<Logits>(Token token)>;

// Feeds `first_token`, then each greedy token in turn: `n_decisions` decisions, end-of-generation
// tokens included like any other. Gives the tokens decided.
Result<std::vector<Token>> GreedyRun(const StepFunction& step, Token first_token, int n_decisions,
                                     const OnDecision& on_decision);
Result<std::vector<Token>> GreedyRun(Session& session, Token first_token, int n_decisions,
                                     const OnDecision& on_decision);

// What such a run was fed at its decisions, one at least: the first token, then what it decided.
std::vector<Token> FedTokens(Token first_token, const std::vector<Token>& decided);

// Feeds `history` token by token: decision i is made after history[i - 1].
Status TeacherForcedRun(const StepFunction& step, std::span<const Token> history,
                        const OnDecision& on_decision);
Status TeacherForcedRun(Session& session, std::span<const Token> history,
                        const OnDecision& on_decision);

// Feeds `n_warm_up` then `n_timed` tokens, taken from `tokens` round and round, and gives the wall
// time of the timed ones in seconds.
Result<double> TimedSteps(Session& session, std::span<const Token> tokens, int n_warm_up,
                          int n_timed);

}  // namespace condense
