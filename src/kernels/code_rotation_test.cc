// Rotated codebooks: axes in double against their definition, codes and estimates on every
// instruction set, and keys whose channels are correlated.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/codes_case.h"
#include "kernels/key_axes.h"
#include "kernels/moments.h"
#include "kernels/reference.h"
#include "kernels/test_target.h"

namespace condense {
namespace {

constexpr double kUnit = 0x1p-24;

class CodeRotationTest : public OneTargetTest {};

INSTANTIATE_TEST_SUITE_P(Targets, CodeRotationTest, ::testing::ValuesIn(AvailableTargets()),
                         [](const auto& param_info) { return param_info.param; });

std::vector<CodesCase> Cases() {
  std::vector<CodesCase> cases;
  for (int dim : {16, 48, 64, 112, 128, 256}) {
    for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
      if (type == KvType::kQ8_0 && dim % 32 != 0) continue;
      cases.push_back({.n_segments = 5, .dim = dim, .n_nibbles = dim % 64 ? 8 : 16, .type = type});
    }
  }
  cases.push_back({.n_segments = 17, .spread = 1});
  return cases;
}

// Sum of q_i q_j over n queries that mix `n_mixed` directions and a little of everything.
std::vector<float> MixedProducts(int dim, int n, int n_mixed, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> directions(static_cast<size_t>(n_mixed) * dim), q(dim);
  for (float& value : directions) value = RoughNormal(random);
  std::vector<float> products(static_cast<size_t>(dim) * dim);
  for (int row = 0; row < n; ++row) {
    for (float& value : q) value = 0.2f * RoughNormal(random);
    for (int m = 0; m < n_mixed; ++m) {
      const float weight = RoughNormal(random);
      for (int c = 0; c < dim; ++c) q[c] += weight * directions[static_cast<size_t>(m) * dim + c];
    }
    AddProducts(q.data(), dim, 1.0f / static_cast<float>(n), products.data());
  }
  return products;
}

// Keys whose channels move together, and queries along the same few directions.
class MixedKeys {
 public:
  // Not `mixed`: the case's own keys and queries.
  explicit MixedKeys(const CodesCase& shape, bool mixed = true) : coded(shape) {
    products.resize(static_cast<size_t>(shape.dim) * shape.dim);
    if (mixed) {
      Mix(shape);
    } else {
      for (int c = 0; c < shape.dim; ++c) products[c * shape.dim + c] = coded.moment[c];
    }
  }

  void Mix(const CodesCase& shape) {
    const auto dim = static_cast<size_t>(shape.dim);
    std::mt19937 random(11);
    constexpr size_t kMixed = 6;
    std::vector<float> directions(kMixed * dim), row(dim);
    for (float& value : directions) value = RoughNormal(random);
    std::vector<std::byte> bytes;
    for (int r = 0; r < shape.n_segments * kSegmentRows; ++r) {
      for (float& value : row) value = 0.1f * RoughNormal(random);
      for (size_t m = 0; m < kMixed; ++m) {
        const float weight = RoughNormal(random);
        for (size_t c = 0; c < dim; ++c) row[c] += weight * directions[m * dim + c];
      }
      bytes.clear();
      AppendStored(row, shape.type, bytes);
      std::copy(bytes.begin(), bytes.end(), coded.Row(r));
    }
    for (int i = 0; i < 240; ++i) {
      std::vector<float> q(dim);
      for (float& value : q) value = 0.3f * RoughNormal(random);
      for (size_t m = 0; m < 3; ++m) {
        const float weight = RoughNormal(random);
        for (size_t c = 0; c < dim; ++c) q[c] += weight * directions[m * dim + c];
      }
      // Logits within what the scan's exponentials hold.
      for (float& value : q) value *= 8.0f / static_cast<float>(dim);
      AddProducts(q.data(), shape.dim, 1.0f / 240, products.data());
      if (i < shape.n_heads) {
        std::copy(q.begin(), q.end(),
                  coded.q.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(i) * dim));
      }
    }
    for (size_t c = 0; c < dim; ++c) coded.moment[c] = products[c * dim + c];
  }

