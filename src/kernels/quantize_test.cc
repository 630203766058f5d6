#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/test_case.h"
#include "kernels/test_target.h"

namespace condense {
namespace {

class QuantizeTest : public OneTargetTest {};

INSTANTIATE_TEST_SUITE_P(Targets, QuantizeTest, ::testing::ValuesIn(AvailableTargets()),
                         [](const auto& param_info) { return param_info.param; });

std::vector<std::byte> Quantized(const std::vector<float>& values, KvType type) {
  std::vector<std::byte> row;
  AppendStored(values, type, row);
  const int dim = static_cast<int>(values.size());
  std::vector<std::byte> to(KvBytes(KvType::kQ8_0, dim));
  QuantizeRow(row.data(), type, dim, to.data());
  return to;
}

float ScaleOf(const std::vector<std::byte>& row, size_t block) {
  uint16_t scale;
  std::memcpy(&scale, row.data() + block * kQ8BlockBytes, 2);
  return F32FromF16(scale);
}

float ValueAt(const std::vector<std::byte>& row, size_t c) {
  const size_t block = c / kQ8BlockValues;
  const auto steps = static_cast<int8_t>(row[block * kQ8BlockBytes + 2 + c % kQ8BlockValues]);
  return ScaleOf(row, block) * static_cast<float>(steps);
}

TEST_P(QuantizeTest, ValuesAreWithinHalfAStep) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
    for (int dim : {32, 64, 96, 128, 256}) {
      for (float size : {1e-2f, 1.0f, 300.0f}) {
        std::vector<float> values(dim);
        for (float& value : values) value = size * normal(random);
        std::vector<std::byte> stored;
        AppendStored(values, type, stored);
        for (int c = 0; c < dim; ++c) {  // as stored
          const std::byte* at = stored.data() + c * KvBytes(type, 1);
          uint16_t half;
          std::memcpy(&half, at, 2);
          if (type == KvType::kF16) values[c] = F32FromF16(half);
          if (type == KvType::kBF16) values[c] = F32FromBF16(half);
        }
        const std::vector<std::byte> row = Quantized(values, type);
        for (size_t block = 0; block < values.size() / kQ8BlockValues; ++block) {
          float largest = 0;
          for (size_t i = 0; i < kQ8BlockValues; ++i)
            largest = std::max(largest, std::fabs(values[block * kQ8BlockValues + i]));
          ASSERT_NEAR(ScaleOf(row, block), largest / 127, largest / 127 / 1024);
        }
        for (size_t c = 0; c < values.size(); ++c) {
          const float step = ScaleOf(row, c / kQ8BlockValues);
          // A scale rounded down leaves the largest value up to 127 / 2,048 of a step out.
          ASSERT_NEAR(ValueAt(row, c), values[c], 0.57f * step) << KvTypeName(type) << ' ' << dim;
        }
      }
    }
  }
}

TEST_P(QuantizeTest, EveryTargetGivesTheSameBits) {
  std::mt19937 random(5);
  std::vector<float> values(256);
  for (float& value : values) value = static_cast<float>(random() % 20001) / 1000 - 10;
  const std::vector<std::byte> row = Quantized(values, KvType::kF32);
  ASSERT_TRUE(ForceTarget(ExactTargets().front()).ok());
  EXPECT_EQ(row, Quantized(values, KvType::kF32));
}

TEST_P(QuantizeTest, ZeroSmallLargeAndWhatIsNotFinite) {
  std::vector<float> values(96, 0.0f);
  std::vector<std::byte> row = Quantized(values, KvType::kF32);
  for (size_t c = 0; c < 96; ++c) EXPECT_EQ(ValueAt(row, c), 0);
  values[3] = 1e-30f, values[40] = 1e30f, values[70] = -0.0f;
  row = Quantized(values, KvType::kF32);
  EXPECT_EQ(ValueAt(row, 3), 0);
  EXPECT_EQ(ScaleOf(row, 1), 65504.0f);
  EXPECT_EQ(ValueAt(row, 40), 127 * 65504.0f);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    values[50] = bad;
    row = Quantized(values, KvType::kF32);
    EXPECT_TRUE(std::isnan(ScaleOf(row, 1))) << bad;
    EXPECT_EQ(ValueAt(row, 70), 0);
  }
}

}  // namespace
}  // namespace condense
