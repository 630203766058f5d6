#include "select/scorers.h"

#include "select/block_mass.h"

namespace condense {
namespace {

// SplitMix64's finaliser.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

void MeanScorer::Score(const ScoreQuery& query, std::span<float> per_block) const {
  MeanLogits(query, per_block);
}

void RandomScorer::Score(const ScoreQuery& query, std::span<float> per_block) const {
  const auto head = static_cast<uint64_t>(
      query.query_head >= 0 ? (int64_t{1} << 32) + query.query_head : query.kv_head);
  uint64_t state = Mix(seed_);
  state = Mix(state ^ static_cast<uint64_t>(query.layer->layer));
  state = Mix(state ^ head);
  state = Mix(state ^ static_cast<uint64_t>(query.layer->n_visible));
  for (size_t b = 0; b < per_block.size(); ++b) {
    per_block[b] = static_cast<float>(Mix(state ^ b) >> 40) * 0x1p-24f;
  }
}

}  // namespace condense
