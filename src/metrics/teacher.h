// A teacher-forced run in figures: match, perplexity ratio, KL, same-top, margins, omitted mass.
// Every decision is fed the teacher's history, so decisions are comparable one by one. The teachers
// are the dense-greedy continuation (arXiv 2602.06317 v3) and the text's own next tokens; see
// docs/METRICS.md for the formulas. Pure functions; the layer bound E_l is here as well.
#pragma once

#include <span>
#include <vector>

#include "metrics/divergence.h"
#include "metrics/stats.h"

namespace condense {

// One sparse decision on the teacher's history.
struct TeacherStep {
  int decision = 0;  // one-based
  int token_target = 0, token_dense = 0, token_sparse = 0;
  double nll_dense = 0, nll_sparse = 0;        // of token_target, nats
  double kl = 0;                               // KL(dense || sparse), nats
  double margin_dense = 0, margin_sparse = 0;  // logits
  double delta = 0;                            // largest logit change
  double omitted_mass = 0;                     // mean over layers and query heads, [0, 1]
  double omitted_mass_max = 0;
};

// The decision's step from its dense and its sparse logits [n_vocab]; nothing of the omitted mass.
TeacherStep CompareStep(int decision, int target, std::span<const float> dense,
                        std::span<const float> sparse);

struct TeacherFigures {
  int n_decisions = 0;
  double match =
      0;  // share of decisions whose greedy token equals the dense one on the same history
  Interval match_interval;
  double ppl_dense = 0, ppl_sparse = 0, ppl_ratio = 0;  // ratio 1: no loss; delta PPL = ratio - 1
  Interval ppl_interval;  // of the ratio, 95 %, from the standard error of paired differences
  double kl_mean = 0, kl_median = 0, kl_p99 = 0, kl_max = 0, kl_stderr = 0;
  double delta_p_mean = 0, delta_p_rms = 0;  // change of the target's probability, sparse - dense
  double omitted_mass_mean = 0, omitted_mass_max = 0;
  double largest_margin_at_difference = 0;  // over decisions whose tokens differ; 0 where none does
  MarginCases margins;
  std::vector<SpanSurvival> survival;
};

TeacherFigures SummariseTeacher(std::span<const TeacherStep> steps);

// One query head of one layer at one decision, as the layer bound needs it.
struct HeadOmission {
  double omitted_mass = 0;    // epsilon
  double value_norm_max = 0;  // largest |v| among all visible rows of the head's KV head
};

// E_l = sqrt(sum over heads of (2 epsilon V_max)^2): bounds |o_full - o_sparse| of the layer's
// heads taken together.
double LayerBound(std::span<const HeadOmission> heads);

}  // namespace condense
