// Mass of blocks and weights left out, on logits small enough to follow by hand.
#include "lab/block_recall.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lab/excluded_weights.h"

namespace condense {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// 4 blocks of 4 rows, of which 14 rows are visible: the last block is partly visible and always
// read, with the anchor's row 0. Weights are 1 but for row 6 (weight 8) and rows 8 to 11 (2 each).
std::vector<float> MadeLogits() {
  std::vector<float> logits(16, 0.0f);
  logits[6] = std::log(8.0f);
  for (int row = 8; row < 12; ++row) logits[row] = std::log(2.0f);
  logits[14] = logits[15] = kNone;
  return logits;
}

TEST(BlockRecall, OneHeadByHand) {
  const std::vector<std::vector<float>> logits = {MadeLogits()};
  const BlockFrame frame{.anchor = 1, .window = 2, .block_rows = 4, .n_blocks = 1};
  const LayerMass mass = MassOfBlocks(7, logits, 1, 14, frame);
  // Sum: 1 + 3 + (3 + 8) + 8 + 2 = 25. Base: row 0 and rows 12, 13.
  EXPECT_EQ(mass.layer, 7);
  EXPECT_EQ(mass.n_heads, 1);
  EXPECT_NEAR(mass.base, 3.0 / 25, 1e-7);
  // The heaviest is block 1 (11); by mean of logits block 2: log 2 = 0.69 above log 8 / 4 = 0.52.
  EXPECT_NEAR(mass.oracle, 14.0 / 25, 1e-7);
  EXPECT_NEAR(mass.policy, 11.0 / 25, 1e-7);
  EXPECT_NEAR(mass.oracle_recall, 11.0 / 22, 1e-7);
  EXPECT_NEAR(mass.policy_recall, 8.0 / 22, 1e-7);
}

TEST(BlockRecall, AGroupChoosesTogetherAndMassesAreByHead) {
  // The second head of the group sees block 0's rows 1 to 3 alone: shares decide, 0.97 against
  // 0.44.
  std::vector<float> other(16, -20.0f);
  for (int row = 1; row < 4; ++row) other[row] = 0.0f;
  const std::vector<std::vector<float>> logits = {MadeLogits(), other};
  const BlockFrame frame{.anchor = 1, .window = 2, .block_rows = 4, .n_blocks = 1};
  const LayerMass mass = MassOfBlocks(0, logits, 1, 14, frame);
  EXPECT_EQ(mass.n_heads, 2);
  EXPECT_NEAR(mass.oracle, (6.0 / 25 + 1) / 2, 1e-6) << "block 0: 3 of the first head's 25";
  const LayerMass apart = MassOfBlocks(0, logits, 2, 14, frame);
  EXPECT_NEAR(apart.oracle, (14.0 / 25 + 1) / 2, 1e-6);
}

TEST(BlockRecall, LargerBlocksHoldWholeSmallerOnes) {
  const std::vector<std::vector<float>> logits = {MadeLogits()};
  const LayerMass mass =
      MassOfBlocks(0, logits, 1, 14, {.anchor = 1, .window = 2, .block_rows = 8, .n_blocks = 1});
  // Rows 8 to 13 are a block that is partly visible: always read.
  EXPECT_NEAR(mass.base, 11.0 / 25, 1e-7);
  EXPECT_NEAR(mass.oracle, 1, 1e-7);
  EXPECT_NEAR(mass.policy_recall, 1, 1e-7);
}

TEST(ExcludedWeights, CountsRowsAndHeadsByFormat) {
  // Sum 1 + 2^-12 + 2^-30, about 1: the small weights are below half a unit of f16 and bf16; of
  // f32 the last alone.
  const std::vector<float> logits = {0.0f, static_cast<float>(-12 * std::log(2.0)),
                                     static_cast<float>(-30 * std::log(2.0)), kNone};
  const uint16_t first[] = {0x1}, two[] = {0x3}, all[] = {0xF};
  ExcludedWeights weights;
  weights.Take(logits, first);
  EXPECT_EQ(weights.n_rows(), 2);
  EXPECT_EQ(weights.n_heads(), 1);
  EXPECT_DOUBLE_EQ(weights.ShareOfRows(0), 0.5);
  EXPECT_DOUBLE_EQ(weights.ShareOfRows(1), 1.0);
  EXPECT_DOUBLE_EQ(weights.ShareOfHeads(0), 0.0);
  EXPECT_DOUBLE_EQ(weights.ShareOfHeads(2), 1.0);
  EXPECT_NEAR(weights.largest(), 0x1p-12, 1e-7);
  weights.Take(logits, two);
  weights.Take(logits, all);
  EXPECT_EQ(weights.n_rows(), 3);
  EXPECT_EQ(weights.n_heads(), 3);
  EXPECT_DOUBLE_EQ(weights.ShareOfHeads(0), 2.0 / 3);
  EXPECT_NEAR(weights.MeanMass(), 0x1p-12 / 3, 1e-7);
}

}  // namespace
}  // namespace condense
