// Decoding in which some steps are dense, measured from the end of a prefill as a policy is: plain
// sparse steps, guarded ones (decode/guard.h), refreshed ones (decode/refresh.h). Autonomous greedy
// for where the text parts from dense's, teacher-forced for decisions one by one, timed in turns
// with dense. What a threshold is worth is asked as calibrations ask it (lab/calibrate.h): without
// look-ahead. Prints nothing.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/guard.h"
#include "decode/plugin.h"
#include "lab/dense_reference.h"
#include "lab/guard_rule.h"
#include "lab/records.h"

namespace condense {

struct DecodingWay {
  enum class Kind { kPlain, kGuard, kRefresh };
  Kind kind = Kind::kPlain;
  std::string label;     // names the row; a policy's spec where it is plain
  std::string spec;      // what the plug-in is told
  bool sparse = true;    // false: dense or the control
  double threshold = 0;  // of a guard, logits
  bool rewrite = false;  // of a guard
  int every = 0;         // of a refresh, R
};

// What is fed, and what dense attention makes of it.
struct WayTeacher {
  std::string name;                 // "greedy", "text"
  std::vector<Token> history;       // fed at decisions 1 …
  std::vector<Token> targets;       // wanted at decisions 1 …
  std::vector<float> dense_logits;  // [n_decisions, n_vocab]
  std::vector<Token> dense_tokens;
  std::vector<double> dense_margins;
};

// Dense's continuation, whose logits are moved out of `reference`, which must have kept them; and
// the text's own next tokens where `continuation` is not empty. Errors: decoding fails.
Result<std::vector<WayTeacher>> MakeTeachers(Session& session, const Plugin& plugin,
                                             DenseReference& reference,
                                             std::span<const Token> continuation);

struct WayFigures {
  std::vector<PolicyRecord> teachers;  // without the model's file
  std::vector<GuardTally> tallies;     // of a guard, by teacher; bounds are not set
  GuardCounts autonomous;              // of a guard as `run` decodes, with look-ahead
  bool was_sparse = true;              // false: no step left rows out, the budget is too small
};

struct WaySpec {
  DecodingWay way;
  int n_speed_pairs = 0;  // runs of dense and of the way, of all decisions
};

// `on_share`: what is done, 0 to 1. Errors: decoding fails, the counters are no measurement of the
// policy, or the way is dense and gives other tokens than the reference.
Result<WayFigures> MeasureWay(Session& session, const Plugin& plugin,
                              const DenseReference& reference, std::span<const WayTeacher> teachers,
                              const WaySpec& spec,
                              const std::function<void(double share)>& on_share);

}  // namespace condense
