// The ranking on every instruction set of the machine, against a stable sort.
#include "kernels/top.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/target.h"
#include "kernels/test_target.h"

namespace condense {
namespace {

class TopScoresTest : public OneTargetTest {};

INSTANTIATE_TEST_SUITE_P(Targets, TopScoresTest, ::testing::ValuesIn(AvailableTargets()),
                         [](const auto& param_info) { return param_info.param; });

std::vector<int> Best(const std::vector<float>& scores, int n_best) {
  std::vector<int32_t> keys(scores.size());
  std::vector<int> best(std::min(scores.size(), static_cast<size_t>(n_best)));
  const int n =
      TopScores(scores.data(), static_cast<int>(scores.size()), n_best, keys.data(), best.data());
  EXPECT_EQ(n, static_cast<int>(best.size()));
  return best;
}

TEST_P(TopScoresTest, HigherFirstThenLowerIndex) {
  EXPECT_EQ(Best({1, 3, 2}, 1), (std::vector<int>{1}));
  EXPECT_EQ(Best({1, 1, 1, 1}, 2), (std::vector<int>{0, 1}));
  EXPECT_EQ(Best({-2, -1, -1, -3}, 2), (std::vector<int>{1, 2}));
  EXPECT_EQ(Best({5, 1}, 7), (std::vector<int>{0, 1}));
  EXPECT_EQ(Best({5, 1}, 0), (std::vector<int>{}));
  EXPECT_EQ(Best({}, 3), (std::vector<int>{}));
}

TEST_P(TopScoresTest, ZeroesAreEqualAndInfinitiesRank) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Best({-0.0f, 0.0f}, 1), (std::vector<int>{0}));
  EXPECT_EQ(Best({0.0f, -0.0f}, 1), (std::vector<int>{0}));
  EXPECT_EQ(Best({-inf, 1, inf, -1e30f}, 3), (std::vector<int>{1, 2, 3}));
}

TEST_P(TopScoresTest, NanMakesTheRankingVoid) {
  for (size_t n : {3, 40}) {
    for (size_t at : {size_t{0}, n / 2, n - 1}) {
      std::vector<float> scores(n, 1.0f);
      scores[at] = std::nanf("");
      std::vector<int32_t> keys(n);
      std::vector<int> best(n);
      EXPECT_EQ(TopScores(scores.data(), static_cast<int>(n), 1, keys.data(), best.data()), -1);
    }
  }
}

TEST_P(TopScoresTest, AgreesWithAStableSort) {
  std::mt19937 rng(3);
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<float> scores(1 + rng() % 200);
    // Many ties, or hardly any.
    for (float& score : scores) {
      score = trial % 2 == 0 ? static_cast<float>(static_cast<int>(rng() % 21) - 10)
                             : std::ldexp(static_cast<float>(static_cast<int>(rng())),
                                          static_cast<int>(rng() % 60) - 60);
    }
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

// Enough scores for a sample to say where the cut lies, rightly or wrongly.
TEST_P(TopScoresTest, ManyScoresAgreeWithAStableSort) {
  std::mt19937 rng(7);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<float> scores(2048 + rng() % 40000);
    const size_t period = scores.size() / 1024;
    for (size_t i = 0; i < scores.size(); ++i) {
      const float uniform = static_cast<float>(rng() >> 8);
      switch (trial % 6) {
        case 0:  // hardly any ties
          scores[i] = uniform;
          break;
        case 1:  // many
          scores[i] = static_cast<float>(rng() % 9) - 4;
          break;
        case 2:  // all equal but a few
          scores[i] = rng() % 1000 == 0 ? uniform : -1.0f;
          break;
        case 3:  // the sample sees other scores than the rest
          scores[i] = i % period == 0 ? uniform : -uniform;
          break;
        case 4:  // sorted
          scores[i] = static_cast<float>(i);
          break;
        case 5:  // infinities
          scores[i] = rng() % 3 == 0 ? -std::numeric_limits<float>::infinity() : uniform;
          break;
      }
    }
    const int n = trial < 30 ? static_cast<int>(scores.size() * 7 / 100)
                             : static_cast<int>(rng() % (scores.size() + 1));
    std::vector<int> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return scores[a] > scores[b]; });
    order.resize(n);
    std::sort(order.begin(), order.end());
    ASSERT_EQ(Best(scores, n), order) << trial;
    if (n == 0) continue;
    scores[rng() % scores.size()] = std::nanf("");
    std::vector<int32_t> keys(scores.size());
    ASSERT_EQ(
        TopScores(scores.data(), static_cast<int>(scores.size()), n, keys.data(), order.data()),
        -1);
  }
}

// Lists of scores as they came, against a sort of all of them.
TEST_P(TopScoresTest, ListsAreRankedTogether) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int n_lists = 1 + static_cast<int>(random() % 4);
    const float guesses[] = {0, 1e-4f, 0.5f};
    std::vector<std::vector<float>> scores(static_cast<size_t>(n_lists));
    std::vector<std::vector<int32_t>> ids(scores.size());
    struct Candidate {
      float score;
      int32_t id;
    };
    std::vector<Candidate> all;
    int32_t id = 0;
    for (size_t i = 0; i < scores.size(); ++i) {
      for (int n = static_cast<int>(random() % 90); n > 0; --n) {
        // Few different ones in every other round; some that are no candidates.
        float score = round % 2 == 0 ? static_cast<float>(random() % 5) * 0.25f
                                     : std::ldexp(static_cast<float>(random() % 1000), -20);
        if (random() % 8 == 0) score = -1;
        id += 1 + static_cast<int32_t>(random() % 3);
        scores[i].push_back(score), ids[i].push_back(id);
        if (score >= 0) all.push_back({score, id});
      }
    }
    if (all.empty()) continue;
    std::stable_sort(all.begin(), all.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
    for (size_t n_best : {size_t{1}, all.size() / 2 + 1, all.size()}) {
      n_best = std::min(n_best, all.size());
      std::vector<ScoreList> lists;
      for (size_t i = 0; i < scores.size(); ++i)
        lists.push_back({scores[i].data(), ids[i].data(), static_cast<int>(ids[i].size())});
      std::vector<int> n_taken(lists.size(), -1);
      const TopCut cut = TopOfLists(lists.data(), n_lists, static_cast<int>(n_best),
                                    guesses[round % 3], n_taken.data());
      std::vector<int32_t> expected, found;
      for (size_t i = 0; i < n_best; ++i) expected.push_back(all[i].id);
      std::sort(expected.begin(), expected.end());
      for (size_t i = 0; i < lists.size(); ++i) {
        std::vector<int32_t> taken(static_cast<size_t>(n_taken[i]) + 16);
        TakeTop(lists[i], cut, n_taken[i], taken.data());
        found.insert(found.end(), taken.begin(), taken.begin() + n_taken[i]);
      }
      ASSERT_EQ(found, expected) << round;
    }
  }
}

}  // namespace
}  // namespace condense
