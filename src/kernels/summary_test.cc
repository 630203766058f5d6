// Block statistics, tiles and scores on every instruction set, against the double reference.
#include "kernels/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/reference.h"
#include "kernels/target.h"
#include "kernels/test_case.h"
#include "kernels/test_target.h"

namespace condense {
namespace {

constexpr double kUnit = 0x1p-24;

class SummaryTest : public OneTargetTest {};

INSTANTIATE_TEST_SUITE_P(Targets, SummaryTest, ::testing::ValuesIn(AvailableTargets()),
                         [](const auto& param_info) { return param_info.param; });

TEST_P(SummaryTest, RowStatisticsMatchReference) {
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
    for (int dim : {64, 80, 96, 128, 256}) {
      if (type == KvType::kQ8_0 && dim % 32 != 0) continue;
      for (int n : {1, 2, 15, 16, 17, 100}) {
        KernelData data({.n_rows = n, .k_dim = dim, .k_type = type});
        const AttendArgs& args = data.args();
        std::vector<float> mean(dim), min(dim), max(dim), var(dim);
        SummarizeRows(
            args.k, args.k_stride, type, n, dim,
            {.mean = mean.data(), .min = min.data(), .max = max.data(), .var = var.data()});
        const ReferenceStats expected = ReferenceSummarizeRows(args.k, args.k_stride, type, n, dim);
        for (int c = 0; c < dim; ++c) {
          const double magnitude = std::max(std::fabs(expected.min[c]), std::fabs(expected.max[c]));
          const double mean_bound = (n + 1) * kUnit * magnitude;
          ASSERT_EQ(min[c], expected.min[c]);
          ASSERT_EQ(max[c], expected.max[c]);
          ASSERT_NEAR(mean[c], expected.mean[c], mean_bound);
          ASSERT_NEAR(var[c], expected.var[c],
                      (n + 6) * kUnit * expected.var[c] + mean_bound * mean_bound +
                          4 * kUnit * magnitude * magnitude);
        }
        std::vector<float> mean_alone(dim);
        SummarizeRows(args.k, args.k_stride, type, n, dim, {.mean = mean_alone.data()});
        ASSERT_EQ(mean, mean_alone);
      }
    }
  }
}

TEST_P(SummaryTest, ScoresMatchReference) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int dim : {1, 4, 64, 80, 96, 128, 256}) {
    for (int n_tiles : {1, 3, 4, 5, 32}) {
      std::vector<uint16_t> low(static_cast<size_t>(n_tiles) * dim * kTileBlocks), high(low.size());
      std::vector<float> q(dim);
      for (float& value : q) value = normal(random);
      if (dim > 1) q[1] = 0;
      for (size_t i = 0; i < low.size(); ++i) {
        const float a = normal(random), b = normal(random);
        low[i] = F16FromF32Saturated(std::min(a, b)), high[i] = F16FromF32Saturated(std::max(a, b));
      }
      std::vector<float> mean_scores(n_tiles * kTileBlocks), bounds(n_tiles * kTileBlocks);
      ScoreMean(low.data(), n_tiles, dim, q.data(), 0.125f, mean_scores.data());
      ScoreMinMax(low.data(), high.data(), n_tiles, dim, q.data(), 0.125f, bounds.data());
      const std::vector<double> expected =
          ReferenceScoreMean(low.data(), n_tiles, dim, q.data(), 0.125);
      const std::vector<double> expected_bounds =
          ReferenceScoreMinMax(low.data(), high.data(), n_tiles, dim, q.data(), 0.125);
      for (size_t block = 0; block < mean_scores.size(); ++block) {
        double magnitude = 0;
        for (int c = 0; c < dim; ++c) {
          const size_t at = (block / kTileBlocks * dim + c) * kTileBlocks + block % kTileBlocks;
          magnitude += 0.125 * std::fabs(q[c]) *
                       std::max(std::fabs(F32FromF16(low[at])), std::fabs(F32FromF16(high[at])));
        }
        const int n_terms = dim / 2 + 3;
        ASSERT_NEAR(mean_scores[block], expected[block], n_terms * kUnit * magnitude);
        ASSERT_NEAR(bounds[block], expected_bounds[block], n_terms * kUnit * magnitude);
      }
    }
  }
}

TEST_P(SummaryTest, WeightedSumsMatchReference) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int dim : {64, 80, 256}) {
    for (int n_tiles : {1, 2, 33}) {
      const int n_blocks = n_tiles * kTileBlocks;
      std::vector<uint16_t> tiles(static_cast<size_t>(n_blocks) * dim);
      std::vector<float> weights(n_blocks), sums(dim);
      for (uint16_t& value : tiles) value = F16FromF32Saturated(normal(random));
      for (float& weight : weights) weight = std::fabs(normal(random));
      // What a block of weight 0 holds is nobody's.
      weights[3] = 0;
      for (int c = 0; c < dim; ++c) tiles[c * kTileBlocks + 3] = 0x7E00;
      SumTiles(tiles.data(), n_tiles, dim, weights.data(), sums.data());
      for (int c = 0; c < dim; ++c) {
        double sum = 0, magnitude = 0;
        for (int b = 0; b < n_blocks; ++b) {
          if (weights[b] == 0) continue;
          const size_t at = (static_cast<size_t>(b / kTileBlocks) * dim + c) * kTileBlocks;
          const double value = F32FromF16(tiles[at + b % kTileBlocks]);
          sum += weights[b] * value;
          magnitude += weights[b] * std::fabs(value);
        }
        ASSERT_NEAR(sums[c], sum, (n_tiles + 5) * kUnit * magnitude);
      }
    }
  }
}

