#include "decode/refresh.h"

#include <algorithm>

#include "base/clock.h"

namespace condense {
namespace {

// The first two values of R where it is to be chosen: costs of unlike calls tell call from row.
constexpr int kTrials[] = {4, 16};
constexpr double kDearer = 1.1;
constexpr int kFirstSteps = 2;  // sparse ones that set summaries up: no usual costs

}  // namespace

double StepCosts::PerToken(int every) const {
  return ((every - 1) * sparse + call + every * row) / every;
}

int ChooseRefresh(const StepCosts& costs) {
  double least = costs.PerToken(1);
  for (int every = 2; every <= kMaxRefresh; ++every) least = std::min(least, costs.PerToken(every));
  int chosen = 1;
  while (costs.PerToken(chosen) > kDearer * least) ++chosen;
  return chosen;
}

RefreshedStepper::RefreshedStepper(Session& session, const Plugin& plugin,
                                   const RefreshOptions& options)
    : automatic_(options.every == 0), tail_(session, plugin) {
  CONDENSE_CHECK(options.every >= 0 && options.every <= session.n_batch());
  counts_.every = automatic_ ? kTrials[0] : options.every;
}

Status RefreshedStepper::Reset() {
  tail_.Clear();
  return Status();
}

void RefreshedStepper::NoteCall(int n_rows, double seconds) {
  seconds_ += seconds;
  rows_rows_ += static_cast<double>(n_rows) * n_rows;
  rows_seconds_ += n_rows * seconds;
  const auto n = static_cast<double>(counts_.n_calls);
  const double rows = n + static_cast<double>(counts_.n_rewritten);
  const double spread = n * rows_rows_ - rows * rows;
  if (spread == 0) {
    counts_.every = kTrials[counts_.n_calls < 2 ? 0 : 1];
    return;
  }
  StepCosts costs;
  costs.row = std::max(0.0, (n * rows_seconds_ - rows * seconds_) / spread);
  costs.call = std::max(0.0, (seconds_ - costs.row * rows) / n);
  const int64_t n_timed = counts_.n_sparse - kFirstSteps;
  costs.sparse = sparse_seconds_ / static_cast<double>(std::max<int64_t>(1, n_timed));
  counts_.every = ChooseRefresh(costs);
}

Result<Logits> RefreshedStepper::Step(Token token) {
  const int n_rows = tail_.n_rows() + 1;
  const Clock::time_point start = Clock::now();
  if (!tail_.owed() && n_rows < counts_.every) {
    Result<Logits> logits = tail_.StepSparse(token);
    const uint64_t ns = NsSince(start);
    counts_.sparse_ns += ns;
    if (!logits.ok()) return logits;
    if (++counts_.n_sparse > kFirstSteps) sparse_seconds_ += Seconds(ns);
    return logits;
  }
  const Result<std::vector<Logits>> rows = tail_.StepDense({&token, 1});
  const uint64_t ns = NsSince(start);
  counts_.dense_ns += ns;
  if (!rows.ok()) return Error{rows.error()};
  ++counts_.n_calls;
  counts_.n_rewritten += n_rows - 1;
  if (automatic_) NoteCall(n_rows, Seconds(ns));
  return rows.value()[0];
}

}  // namespace condense
