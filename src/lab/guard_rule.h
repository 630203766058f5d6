// The rule behind `condense calibrate`: which thresholds of the sparse margin are tried, and which
// is certified. What is to be bounded is P(the guard passes and the token differs from dense's),
// over all decisions. Candidates come from decisions of one part of a text; each is then tried on
// another part, from the largest threshold down, until one fails: the last that held is certified,
// and the order, fixed beforehand, is what keeps the error at 1 - confidence without sharing it
// out (fixed-sequence testing, as in Angelopoulos et al., Learn then Test, arXiv 2110.01052).
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace condense {

// One decision on a history that dense and sparse share.
struct GuardDecision {
  double margin = 0;                   // sparse top-1 minus top-2, logits
  bool equal = false;                  // the sparse greedy token is dense's
  double mass_mean = 0, mass_max = 0;  // omitted mass over layers and query heads, where observed
};

// Decisions fed one teacher's tokens: "text" or "greedy" (docs/METRICS.md).
struct GuardSample {
  std::string teacher;
  std::vector<GuardDecision> decisions;
};

// What was seen of one threshold and one teacher.
struct GuardTally {
  std::string teacher;
  int64_t n = 0;
  int64_t n_differ = 0;     // passed, and the token is not dense's
  int64_t n_fallbacks = 0;  // did not pass
  double bound = 1;         // on the risk, one-sided
};

// The most decisions among `n` that may differ for the bound to stay at `risk`; -1: even none is
// too many.
int64_t MostThatMayDiffer(double risk, int64_t n, double confidence);
// The least n at which no difference at all certifies `risk`.
int64_t LeastDecisions(double risk, double confidence);

// Thresholds to be tried on `n_held_out` decisions a teacher, descending: the least at which every
// teacher's share of passing differences is so far below what may differ that the trial is likely,
// very likely, all but sure to hold.
std::vector<double> ChooseCandidates(std::span<const GuardSample> samples, double risk,
                                     int64_t n_held_out, double confidence);

// tallies[candidate]: every teacher's. The last candidate of the unbroken row from the front whose
// bounds all are at most `risk`.
std::optional<size_t> Certified(std::span<const std::vector<GuardTally>> tallies, double risk);

// What decides whether a step passes: the margin, which a sparse step has for nothing, or omitted
// mass, which takes attention to all rows to know.
enum class GuardFeature { kMargin, kMassMean, kMassMax, kMarginOverMass };
inline constexpr GuardFeature kGuardFeatures[] = {GuardFeature::kMargin, GuardFeature::kMassMean,
                                                  GuardFeature::kMassMax,
                                                  GuardFeature::kMarginOverMass};
const char* FeatureName(GuardFeature feature);
// The share of all decisions that differ though they pass, where the `fallback_rate` of them that
// score worst by the feature does not; chosen with hindsight.
double RiskAtFallbackRate(std::span<const GuardSample> samples, GuardFeature feature,
                          double fallback_rate);

}  // namespace condense
