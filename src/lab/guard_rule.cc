#include "lab/guard_rule.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/result.h"
#include "metrics/stats.h"

namespace condense {
namespace {

// Of what may differ on the part held out: the trial holds for sure but for chance at 1.
constexpr double kShares[] = {0.25, 0.5, 0.8};
// Thresholds are rounded up to a thousandth of a logit.
constexpr double kStepsALogit = 1000;

// The least threshold at which at most `n_pass` of the decisions that differ pass.
double LeastThreshold(const GuardSample& sample, int64_t n_pass) {
  std::vector<double> differing;
  for (const GuardDecision& decision : sample.decisions) {
    if (!decision.equal) differing.push_back(decision.margin);
  }
  if (static_cast<int64_t>(differing.size()) <= n_pass) return 0;
  std::sort(differing.begin(), differing.end(), std::greater<>());
  return (std::floor(differing[n_pass] * kStepsALogit) + 1) / kStepsALogit;
}

double Score(const GuardDecision& decision, GuardFeature feature) {
  constexpr double kLeastMass = 1e-6;
  switch (feature) {
    case GuardFeature::kMargin:
      return decision.margin;
    case GuardFeature::kMassMean:
      return -decision.mass_mean;
    case GuardFeature::kMassMax:
      return -decision.mass_max;
    case GuardFeature::kMarginOverMass:
      return decision.margin / std::max(decision.mass_mean, kLeastMass);
  }
  return 0;
}

}  // namespace

int64_t MostThatMayDiffer(double risk, int64_t n, double confidence) {
  int64_t n_differ = -1;
  while (n_differ + 1 < n && BinomialUpperBound(n_differ + 1, n, confidence) <= risk) ++n_differ;
  return n_differ;
}

int64_t LeastDecisions(double risk, double confidence) {
  return static_cast<int64_t>(std::ceil(std::log(1 - confidence) / std::log1p(-risk)));
}

std::vector<double> ChooseCandidates(std::span<const GuardSample> samples, double risk,
                                     int64_t n_held_out, double confidence) {
  const int64_t most = MostThatMayDiffer(risk, n_held_out, confidence);
  CONDENSE_CHECK(most >= 0);
  std::vector<double> thresholds;
  for (double share : kShares) {
    double threshold = 0;
    for (const GuardSample& sample : samples) {
      const double n = static_cast<double>(sample.decisions.size());
      const double rate = share * static_cast<double>(most) / static_cast<double>(n_held_out);
      threshold = std::max(threshold, LeastThreshold(sample, static_cast<int64_t>(rate * n)));
    }
    if (thresholds.empty() || threshold < thresholds.back()) thresholds.push_back(threshold);
  }
  return thresholds;
}

std::optional<size_t> Certified(std::span<const std::vector<GuardTally>> tallies, double risk) {
  std::optional<size_t> last;
  for (size_t i = 0; i < tallies.size(); ++i) {
    const bool holds = std::all_of(tallies[i].begin(), tallies[i].end(),
                                   [&](const GuardTally& t) { return t.n > 0 && t.bound <= risk; });
    if (!holds) break;
    last = i;
  }
  return last;
}

const char* FeatureName(GuardFeature feature) {
  switch (feature) {
    case GuardFeature::kMargin:
      return "margin";
    case GuardFeature::kMassMean:
      return "omitted mass, mean";
    case GuardFeature::kMassMax:
      return "omitted mass, largest";
    case GuardFeature::kMarginOverMass:
      return "margin / mean mass";
  }
  return "";
}

double RiskAtFallbackRate(std::span<const GuardSample> samples, GuardFeature feature,
                          double fallback_rate) {
  std::vector<const GuardDecision*> decisions;
  for (const GuardSample& sample : samples) {
    for (const GuardDecision& decision : sample.decisions) decisions.push_back(&decision);
  }
  if (decisions.empty()) return 0;
  std::stable_sort(decisions.begin(), decisions.end(), [&](const auto* a, const auto* b) {
    return Score(*a, feature) < Score(*b, feature);
  });
  const auto n = static_cast<double>(decisions.size());
  const auto n_fallbacks = static_cast<int64_t>(std::llround(fallback_rate * n));
  const auto n_differ = std::count_if(decisions.begin() + n_fallbacks, decisions.end(),
                                      [](const GuardDecision* d) { return !d->equal; });
  return static_cast<double>(n_differ) / n;
}

}  // namespace condense
