#include "lab/budget_check.h"

#include <fmt/format.h>

#include <cmath>

#include "base/text.h"
#include "lab/runs.h"

namespace condense {
namespace {

// Budgets are tried in tenths of a percent.
constexpr int kMost = 1000;
// Where a policy that reads summaries at all does so, on any text that is long enough for it.
constexpr int kGenerous = 500;

enum class Outcome { kMet, kBelowRows, kWithoutChoice };

class Prober {
 public:
  Prober(Session& session, const Plugin& plugin, Token token, const std::string& name)
      : session_(session), plugin_(plugin), token_(token), name_(name) {}

  Result<CounterSnapshot> Step(double share) const {
    const Status begun =
        BeginRun(session_, plugin_, fmt::format("{}:budget={}", name_, PrintPercent(share)));
    if (!begun.ok()) return Error{begun.error()};
    const Result<Logits> logits = session_.Step(token_);
    if (!logits.ok()) return Error{logits.error()};
    return plugin_.Counters();
  }

  // `chooses`: at a generous budget the policy reads something to choose by.
  Result<Outcome> Try(double share, bool chooses) const {
    const Result<CounterSnapshot> counters = Step(share);
    if (!counters.ok()) return Error{counters.error()};
    const StepCounts& total = counters->total;
    if (total.sparse_steps == 0 && counters->process.fallbacks[CONDENSE_FALLBACK_BUDGET] > 0)
      return Outcome::kBelowRows;
    if (chooses && total.sparse_steps > 0 && total.summary_bytes == 0)
      return Outcome::kWithoutChoice;
    return Outcome::kMet;
  }

 private:
  Session& session_;
  const Plugin& plugin_;
  const Token token_;
  const std::string name_;
};

// The least budget that is met, in tenths of a percent above `unmet`; nothing where none is.
Result<std::optional<int>> Least(const Prober& prober, int unmet, bool chooses) {
  int met = kMost + 1;
  while (met - unmet > 1) {
    const int tried = (met + unmet) / 2;
    const Result<Outcome> outcome = prober.Try(tried / 1000.0, chooses);
    if (!outcome.ok()) return Error{outcome.error()};
    (outcome.value() == Outcome::kMet ? met : unmet) = tried;
  }
  return met > kMost ? std::nullopt : std::optional(met);
}

}  // namespace

Result<BudgetCheck> CheckBudget(Session& session, const Plugin& plugin, Token token,
                                const CompareCell& cell) {
  CONDENSE_CHECK(cell.solves_budget && cell.budget);
  const Prober prober(session, plugin, token, cell.name);
  const double share = *cell.budget;
  Result<Outcome> outcome = prober.Try(share, /*chooses=*/true);
  if (!outcome.ok()) return Error{outcome.error()};
  if (outcome.value() == Outcome::kMet) return BudgetCheck();
  const Result<CounterSnapshot> generous = prober.Step(kGenerous / 1000.0);
  if (!generous.ok()) return Error{generous.error()};
  const bool chooses = generous->total.summary_bytes > 0;
  if (outcome.value() == Outcome::kWithoutChoice && !chooses) return BudgetCheck();

  const Result<std::optional<int>> least =
      Least(prober, static_cast<int>(std::floor(1000 * share)), chooses);
  if (!least.ok()) return Error{least.error()};
  BudgetCheck check;
  const char* what = outcome.value() == Outcome::kBelowRows
                         ? "does not cover the rows that are always read"
                         : "covers the rows that are always read and nothing to choose others by";
  check.unmet = fmt::format("{} of the dense bytes {}: ", PrintPercent(share), what);
  if (least.value()) {
    check.least = *least.value() / 1000.0;
    check.unmet += fmt::format("the least possible here is {:.1f} %", *least.value() / 10.0);
  } else {
    check.unmet += "no budget does on a text of this length";
  }
  return check;
}

}  // namespace condense
