#include "select/ranking.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace condense {
namespace {

std::vector<int> Best(std::vector<float> scores, int n) {
  std::vector<uint64_t> keys;
  std::vector<int> best;
  EXPECT_TRUE(BestScores(scores, n, keys, best));
  std::sort(best.begin(), best.end());
  return best;
}

TEST(BestScores, HigherFirstThenLowerIndex) {
  EXPECT_EQ(Best({1, 3, 2}, 1), (std::vector<int>{1}));
  EXPECT_EQ(Best({1, 1, 1, 1}, 2), (std::vector<int>{0, 1}));
  EXPECT_EQ(Best({-2, -1, -1, -3}, 2), (std::vector<int>{1, 2}));
  EXPECT_EQ(Best({5, 1}, 7), (std::vector<int>{0, 1}));
  EXPECT_EQ(Best({5, 1}, 0), (std::vector<int>{}));
  EXPECT_EQ(Best({}, 3), (std::vector<int>{}));
}

TEST(BestScores, ZeroesAreEqualAndInfinitiesRank) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Best({-0.0f, 0.0f}, 1), (std::vector<int>{0}));
  EXPECT_EQ(Best({0.0f, -0.0f}, 1), (std::vector<int>{0}));
  EXPECT_EQ(Best({-inf, 1, inf, -1e30f}, 3), (std::vector<int>{1, 2, 3}));
}

TEST(BestScores, NanMakesTheRankingVoid) {
  std::vector<uint64_t> keys;
  std::vector<int> best = {7};
  EXPECT_FALSE(BestScores(std::vector<float>{1, std::nanf(""), 2}, 1, keys, best));
  EXPECT_TRUE(best.empty());
}

TEST(BestScores, AgreesWithAStableSort) {
  std::mt19937 rng(3);
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<float> scores(1 + rng() % 200);
    for (float& score : scores) score = static_cast<float>(static_cast<int>(rng() % 21) - 10);
    const int n = static_cast<int>(rng() % (scores.size() + 1));
    std::vector<int> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return scores[a] > scores[b]; });
    order.resize(n);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(Best(scores, n), order);
  }
}

}  // namespace
}  // namespace condense
