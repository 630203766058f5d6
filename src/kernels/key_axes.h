// The axes in which a rotated codebook codes keys (TokenCodebook::to_code): principal axes of the
// keys' residuals r, in the metric of what errors cost the queries. With M the queries' second
// moment, an error e of a key costs eᵀ M e of squared logits on average. M = C Cᵀ; U: eigenvectors
// of Cᵀ Cov(r) C; y = Uᵀ Cᵀ r and q' = Uᵀ C⁻¹ q give q'·y = q·r, with y uncorrelated and every
// channel's errors of equal cost. (M^(1/2) instead of C gives the same y but for signs, and takes
// a second decomposition.) Plain double in one order: the same bits on every machine.
#pragma once

#include <vector>

namespace condense {

struct KeyAxes {
  std::vector<double> variance;  // [dim] of y, descending, not below 0; empty: there are no axes
  std::vector<float> to_code;    // [dim, dim]: row a gives y_a of a residual
  std::vector<float> to_query;   // [dim, dim]: row a gives q'_a of a query

  bool empty() const { return variance.empty(); }
};

// covariance: [dim, dim], symmetric. Second moment of the queries, in any one positive unit:
// products [dim, dim], of which (i, j) counts where j >= i; else, where that is null, moment [dim],
// its diagonal. Both null, not finite or without a trace: the unit matrix. Empty where the
// covariance is not finite.
KeyAxes FindKeyAxes(const std::vector<double>& covariance, int dim, const float* products,
                    const float* moment);

}  // namespace condense
