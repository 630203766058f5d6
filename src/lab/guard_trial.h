// A calibration of guarded decoding for several risks at once, as an experiment wants it: searched
// and tried by lab/calibrate.h, decided by lab/guard_rule.h; and its lines in records.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "lab/calibrate.h"
#include "lab/guard_rule.h"
#include "lab/held_out.h"
#include "lab/records.h"

namespace condense {

// What the guard did on the part held out at one risk's candidates.
struct RiskTrial {
  double risk = 0;
  std::vector<double> thresholds;                // descending
  std::vector<std::vector<GuardTally>> tallies;  // by candidate: every teacher's, with bounds
};

// Of `spec` all but the risk is looked at. What a threshold gives depends on no other, so the
// risks' candidates are tried together. `on_steps`: of prefix `prefix`, `n_done` of `n_total`.
// Errors: as SearchPrefix and TryPrefix.
using TrialProgress =
    std::function<void(size_t prefix, const std::string& what, int n_done, int n_total)>;
Result<std::vector<RiskTrial>> TryRisks(Session& session, const Plugin& plugin,
                                        const CalibrateSpec& spec,
                                        std::span<const GuardPrefix> prefixes,
                                        std::span<const double> risks,
                                        const TrialProgress& on_steps);

// What a guard is to decode with. Where nothing was certified, it is the largest threshold that the
// search found.
struct GuardThreshold {
  double logits = 0;
  double bound = 0;  // on the risk, on the part held out; the largest of the teachers'
  bool certified = false;
};

// `guard_trial` lines, one a candidate and teacher; and the chosen of such lines.
std::vector<Json> TrialLines(const RiskTrial& trial, const CalibrateSpec& spec);
GuardThreshold ReadThreshold(std::span<const Json> lines);

}  // namespace condense