  // Mean squared error of the estimates over rows and heads, and the exact logits' variance.
  double Error(bool rotate, double* variance) {
    coded.train.rotate = rotate;
    coded.train.query_products = products.data();
    coded.Encode();
    coded.Step(coded.shape.n_segments);
    double error = 0;
    *variance = 0;
    const auto n_rows = static_cast<int>(coded.n_rows());
    for (int h = 0; h < coded.shape.n_heads; ++h) {
      double sum = 0, squares = 0;
      for (int r = 0; r < n_rows; ++r) {
        const std::vector<double> key =
            ReferenceRow(coded.Row(r), coded.shape.type, coded.shape.dim);
        double logit = 0;
        for (int c = 0; c < coded.shape.dim; ++c)
          logit += CodedKeys::kScale * coded.q[h * coded.shape.dim + c] * key[c];
        const double off = coded.Estimate(r, h) - logit;
        error += off * off / (n_rows * coded.shape.n_heads);
        sum += logit / n_rows, squares += logit * logit / n_rows;
      }
      *variance += (squares - sum * sum) / coded.shape.n_heads;
    }
    return error;
  }

  CodedKeys coded;
  std::vector<float> products;
};

double Along(const std::vector<float>& axes, int dim, size_t a, const std::vector<double>& x) {
  double sum = 0;
  for (int c = 0; c < dim; ++c) sum += static_cast<double>(axes[a * dim + c]) * x[c];
  return sum;
}

TEST_P(CodeRotationTest, MomentsAreWhatTheySay) {
  const int dim = 48;
  std::mt19937 random(3);
  std::vector<float> q(dim), x(2 * dim * kSegmentRows), mean(dim), products(dim * dim, 1.0f);
  for (float& value : q) value = RoughNormal(random);
  for (float& value : x) value = RoughNormal(random);
  for (float& value : mean) value = RoughNormal(random);
  AddProducts(q.data(), dim, 0.5f, products.data());
  const std::vector<double> covariance = Covariance(x.data(), 2, dim, mean.data());
  for (int i = 0; i < dim; ++i) {
    for (int j = i; j < dim; ++j) {
      ASSERT_NEAR(products[i * dim + j], 1 + 0.5 * q[i] * q[j], 1e-5);
      double sum = 0;
      for (int s = 0; s < 2; ++s) {
        for (int r = 0; r < kSegmentRows; ++r) {
          const auto at = [&](int c) { return x[(s * dim + c) * kSegmentRows + r] - mean[c]; };
          sum += static_cast<double>(at(i)) * at(j) / (2 * kSegmentRows);
        }
      }
      ASSERT_NEAR(covariance[i * dim + j], sum, 1e-5);
      ASSERT_EQ(covariance[i * dim + j], covariance[j * dim + i]);
    }
  }
}

