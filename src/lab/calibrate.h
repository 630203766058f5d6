// Measures what `condense calibrate` decides on: along texts and along dense's own continuation of
// them, dense and sparse decisions from the same prefill. Of a part that is searched on, every
// sparse step's margin, agreement and omitted mass; of the part held out, the guard itself
// (decode/guard.h) at each candidate threshold, its tokens against dense's. Hands over what each
// prefix gave and leaves out what an earlier run measured; the rule is guard_rule.h's.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/plugin.h"
#include "decode/session.h"
#include "lab/guard_rule.h"
#include "lab/records.h"

namespace condense {

struct GuardPrefix {
  std::vector<Token> prompt, continuation;
};

struct CalibrateSpec {
  std::string policy;    // canonical, sparse
  int n_generate = 256;  // tokens after each prefix: 1 by the prefill, the rest decisions
  bool on_greedy = true, on_text = true;  // teachers, one at least
  bool rewrite = false;                   // as GuardOptions
  double risk = 0.01, confidence = 0.95;
};

// What was measured of one prefix.
struct SearchedPrefix {
  std::vector<GuardSample> samples;  // by teacher
};
struct TriedPrefix {
  // [candidate]: of every teacher; bounds are not set.
  std::vector<std::vector<GuardTally>> tallies;
  // [candidate]: seconds of a step, all teachers; and of a dense one.
  std::vector<double> seconds;
  double dense_seconds = 0;
};

Json ToJson(const SearchedPrefix& prefix);
Json ToJson(const TriedPrefix& prefix);
// Errors: another form.
Result<SearchedPrefix> SearchedFromJson(const Json& json);
Result<TriedPrefix> TriedFromJson(const Json& json);

struct CalibrateEvents {
  Session::Progress on_prefill;
  std::function<void(const std::string& what, int n_done, int n_total)> on_steps;
};

// Both set the policy and leave another in force. Fail where decoding does, where a stop was
// requested, and where the policy was never sparse at this depth.
Result<SearchedPrefix> SearchPrefix(Session& session, const Plugin& plugin,
                                    const CalibrateSpec& spec, const GuardPrefix& prefix,
                                    const CalibrateEvents& events);
Result<TriedPrefix> TryPrefix(Session& session, const Plugin& plugin, const CalibrateSpec& spec,
                              const GuardPrefix& prefix, std::span<const double> thresholds,
                              const CalibrateEvents& events);

// Sums over prefixes, with bounds.
std::vector<std::vector<GuardTally>> TalliesTogether(std::span<const TriedPrefix> prefixes,
                                                     double confidence);
// Decisions over prefixes, by teacher.
std::vector<GuardSample> SamplesTogether(std::span<const SearchedPrefix> prefixes);

}  // namespace condense
