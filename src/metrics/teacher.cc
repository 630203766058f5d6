#include "metrics/teacher.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "metrics/logits.h"

namespace condense {

TeacherStep CompareStep(int decision, int target, std::span<const float> dense,
                        std::span<const float> sparse) {
  const LogitComparison c = CompareLogits(dense, sparse, target);
  return {.decision = decision,
          .token_target = target,
          .token_dense = c.dense.token,
          .token_sparse = c.sparse.token,
          .nll_dense = c.nll_dense,
          .nll_sparse = c.nll_sparse,
          .kl = c.kl,
          .margin_dense = c.dense.margin,
          .margin_sparse = c.sparse.margin,
          .delta = c.delta};
}

TeacherFigures SummariseTeacher(std::span<const TeacherStep> steps) {
  TeacherFigures figures;
  figures.n_decisions = static_cast<int>(steps.size());
  std::vector<double> kl, nll_dense, nll_sparse, nll_change, delta_p, delta_p_squared, mass;
  std::vector<int> dense, sparse;
  std::vector<MarginCase> margins;
  int n_equal = 0;
  for (const TeacherStep& step : steps) {
    const bool equal = step.token_dense == step.token_sparse;
    n_equal += equal;
    if (!equal) {
      figures.largest_margin_at_difference =
          std::max(figures.largest_margin_at_difference, step.margin_dense);
    }
    kl.push_back(step.kl);
    nll_dense.push_back(step.nll_dense);
    nll_sparse.push_back(step.nll_sparse);
    nll_change.push_back(step.nll_sparse - step.nll_dense);
    dense.push_back(step.token_dense);
    sparse.push_back(step.token_sparse);
    const double change = std::exp(-step.nll_sparse) - std::exp(-step.nll_dense);
    delta_p.push_back(change);
    delta_p_squared.push_back(change * change);
    mass.push_back(step.omitted_mass);
    figures.omitted_mass_max = std::max(figures.omitted_mass_max, step.omitted_mass_max);
    margins.push_back({step.margin_dense, step.delta, equal});
  }
  figures.match = steps.empty() ? Mean({}) : static_cast<double>(n_equal) / steps.size();
  figures.match_interval = WilsonInterval(n_equal, static_cast<int64_t>(steps.size()));
  figures.ppl_dense = std::exp(Mean(nll_dense));
  figures.ppl_sparse = std::exp(Mean(nll_sparse));
  figures.ppl_ratio = std::exp(Mean(nll_sparse) - Mean(nll_dense));
  const double error = kZ95 * StandardError(nll_change);
  figures.ppl_interval = {std::exp(Mean(nll_change) - error), std::exp(Mean(nll_change) + error)};
  figures.survival = SurvivalOfSpans(dense, sparse);
  figures.kl_mean = Mean(kl);
  figures.kl_median = Quantile(kl, 0.5);
  figures.kl_p99 = Quantile(kl, 0.99);
  figures.kl_max = Maximum(kl);
  figures.kl_stderr = StandardError(kl);
  figures.delta_p_mean = Mean(delta_p);
  figures.delta_p_rms = std::sqrt(Mean(delta_p_squared));
  figures.omitted_mass_mean = Mean(mass);
  figures.margins = CountMarginCases(margins);
  return figures;
}

double LayerBound(std::span<const HeadOmission> heads) {
  double squares = 0;
  for (const HeadOmission& head : heads) {
    const double bound = 2 * head.omitted_mass * head.value_norm_max;
    squares += bound * bound;
  }
  return std::sqrt(squares);
}

}  // namespace condense