TEST_P(CodeRotationTest, CodesNameTheNearestEntriesAlongTheAxes) {
  for (const CodesCase& shape : Cases()) {
    CodedKeys coded(shape);
    const std::vector<float> products = MixedProducts(shape.dim, 50, 4, 2);
    coded.train.rotate = true, coded.train.query_products = products.data();
    coded.Encode();
    const TokenCodebook& book = coded.book;
    ASSERT_TRUE(book.rotated());
    ASSERT_EQ(book.to_code.size(), book.channel.size() * static_cast<size_t>(shape.dim));
    ASSERT_EQ(book.to_query.size(), book.to_code.size());
    ASSERT_GE(book.bytes(), 2 * sizeof(float) * book.to_code.size());
    double error = 0, total = 0;
    for (int row = 0; row < shape.n_segments * kSegmentRows; row += 7) {
      const std::vector<double> key = ReferenceRow(coded.Row(row), shape.type, shape.dim);
      std::vector<double> residual(shape.dim), size(shape.dim);
      for (int c = 0; c < shape.dim; ++c) {
        residual[c] = key[c] - coded.CentroidValue(row / kSegmentRows, c);
        size[c] = std::fabs(key[c]) + std::fabs(residual[c]);
      }
      for (int n = 0; n < shape.n_nibbles; ++n) {
        double distance[kNibbleEntries] = {}, close = 0;
        for (size_t i = book.first[n]; i < book.first[n + 1]; ++i) {
          const double y = Along(book.to_code, shape.dim, i, residual);
          double magnitude = 0;
          for (int c = 0; c < shape.dim; ++c)
            magnitude += std::fabs(book.to_code[i * shape.dim + c]) * size[c];
          for (int e = 0; e < kNibbleEntries; ++e) {
            const double off = y - book.Entry(i * kNibbleEntries + static_cast<size_t>(e));
            distance[e] += off * off;
            close = std::max(
                close, (shape.dim + 8) * kUnit * magnitude * (std::fabs(off) + magnitude * kUnit));
            if (e == coded.Code(row, n)) error += off * off, total += y * y;
          }
        }
        ASSERT_LE(distance[coded.Code(row, n)],
                  *std::min_element(distance, distance + kNibbleEntries) * (1 + 1e-5) + 8 * close)
            << shape.dim;
      }
    }
    ASSERT_LT(error, 0.4 * total) << shape.dim;
  }
}

TEST_P(CodeRotationTest, EstimatesAreTheSumsOfProductsAlongTheAxes) {
  for (const CodesCase& shape : Cases()) {
    CodedKeys coded(shape);
    const std::vector<float> products = MixedProducts(shape.dim, 50, 4, 2);
    coded.train.rotate = true, coded.train.query_products = products.data();
    coded.Encode();
    coded.Step(shape.n_segments);
    for (int h = 0; h < shape.n_heads; ++h) {
      const std::vector<double> q(coded.q.begin() + h * shape.dim,
                                  coded.q.begin() + (h + 1) * shape.dim);
      for (int row = 0; row < shape.n_segments * kSegmentRows; row += 7) {
        double sum = 0, magnitude = 0;
        for (int c = 0; c < shape.dim; ++c) {
          sum += q[c] * coded.CentroidValue(row / kSegmentRows, c);
          magnitude += std::fabs(q[c] * coded.CentroidValue(row / kSegmentRows, c));
        }
        for (int n = 0; n < shape.n_nibbles; ++n) {
          for (size_t i = coded.book.first[n]; i < coded.book.first[n + 1]; ++i) {
            const double entry =
                coded.book.Entry(i * kNibbleEntries + static_cast<size_t>(coded.Code(row, n)));
            sum += Along(coded.book.to_query, shape.dim, i, q) * entry;
            for (int c = 0; c < shape.dim; ++c)
              magnitude += std::fabs(coded.book.to_query[i * shape.dim + c] * q[c] * entry);
          }
        }
        ASSERT_NEAR(coded.Estimate(row, h), CodedKeys::kScale * sum,
                    0.043 + shape.n_nibbles * 0.5 * coded.tables[h].step +
                        CodedKeys::kScale * (shape.dim + 8) * kUnit * magnitude +
                        16 * kUnit * std::fabs(coded.tables[h].offset));
      }
    }
  }
}

TEST_P(CodeRotationTest, CorrelatedChannelsAreEstimatedBetter) {
  for (int dim : {64, 128}) {
    MixedKeys keys({.n_segments = 24, .dim = dim});
    double variance;
    const double plain = keys.Error(false, &variance);
    const double rotated = keys.Error(true, &variance);
    EXPECT_LT(rotated, 0.5 * plain) << dim;
    EXPECT_LT(rotated, 0.2 * variance) << dim;
  }
}

TEST_P(CodeRotationTest, IndependentChannelsLoseLittle) {
  MixedKeys keys({.n_segments = 24}, /*mixed=*/false);
  double variance;
  const double plain = keys.Error(false, &variance);
  EXPECT_LT(keys.Error(true, &variance), 1.15 * plain);
}

