#include "lab/speed_pairs.h"

#include <vector>

#include "decode/run.h"
#include "lab/runs.h"

namespace condense {

Result<SpeedRecord> TimePairs(int n_pairs, const TimedBlock& dense, const TimedBlock& other) {
  std::vector<double> dense_rates, other_rates, ratios;
  for (int pair = 0; pair < n_pairs; ++pair) {
    double seconds[2] = {};
    for (int turn = 0; turn < 2; ++turn) {
      const int arm = (turn + pair) % 2;
      const Result<double> block = arm == 0 ? dense() : other();
      if (!block.ok()) return Error{block.error()};
      seconds[arm] = block.value();
    }
    dense_rates.push_back(1 / seconds[0]);
    other_rates.push_back(1 / seconds[1]);
    ratios.push_back(seconds[0] / seconds[1]);
  }
  SpeedRecord record;
  record.n_pairs = n_pairs;
  record.dense_tokens_per_second = Quantile(dense_rates, 0.5);
  record.sparse_tokens_per_second = Quantile(other_rates, 0.5);
  record.ratio = QuartilesOf(ratios);
  return record;
}

Result<double> TimePolicyBlock(Session& session, const Plugin& plugin, const std::string& policy,
                               std::span<const Token> tokens, int n_steps) {
  const Status begun = BeginRun(session, plugin, policy);
  if (!begun.ok()) return Error{begun.error()};
  const Result<double> seconds = TimedSteps(session, tokens, 1, n_steps);
  if (!seconds.ok()) return Error{seconds.error()};
  return seconds.value() / n_steps;
}

}  // namespace condense
