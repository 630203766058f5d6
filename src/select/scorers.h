// Block scorers that several policies share.
#pragma once

#include <cstdint>

#include "select/scorer.h"

namespace condense {

// scale q·µ, µ the block's mean key.
class MeanScorer final : public BlockScorer {
 public:
  ScoreKind kind() const override { return ScoreKind::kLinear; }
  SummarySet needs() const override { return kMeanKey; }
  bool by_block() const override { return true; }
  void Score(const ScoreQuery& query, std::span<float> per_block) const override;
};

// A hash of seed, layer, KV head (query head with share=per_head or head_union), the number of
// visible rows and the block: a step repeated draws the same.
class RandomScorer final : public BlockScorer {
 public:
  explicit RandomScorer(uint64_t seed) : seed_(seed) {}
  ScoreKind kind() const override { return ScoreKind::kLinear; }
  void Score(const ScoreQuery& query, std::span<float> per_block) const override;

 private:
  const uint64_t seed_;
};

}  // namespace condense