TEST_P(CodeRotationTest, WhatIsNotFiniteOrDoesNotVaryIsHarmless) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float size : {0.0f, 1e-40f, 1e-20f, 1e18f}) {
    CodedKeys coded({.n_segments = 4, .type = KvType::kF32});
    for (int r = 0; r < 4 * kSegmentRows; ++r) {
      float row[64];
      std::memcpy(row, coded.Row(r), sizeof(row));
      for (float& value : row) value *= size;
      std::memcpy(coded.Row(r), row, sizeof(row));
    }
    std::memcpy(coded.Row(70), &nan, 4);
    coded.train.rotate = true;
    coded.Encode();
    for (uint16_t entry : coded.book.entries)
      ASSERT_TRUE(std::isfinite(F32FromBF16(entry))) << size;
    EXPECT_TRUE(std::isnan(coded.scales[1]));
    RowMask visible(4 * 4, 0xFFFF);
    std::fill_n(visible.begin() + 4, 4, 0);
    coded.Step(4, visible.data());
    ASSERT_EQ(coded.n_found, 3 * kSegmentRows);
    for (int i = 0; i < coded.n_found; ++i) ASSERT_TRUE(std::isfinite(coded.worths[i])) << size;
  }
  // Moments that are none: the metric of no queries.
  CodedKeys coded({.n_segments = 4});
  coded.train.rotate = true;
  coded.moment.assign(64, nan);
  coded.Encode();
  const std::vector<uint16_t> alone = coded.book.entries;
  std::vector<float> products(64 * 64, nan);
  coded.train.query_products = products.data();
  coded.Encode();
  EXPECT_EQ(coded.book.entries, alone);
  std::fill(products.begin(), products.end(), 0.0f);
  coded.Encode();
  EXPECT_EQ(coded.book.entries, alone);
  TrainArgs none;
  none.keys = coded.keys, none.rotate = true;
  EXPECT_TRUE(TrainCodebook(none).channel.empty());
}

TEST(KeyAxesTest, UncorrelatedCodesAndUnchangedProducts) {
  for (int dim : {16, 64, 128}) {
    std::mt19937 random(9);
    // A covariance: a sum of squares.
    std::vector<double> covariance(static_cast<size_t>(dim) * dim);
    for (int k = 0; k < 2 * dim; ++k) {
      std::vector<double> x(dim);
      for (int c = 0; c < dim; ++c) x[c] = RoughNormal(random) * (1 + c % 5) + x[c / 2];
      for (int i = 0; i < dim; ++i) {
        for (int j = 0; j < dim; ++j) covariance[i * dim + j] += x[i] * x[j];
      }
    }
    const std::vector<float> products = MixedProducts(dim, 100, 3, 4);
    const KeyAxes axes = FindKeyAxes(covariance, dim, products.data(), nullptr);
    double trace = 0;
    for (int i = 0; i < dim; ++i) trace += products[i * dim + i] / static_cast<double>(dim);
    for (int a = 0; a < dim; ++a) {
      for (int b = 0; b <= a; ++b) {
        double cov = 0, cost = 0, unit = 0;
        for (int i = 0; i < dim; ++i) {
          const double code = axes.to_code[a * dim + i], query = axes.to_query[a * dim + i];
          unit += query * axes.to_code[b * dim + i];
          for (int j = 0; j < dim; ++j) {
            cov += code * axes.to_code[b * dim + j] * covariance[i * dim + j];
            const double metric =
                products[std::min(i, j) * dim + std::max(i, j)] / trace + (i == j ? .003 : 0);
            cost += query * axes.to_query[b * dim + j] * metric;
          }
        }
        // Keys vary along one axis at a time; products are kept; every axis costs the same.
        ASSERT_NEAR(cov, a == b ? axes.variance[a] : 0, 1e-5 * axes.variance[0]);
        ASSERT_NEAR(unit, a == b, 1e-4);
        ASSERT_NEAR(cost, a == b, 1e-3);
      }
    }
  }
  std::vector<double> covariance(16 * 16, 0.0);
  covariance[5] = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(FindKeyAxes(covariance, 16, nullptr, nullptr).empty());
}

}  // namespace
}  // namespace condense
