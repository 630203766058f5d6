#include "lab/guard_trial.h"

#include <algorithm>
#include <functional>
#include <optional>

namespace condense {
Result<std::vector<RiskTrial>> TryRisks(Session& session, const Plugin& plugin,
                                        const CalibrateSpec& spec,
                                        std::span<const GuardPrefix> prefixes,
                                        std::span<const double> risks,
                                        const TrialProgress& on_steps) {
  size_t at = 0;
  CalibrateEvents events;
  events.on_prefill = [&](int n_done, int n_total) {
    on_steps(at, "dense prefill", n_done, n_total);
  };
  events.on_steps = [&](const std::string& what, int n_done, int n_total) {
    on_steps(at, what, n_done, n_total);
  };
  std::vector<SearchedPrefix> searched;
  for (at = 0; at < prefixes.size(); ++at) {
    if (IsHeldOut(at)) continue;
    const Result<SearchedPrefix> prefix = SearchPrefix(session, plugin, spec, prefixes[at], events);
    if (!prefix.ok()) return Error{prefix.error()};
    searched.push_back(prefix.value());
  }
  const std::vector<GuardSample> samples = SamplesTogether(searched);
  const int64_t n_held_out = HeldOutDecisions(prefixes.size(), spec.n_generate);
  std::vector<RiskTrial> trials;
  std::vector<double> thresholds;
  for (double risk : risks) {
    trials.push_back({risk, ChooseCandidates(samples, risk, n_held_out, spec.confidence), {}});
    thresholds.insert(thresholds.end(), trials.back().thresholds.begin(),
                      trials.back().thresholds.end());
  }
  std::sort(thresholds.begin(), thresholds.end(), std::greater<>());
  thresholds.erase(std::unique(thresholds.begin(), thresholds.end()), thresholds.end());
  std::vector<TriedPrefix> tried;
  for (at = 0; at < prefixes.size(); ++at) {
    if (!IsHeldOut(at)) continue;
    const Result<TriedPrefix> prefix =
        TryPrefix(session, plugin, spec, prefixes[at], thresholds, events);
    if (!prefix.ok()) return Error{prefix.error()};
    tried.push_back(prefix.value());
  }
  const std::vector<std::vector<GuardTally>> tallies = TalliesTogether(tried, spec.confidence);
  for (RiskTrial& trial : trials) {
    for (double threshold : trial.thresholds) {
      const auto found = std::find(thresholds.begin(), thresholds.end(), threshold);
      trial.tallies.push_back(tallies[found - thresholds.begin()]);
    }
  }
  return trials;
}

std::vector<Json> TrialLines(const RiskTrial& trial, const CalibrateSpec& spec) {
  const std::optional<size_t> certified = Certified(trial.tallies, trial.risk);
  std::vector<Json> lines;
  for (size_t i = 0; i < trial.thresholds.size(); ++i) {
    for (const GuardTally& tally : trial.tallies[i]) {
      lines.push_back({{"record", "guard_trial"},
                       {"policy", spec.policy},
                       {"risk", trial.risk},
                       {"confidence", spec.confidence},
                       {"threshold", trial.thresholds[i]},
                       {"teacher", tally.teacher},
                       {"n_decisions", tally.n},
                       {"n_differ", tally.n_differ},
                       {"n_fallbacks", tally.n_fallbacks},
                       {"bound", tally.bound},
                       {"certified", certified.has_value()},
                       {"chosen", i == certified.value_or(0)}});
    }
  }
  return lines;
}

GuardThreshold ReadThreshold(std::span<const Json> lines) {
  GuardThreshold threshold;
  for (const Json& line : lines) {
    if (line.value("record", "") != "guard_trial" || !line.value("chosen", false)) continue;
    threshold.logits = line.value("threshold", 0.0);
    threshold.certified = line.value("certified", false);
    threshold.bound = std::max(threshold.bound, line.value("bound", 1.0));
  }
  return threshold;
}

}  // namespace condense
