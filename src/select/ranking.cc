#include "select/ranking.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace condense {
namespace {

// Keys ascend with the order: the score's bits made monotone above, the inverted position below.
uint64_t RankKey(float score, uint32_t position) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 + 0 = +0
  const uint32_t ordered = bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
  return (static_cast<uint64_t>(ordered) << 32) | (0xFFFFFFFFu - position);
}

}  // namespace

bool BestScores(std::span<const float> scores, int n, std::vector<uint64_t>& keys,
                std::vector<int>& best) {
  best.clear();
  keys.resize(scores.size());
  bool nan = false;
  for (size_t i = 0; i < scores.size(); ++i) {
    nan |= scores[i] != scores[i];
    keys[i] = RankKey(scores[i], static_cast<uint32_t>(i));
  }
  if (nan) return false;
  const size_t kept = std::min(static_cast<size_t>(std::max(n, 0)), keys.size());
  if (kept < keys.size()) {
    // A heap of the best few passes most keys with one predictable comparison; past an eighth,
    // partitioning wins.
    if (kept * 8 <= keys.size()) {
      std::partial_sort(keys.begin(), keys.begin() + kept, keys.end(), std::greater<>());
    } else {
      std::nth_element(keys.begin(), keys.begin() + kept, keys.end(), std::greater<>());
    }
  }
  best.resize(kept);
  for (size_t i = 0; i < kept; ++i) {
    best[i] = static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(keys[i]));
  }
  return true;
}

}  // namespace condense
