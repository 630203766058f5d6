// What two logit vectors of one decision say about each other: the dense one and the sparse one.
// KL and negative log-likelihood as llama.cpp's perplexity tool defines them (natural logarithm),
// computed in double from the host's FP32 logits. Pure functions; knows no model and no sampler.
#pragma once

#include <span>
#include <vector>

#include "base/top_two.h"

namespace condense {

// log of the sum of exp(logit).
double LogSumExp(std::span<const float> logits);

// softmax(logits), in double; 0 where a logit is -inf. At least one is not.
std::vector<double> SoftmaxWeights(std::span<const float> logits);

// -log softmax(logits)[token], in nats.
double NegativeLogLikelihood(std::span<const float> logits, int token);

struct LogitComparison {
  TopTwo dense, sparse;
  double nll_dense = 0, nll_sparse = 0;  // of the target token, nats
  double kl = 0;                         // KL(dense || sparse), nats, at least 0
  double delta = 0;                      // largest |sparse - dense| logit over the vocabulary
};

// Both [n_vocab]; `target` is the teacher's token of this decision.
LogitComparison CompareLogits(std::span<const float> dense, std::span<const float> sparse,
                              int target);

}  // namespace condense
