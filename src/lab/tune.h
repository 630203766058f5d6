// The search of `condense tune`: the least budget at which a policy meets a target of quality on a
// text, found on one part of it and certified on another. Measures nothing itself: every figure is
// of lab/compare.h. The rule (docs/METRICS.md): on each search prefix a policy's rungs are halved
// until the least that meets the target there is known, and its budget is the largest of these;
// that rung and the next are its candidates. All candidates are fixed before the held-out
// prefixes are looked at, once each, and share the allowed error among them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "lab/cells.h"
#include "lab/compare.h"
#include "lab/kept.h"

namespace condense {

// Shares of dense's bytes that are tried.
inline constexpr double kTuneLadder[] = {0.02, 0.03, 0.05, 0.08, 0.12, 0.20, 0.35, 0.50};

struct TuneTarget {
  enum class Kind { kMatch, kKl, kPpl } kind = Kind::kMatch;
  // kMatch: share of decisions, at least. kKl: mean KL in nats, at most. kPpl: increase of the
  // perplexity as a share, at most.
  double value = 0.99;
};

// "tf=99%", "kl=0.01" or "ppl=2%".
Result<TuneTarget> ParseTarget(std::string_view text);
std::string PrintTarget(const TuneTarget& target);
// A figure of the target's kind, as people read it: "98.7 %", "0.0123", "+1.4 %".
std::string PrintFigure(const TuneTarget& target, double figure);

// Figures of one policy over decisions, of one prefix or several together.
struct TuneSample {
  int64_t n = 0, n_match = 0;
  double kl = 0, kl_squares = 0;    // mean; sum of squared distances from it
  double nll = 0, nll_squares = 0;  // the same of NLL sparse minus dense
  double read_share = 0;            // mean over prefixes, weighted by n
};
// Of the teacher `text`; the record's intervals carry the spread.
TuneSample SampleOf(const PolicyRecord& record);
TuneSample Together(std::span<const TuneSample> samples);

// The target's figure, and the one-sided bound on it that holds with `confidence`, as if `n`
// decisions had been seen: Wilson's for a share, normal for the others. Lower for kMatch, else
// upper.
double FigureOf(const TuneTarget& target, const TuneSample& sample);
double BoundOf(const TuneTarget& target, const TuneSample& sample, double confidence, int64_t n);
bool Meets(const TuneTarget& target, double bound);

// One policy's rungs, searched on one prefix: the least that meets, supposing that more does no
// harm.
class RungSearch {
 public:
  // Rungs 0 … n - 1; those below `first` are known to fail, and `first` is tried first where it is
  // above 0.
  RungSearch(int n, int first) : failed_(first - 1), met_(n), first_(first > 0 ? first : -1) {}
  // The rung to try, -1: it is known.
  int Next() const {
    if (met_ - failed_ <= 1) return -1;
    return first_ > failed_ ? first_ : (failed_ + met_) / 2;
  }
  void Tell(int rung, bool meets) { (meets ? met_ : failed_) = rung; }
  // n: none meets.
  int Result() const { return met_; }

 private:
  int failed_, met_, first_;
};

struct TunePrefix {
  std::vector<Token> prompt, continuation;
  bool held_out = false;
};

struct TuneSpec {
  std::vector<TunePrefix> prefixes;
  // By policy, a cell a rung of the ladder.
  std::vector<std::vector<CompareCell>> policies;
  int n_generate = 128;
  TuneTarget target;
  double confidence = 0.95;  // one-sided
};

// One policy at one rung on one search prefix.
struct TuneTrial {
  std::string policy;
  int prefix = 0;
  TuneSample sample;
  double bound = 0;
  bool meets = false;
  std::string reason;  // why it is no measurement of this budget; "" where it is one
};

struct TuneCandidate {
  std::string policy;
  double budget = 0;
  TuneSample sample;
  double bound = 0;
  bool meets = false;
  std::string reason;
};

struct TuneOutcome {
  std::vector<TuneCandidate> candidates;  // by budget, then the order of the policies
  double each_confidence = 0;             // of one candidate's bound
  TuneSample control;                     // of the held-out prefixes: the noise floor
  // The certified one that reads least; empty: none meets the target.
  std::optional<size_t> best;
};

struct TuneEvents {
  // What an earlier run left of this prefix; what follows is of it.
  std::function<Result<KeptRecords>(int prefix)> open;
  CompareEvents compare;
  std::function<void(const TuneTrial&)> on_trial;
};

Result<TuneOutcome> Tune(Session& session, const Plugin& plugin, const TuneSpec& spec,
                         const TuneEvents& events);

}  // namespace condense