// No row of a block has a larger logit than Quest's bound says, nor another mean than the mean's
// score.
TEST_P(SummaryTest, ScoresOfSummarizedRowsBoundTheirLogits) {
  constexpr int kDim = 64;
  KernelData data({.n_rows = 256, .n_queries = 1, .k_dim = kDim, .k_type = KvType::kF16});
  const AttendArgs& args = data.args();
  std::vector<uint16_t> mean_tile(kDim * kTileBlocks), min_tile(mean_tile), max_tile(mean_tile);
  std::vector<float> mean(kDim), min(kDim), max(kDim);
  for (int block = 0; block < 16; ++block) {
    SummarizeRows(args.k + block * kBlockRows * args.k_stride, args.k_stride, args.k_type,
                  kBlockRows, kDim, {.mean = mean.data(), .min = min.data(), .max = max.data()});
    StoreInTile(mean.data(), kDim, mean_tile.data(), block);
    StoreInTile(min.data(), kDim, min_tile.data(), block);
    StoreInTile(max.data(), kDim, max_tile.data(), block);
  }
  std::vector<float> scores(16), bounds(16), logits(256);
  ScoreMean(mean_tile.data(), 1, kDim, args.q, args.scale, scores.data());
  ScoreMinMax(min_tile.data(), max_tile.data(), 1, kDim, args.q, args.scale, bounds.data());
  RowLogits(args, logits.data());
  for (int block = 0; block < 16; ++block) {
    double mean_logit = 0;
    for (int row = 0; row < kBlockRows; ++row) {
      EXPECT_LE(logits[block * 16 + row], bounds[block]);
      mean_logit += logits[block * 16 + row] / 16;
    }
    EXPECT_NEAR(scores[block], mean_logit, 0.01);  // means are kept in f16
  }
}

TEST(HalfTest, EveryHalfSurvivesTheWayThroughF32) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const uint16_t bits = static_cast<uint16_t>(half);
    const float value = F32FromF16(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F32FromF16(F16FromF32Saturated(value))));
    } else if (std::isinf(value)) {
      EXPECT_EQ(std::fabs(F32FromF16(F16FromF32Saturated(value))), 65504.0f);
    } else {
      ASSERT_EQ(F16FromF32Saturated(value), bits);
    }
  }
}

TEST(HalfTest, RoundsToNearestEven) {
  for (uint32_t half = 0; half < 0x7BFF; ++half) {
    const float low = F32FromF16(static_cast<uint16_t>(half)),
                high = F32FromF16(static_cast<uint16_t>(half + 1));
    const float middle = low + (high - low) / 2;  // exact in FP32
    const uint16_t even = static_cast<uint16_t>(half % 2 == 0 ? half : half + 1);
    ASSERT_EQ(F16FromF32Saturated(middle), even) << half;
    ASSERT_EQ(F16FromF32Saturated(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(F16FromF32Saturated(std::nextafter(middle, 1e9f)), half + 1);
    ASSERT_EQ(F16FromF32Saturated(-middle), even | 0x8000);
  }
  EXPECT_EQ(F16FromF32Saturated(1e6f), kF16MaxFinite);
  EXPECT_EQ(F16FromF32Saturated(-1e6f), kF16MaxFinite | 0x8000);
}

TEST(HalfTest, BF16RoundsToNearestEvenAndStaysFinite) {
  for (uint32_t half = 0; half < 0x7F7F; ++half) {
    const float low = F32FromBF16(static_cast<uint16_t>(half)),
                high = F32FromBF16(static_cast<uint16_t>(half + 1));
    const float middle = low + (high - low) / 2;  // exact in FP32
    const uint32_t even = half + half % 2;
    ASSERT_EQ(BF16FromFinite(low), half);
    ASSERT_EQ(BF16FromFinite(middle), even) << half;
    ASSERT_EQ(BF16FromFinite(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(BF16FromFinite(std::nextafter(middle, high)), half + 1);
    ASSERT_EQ(BF16FromFinite(-middle), even | 0x8000);
  }
  EXPECT_EQ(BF16FromFinite(std::numeric_limits<float>::max()), 0x7F7F);
  EXPECT_EQ(BF16FromFinite(-std::numeric_limits<float>::max()), 0xFF7F);
}

// The kernels' own f16 loads, for every half, on every target: a single row of one block as its
// mean.
TEST_P(SummaryTest, EveryHalfLoadsExactly) {
  std::vector<uint16_t> row(16);
  std::vector<float> mean(16);
  for (uint32_t half = 0; half < 0x10000; half += 16) {
    for (uint32_t i = 0; i < 16; ++i) row[i] = static_cast<uint16_t>(half + i);
    SummarizeRows(reinterpret_cast<const std::byte*>(row.data()), 32, KvType::kF16, 1, 16,
                  {.mean = mean.data()});
    for (uint32_t i = 0; i < 16; ++i) {
      const float expected = F32FromF16(row[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(mean[i])) << half + i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(mean[i]), std::bit_cast<uint32_t>(expected)) << half + i;
      }
    }
  }
}

}  // namespace
}  // namespace condense
