// Sums of shares on every instruction set against the same in double, and bit-equal where targets
// have fused multiply-add.
#include "kernels/column_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/target.h"
#include "kernels/test_case.h"
#include "kernels/test_target.h"

namespace condense {
namespace {

constexpr double kUnit = 0x1p-24;

class ColumnSumsTest : public OneTargetTest {};

INSTANTIATE_TEST_SUITE_P(Targets, ColumnSumsTest, ::testing::ValuesIn(AvailableTargets()),
                         [](const auto& param_info) { return param_info.param; });

TEST_P(ColumnSumsTest, AddsSharesInOrder) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (size_t n : {16, 48, 512}) {
    constexpr int kQueries = 50;
    std::vector<float> sums(n, 0.0f);
    std::vector<double> expected(n, 0.0);
    for (int query = 0; query < kQueries; ++query) {
      std::vector<float> logits(n);
      for (float& z : logits) z = 5.0f * normal(random);
      logits[3] = -std::numeric_limits<float>::infinity();
      logits[5] = -1e4f;
      const float max = *std::max_element(logits.begin(), logits.end());
      float sum = 0;
      for (float z : logits) sum += std::exp(z - max);
      AddShares(logits.data(), n, max, sum, sums.data());
      for (size_t i = 0; i < n; ++i)
        expected[i] += std::exp(static_cast<double>(logits[i]) - max) / sum;
    }
    EXPECT_EQ(sums[3], 0.0f);
    EXPECT_EQ(sums[5], 0.0f);
    // The exponential's 4 units, its argument's rounding, the inverse, and a rounding an addition.
    for (size_t i = 0; i < n; ++i)
      EXPECT_NEAR(sums[i], expected[i], (40 + kQueries) * 2 * kUnit * expected[i]) << i;
  }
}

TEST(ColumnSumsBitsTest, TargetsAgree) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> logits(512);
  for (float& z : logits) z = 5.0f * normal(random);
  const float max = *std::max_element(logits.begin(), logits.end());
  std::vector<float> first;
  for (const std::string& target : ExactTargets()) {
    ASSERT_TRUE(ForceTarget(target).ok());
    std::vector<float> sums(512, 0.25f);
    AddShares(logits.data(), logits.size(), max, 3.7f, sums.data());
    if (first.empty()) first = sums;
    EXPECT_EQ(sums, first) << target;
  }
  ASSERT_TRUE(ForceTarget("").ok());
}

}  // namespace
}  // namespace condense
