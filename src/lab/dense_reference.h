// What cells of a group are held against where they decode by ways of their own (exact, guard): one
// dense prefill, and dense attention's greedy continuation from it. Of a folder that is gone on
// with, the tokens must be those that it holds.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/run.h"
#include "decode/session.h"
#include "lab/experiment.h"
#include "lab/prefix_spec.h"

namespace condense {

struct DenseReference {
  std::vector<float> logits;  // after the prompt
  // [n_decisions, n_vocab], of the decisions, where they were to be kept.
  std::vector<float> decision_logits;
  std::vector<Token> tokens;    // the first by the prefill, then the decisions
  std::vector<double> margins;  // of the decisions: dense top-1 minus top-2, logits
  PromptRecord prompt;

  Token first() const { return tokens.front(); }
  std::span<const Token> decisions() const { return std::span(tokens).subspan(1); }
};

struct ReferenceSpec {
  std::span<const std::string> policies;  // the prefill keeps what they want of it
  int n_tokens = 2;                       // the first by the prefill
  bool to_end = false;                    // no further than the end of the answer
  bool keep_logits = false;               // n_vocab floats a decision
  std::string dense_cell;                 // the group's, by its id
};

// Prefills the prefix dense and decodes behind it. Errors: decoding fails, the plug-in saw no
// attention of this model, the folder's dense cell has other tokens.
Result<DenseReference> DecodeReference(GroupRun& run, Session& session, const LabPrefix& prefix,
                                       const ReferenceSpec& spec);

// Seconds of `n_decisions` greedy decisions after `first_token`, whatever `step` decodes with. The
// first, which takes what a change of policy and summaries cost upon itself, is not counted: two
// decisions at least.
Result<double> TimedGreedy(const StepFunction& step, Token first_token, int n_decisions);

}  // namespace condense
