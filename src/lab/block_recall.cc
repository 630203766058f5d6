#include "lab/block_recall.h"

#include <algorithm>

#include "base/result.h"
#include "metrics/logits.h"
#include "metrics/stats.h"

namespace condense {
namespace {

// The indices of the highest `n` scores; of equal ones the lower index.
std::vector<int> Highest(const std::vector<int>& candidates, const std::vector<double>& scores,
                         int n) {
  std::vector<int> order = candidates;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  order.resize(std::min<size_t>(order.size(), n));
  return order;
}

}  // namespace

LayerMass MassOfBlocks(int layer, std::span<const std::vector<float>> logits, int n_kv_heads,
                       int n_visible, const BlockFrame& frame) {
  const int n_heads = static_cast<int>(logits.size());
  CONDENSE_CHECK(n_kv_heads > 0 && n_heads % n_kv_heads == 0);
  const int group = n_heads / n_kv_heads;
  const int n_whole = n_visible / frame.block_rows;
  // A block that is partly visible is read row by row, always.
  const auto is_base = [&](int row) {
    return row < frame.anchor || row >= n_visible - frame.window ||
           row >= n_whole * frame.block_rows;
  };
  std::vector<int> candidates;
  for (int b = 0; b < n_whole; ++b) {
    for (int row = b * frame.block_rows; row < (b + 1) * frame.block_rows; ++row) {
      if (is_base(row)) continue;
      candidates.push_back(b);
      break;
    }
  }

  std::vector<double> base, oracle, policy, oracle_recall, policy_recall;
  for (int g = 0; g < n_kv_heads; ++g) {
    std::vector<std::vector<double>> added(group);  // by head of the group: mass that a block adds
    std::vector<double> heaviest(n_whole, 0.0), mean(n_whole, 0.0);
    std::vector<double> always(group, 0.0);
    for (int i = 0; i < group; ++i) {
      const std::vector<float>& own = logits[g * group + i];
      const std::vector<double> weights = SoftmaxWeights(std::span(own).first(n_visible));
      added[i].assign(n_whole, 0.0);
      for (int row = 0; row < n_visible; ++row) {
        const int b = row / frame.block_rows;
        if (b < n_whole) mean[b] += own[row];
        if (is_base(row)) {
          always[i] += weights[row];
        } else {
          added[i][b] += weights[row];
          heaviest[b] += weights[row];
        }
      }
    }
    const std::vector<int> best = Highest(candidates, heaviest, frame.n_blocks);
    const std::vector<int> chosen = Highest(candidates, mean, frame.n_blocks);
    for (int i = 0; i < group; ++i) {
      double of_best = 0, of_chosen = 0;
      for (int b : best) of_best += added[i][b];
      for (int b : chosen) of_chosen += added[i][b];
      base.push_back(always[i]);
      oracle.push_back(always[i] + of_best);
      policy.push_back(always[i] + of_chosen);
      double distant = 0;
      for (double mass : added[i]) distant += mass;
      if (distant <= 0) continue;
      oracle_recall.push_back(of_best / distant);
      policy_recall.push_back(of_chosen / distant);
    }
  }
  LayerMass mass;
  mass.layer = layer;
  mass.n_heads = n_heads;
  mass.base = Mean(base);
  mass.oracle = Mean(oracle);
  mass.policy = Mean(policy);
  mass.oracle_recall = Mean(oracle_recall);
  mass.policy_recall = Mean(policy_recall);
  return mass;
}

}  // namespace condense
