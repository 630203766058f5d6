// Token codes on every instruction set of the machine: centroids, codes and estimates against
// double, the scan's passes, and what is not finite or does not vary.
#include "kernels/token_codes.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "kernels/codes_case.h"
#include "kernels/reference.h"
#include "kernels/test_target.h"

namespace condense {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr float kInf = std::numeric_limits<float>::infinity();

class TokenCodesTest : public OneTargetTest {};

INSTANTIATE_TEST_SUITE_P(Targets, TokenCodesTest, ::testing::ValuesIn(AvailableTargets()),
                         [](const auto& param_info) { return param_info.param; });

std::vector<CodesCase> Cases() {
  std::vector<CodesCase> cases;
  for (int dim : {16, 48, 64, 80, 112, 128, 256}) {
    for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
      if (type == KvType::kQ8_0 && dim % 32 != 0) continue;
      cases.push_back({.n_segments = 3, .dim = dim, .n_nibbles = dim % 64 ? 8 : 16, .type = type});
    }
  }
  for (int spread : {1, 2, 9}) cases.push_back({.n_segments = 17, .spread = spread});
  return cases;
}

std::vector<double> KeyRow(CodedKeys& coded, int row) {
  return ReferenceRow(coded.Row(row), coded.shape.type, coded.shape.dim);
}

// y of a row in the i-th coded channel.
double ResidualY(CodedKeys& coded, const std::vector<double>& key, int row, size_t i) {
  const int c = coded.book.channel[i];
  const double off = key[static_cast<size_t>(c)] - coded.CentroidValue(row / kSegmentRows, c);
  return coded.book.weight[i] * off;
}

double Entry(const TokenCodebook& book, size_t i, int e) {
  return book.Entry(i * kNibbleEntries + static_cast<size_t>(e));
}

// The estimate with products that are not rounded, and the sum of its terms' magnitudes.
double ReferenceEstimate(CodedKeys& coded, int row, int head, double* magnitude) {
  const float* q = coded.q.data() + head * coded.shape.dim;
  double sum = 0;
  *magnitude = 0;
  const auto add = [&](double term) { sum += term, *magnitude += std::fabs(term); };
  for (int c = 0; c < coded.shape.dim; ++c)
    add(static_cast<double>(q[c]) * coded.CentroidValue(row / kSegmentRows, c));
  for (int n = 0; n < coded.book.n_nibbles; ++n) {
    for (size_t i = coded.book.first[n]; i < coded.book.first[n + 1]; ++i)
      add(q[coded.book.channel[i]] / coded.book.weight[i] *
          Entry(coded.book, i, coded.Code(row, n)));
  }
  *magnitude *= CodedKeys::kScale;
  return sum * CodedKeys::kScale;
}

TEST_P(TokenCodesTest, CentroidIsTheRoundedMean) {
  for (const CodesCase& shape : Cases()) {
    CodedKeys coded(shape);
    coded.Encode();
    for (int s = 0; s < shape.n_segments; ++s) {
      std::vector<double> mean(shape.dim), most(shape.dim);
      for (int r = s * kSegmentRows; r < (s + 1) * kSegmentRows; ++r) {
        const std::vector<double> key = KeyRow(coded, r);
        for (int c = 0; c < shape.dim; ++c) {
          mean[c] += key[c] / kSegmentRows;
          most[c] = std::max(most[c], std::fabs(key[c]));
        }
      }
      for (int c = 0; c < shape.dim; ++c) {
        ASSERT_NEAR(coded.CentroidValue(s, c), mean[c],
                    0.5 * coded.scales[s] * (1 + 1e-5) + 66 * kUnit * most[c]);
      }
    }
  }
}

TEST_P(TokenCodesTest, CodesNameTheNearestEntries) {
  for (const CodesCase& shape : Cases()) {
    CodedKeys coded(shape);
    coded.Encode();
    for (int row = 0; row < shape.n_segments * kSegmentRows; ++row) {
      const std::vector<double> key = KeyRow(coded, row);
      for (int n = 0; n < shape.n_nibbles; ++n) {
        double distance[kNibbleEntries] = {}, error = 0;
        for (size_t i = coded.book.first[n]; i < coded.book.first[n + 1]; ++i) {
          const double y = ResidualY(coded, key, row, i);
          const double size = std::fabs(key[coded.book.channel[i]]) * coded.book.weight[i];
          for (int e = 0; e < kNibbleEntries; ++e) {
            const double off = y - Entry(coded.book, i, e);
            distance[e] += off * off;
            error = std::max(error, 8 * kUnit * (size + std::fabs(y)) * (std::fabs(off) + size));
          }
        }
        const int code = coded.Code(row, n);
        const double* nearest = std::min_element(distance, distance + kNibbleEntries);
        ASSERT_LE(distance[code], *nearest * (1 + 1e-5) + 8 * error);
      }
    }
  }
}

TEST_P(TokenCodesTest, CodebooksAreWhole) {
  for (const CodesCase& shape : Cases()) {
    CodedKeys coded(shape);
    coded.Encode();
    const TokenCodebook& book = coded.book;
    ASSERT_EQ(book.first.size(), static_cast<size_t>(shape.n_nibbles) + 1);
    ASSERT_EQ(book.first[0], 0);
    ASSERT_EQ(book.first.back(), book.channel.size());
    ASSERT_EQ(book.weight.size(), book.channel.size());
    ASSERT_EQ(book.entries.size(), book.channel.size() * kNibbleEntries);
    std::set<int> channels;
    for (int n = 0; n < shape.n_nibbles; ++n) {
      ASSERT_GE(book.first[n + 1] - book.first[n], 1);
      ASSERT_LE(book.first[n + 1] - book.first[n], kNibbleChannels);
    }
    for (size_t i = 0; i < book.channel.size(); ++i) {
      ASSERT_LT(book.channel[i], shape.dim);
      ASSERT_TRUE(channels.insert(book.channel[i]).second);
      ASSERT_TRUE(std::isfinite(book.weight[i]) && book.weight[i] > 0);
      for (int e = 0; e < kNibbleEntries; ++e) ASSERT_TRUE(std::isfinite(Entry(book, i, e)));
    }
    ASSERT_GE(book.bytes(), book.entries.size() * sizeof(uint16_t));
  }
}

// A channel's error after coding is at most that of the quantiser the bits were given for, with
// room for made keys being no Gaussians: .3634 of the variance at one bit.
TEST_P(TokenCodesTest, CodesExplainMostOfTheVarianceTheyCode) {
  for (const CodesCase& shape : Cases()) {
    CodedKeys coded(shape);
    coded.Encode();
    double error = 0, total = 0;
    for (int row = 0; row < shape.n_segments * kSegmentRows; ++row) {
      const std::vector<double> key = KeyRow(coded, row);
      for (int n = 0; n < shape.n_nibbles; ++n) {
        for (size_t i = coded.book.first[n]; i < coded.book.first[n + 1]; ++i) {
          const double y = ResidualY(coded, key, row, i);
          const double off = y - Entry(coded.book, i, coded.Code(row, n));
          error += off * off, total += y * y;
        }
      }
    }
    ASSERT_LT(error, 0.4 * total) << shape.dim;
  }
}

// What reading an exponential off the exponent's bits may add to an estimate.
constexpr double kBow = 0.043;

TEST_P(TokenCodesTest, EstimatesAreTheSumsOfProductsWithinTheirSteps) {
  for (const CodesCase& shape : Cases()) {
    CodedKeys coded(shape);
    coded.Encode();
    coded.Step(shape.n_segments);
    const int n_rows = shape.n_segments * kSegmentRows;
    for (int h = 0; h < shape.n_heads; ++h) {
      const double step = coded.tables[h].step;
      for (int row = 0; row < n_rows; ++row) {
        double magnitude;
        const double expected = ReferenceEstimate(coded, row, h, &magnitude);
        ASSERT_NEAR(coded.Estimate(row, h), expected,
                    kBow + shape.n_nibbles * 0.5 * step + (shape.dim + 8) * kUnit * magnitude +
                        16 * kUnit * std::fabs(coded.tables[h].offset));
      }
      // No pair of nibbles can overflow a byte.
      for (int n = 0; n < shape.n_nibbles; n += 2) {
        const auto most = [&](int nibble) {
          const uint8_t* products = coded.tables[h].products[nibble];
          return *std::max_element(products, products + kNibbleEntries);
        };
        ASSERT_LE(most(n) + most(n + 1), 255);
      }
    }
  }
}

TEST_P(TokenCodesTest, WorthIsTheSumOfTheHeadsProbabilities) {
  for (int n_heads : {1, 2, 3, 4, 7}) {
    CodedKeys coded({.n_segments = 33, .n_heads = n_heads});
    coded.Encode();
    coded.Step(33);
    const size_t n_rows = coded.n_rows();
    std::vector<double> expected(n_rows);
    for (int h = 0; h < n_heads; ++h) {
      std::vector<double> p(n_rows);
      double sum = 0;
      for (size_t r = 0; r < n_rows; ++r)
        sum += p[r] = std::exp(coded.Estimate(static_cast<int>(r), h));
      for (size_t r = 0; r < n_rows; ++r) expected[r] += p[r] / sum;
    }
    ASSERT_EQ(coded.n_found, static_cast<int>(n_rows));
    for (size_t r = 0; r < n_rows; ++r) {
      ASSERT_EQ(coded.rows_found[r], static_cast<int>(r));
      ASSERT_NEAR(coded.worths[r], expected[r], 0x1p-11 * expected[r]);
    }
    // With a bound, those that reach it.
    const std::vector<float> worths = coded.worths;
    const float least = worths[100];
    const int n = coded.Collect(0, 33, least);
    int at = 0;
    for (size_t r = 0; r < n_rows; ++r) {
      if (worths[r] < least) continue;
      ASSERT_LT(at, n);
      ASSERT_EQ(coded.rows_found[static_cast<size_t>(at)], static_cast<int>(r));
      ASSERT_EQ(coded.worths[static_cast<size_t>(at++)], worths[r]);
    }
    ASSERT_EQ(at, n);
  }
}

// Far more than a float's exponent holds between the least and the largest.
TEST_P(TokenCodesTest, SharpHeadsNeitherOverflowNorVanish) {
  for (float size : {1.0f, 30.0f, 100.0f, 300.0f, 1e4f, 1e9f}) {
    CodedKeys coded({.n_segments = 5});
    for (float& value : coded.q) value *= size;
    coded.Encode();
    coded.Step(5);
    ASSERT_EQ(coded.n_found, 5 * kSegmentRows) << size;
    for (int i = 0; i < coded.n_found; ++i)
      ASSERT_TRUE(std::isfinite(coded.worths[static_cast<size_t>(i)])) << size;
    if (size > 100) continue;  // hundreds apart, rows far below the best are equal
    for (int h = 0; h < 3; ++h) {
      // The best row by its estimate is the one with the largest exponential.
      const auto best_of = [&](const auto& value) {
        int best = 0;
        for (int r = 1; r < 5 * kSegmentRows; ++r) best = value(r) > value(best) ? r : best;
        return best;
      };
      double magnitude;
      const auto reference = [&](int r) { return ReferenceEstimate(coded, r, h, &magnitude); };
      const int found = best_of([&](int r) { return coded.Estimate(r, h); });
      ASSERT_NEAR(reference(found), reference(best_of(reference)),
                  2 * kBow + 8 * coded.tables[static_cast<size_t>(h)].step);
    }
  }
}

// Bits that depend on neither the split of the segments nor the other heads.
TEST_P(TokenCodesTest, RangesAndGroupsChangeNoBit) {
  CodedKeys coded({.n_segments = 37, .n_heads = 19});
  coded.Encode();
  coded.Step(37);
  const std::vector<uint16_t> p = coded.p;
  const std::vector<float> worths = coded.worths, sums = coded.sums, q = coded.q;
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b, size_t n) {
    return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin());
  };
  for (int step : {1, 5, 16, 20}) {
    coded.Step(step);
    ASSERT_EQ(coded.p, p);
    for (size_t h = 0; h < 19; ++h) {
      const auto at = static_cast<std::ptrdiff_t>(h * coded.scales.size());
      ASSERT_TRUE(std::equal(sums.begin() + at, sums.begin() + at + 37, coded.sums.begin() + at));
    }
    ASSERT_TRUE(same(coded.worths, worths, coded.n_rows()));
  }
  const size_t n_rows = coded.n_rows();
  coded.shape.n_heads = 1;
  for (size_t h = 0; h < 19; ++h) {
    std::copy_n(q.begin() + static_cast<std::ptrdiff_t>(h * 64), 64, coded.q.begin());
    coded.Step(37);
    ASSERT_TRUE(std::equal(coded.p.begin(), coded.p.end(),
                           p.begin() + static_cast<std::ptrdiff_t>(h * n_rows)));
  }
}

TEST_P(TokenCodesTest, HiddenRowsGetNothingAndChangeNoOther) {
  CodedKeys coded({.n_segments = 9});
  coded.Encode();
  coded.Step(9);
  std::vector<float> p;
  for (int h = 0; h < 3; ++h) {
    for (int r = 0; r < 9 * kSegmentRows; ++r) p.push_back(coded.P(r, h));
  }
  std::mt19937 random(4);
  RowMask visible(9 * 4);
  for (uint16_t& word : visible) word = static_cast<uint16_t>(random());
  std::fill(visible.begin() + 8, visible.begin() + 16, 0);
  std::fill(visible.begin() + 20, visible.begin() + 24, 0xFFFF);
  coded.Step(2, visible.data());
  ASSERT_EQ(coded.n_found, CountRows(visible));
  const size_t n_rows = coded.n_rows();
  int at = 0;
  for (size_t r = 0; r < n_rows; ++r) {
    const bool counts = HasRow(visible, static_cast<int>(r));
    for (size_t h = 0; h < 3; ++h)
      ASSERT_EQ(coded.P(static_cast<int>(r), static_cast<int>(h)), counts ? p[h * n_rows + r] : 0);
    if (counts) {
      ASSERT_EQ(coded.rows_found[static_cast<size_t>(at++)], static_cast<int>(r));
    }
  }
  std::fill(visible.begin(), visible.end(), 0);
  coded.Step(9, visible.data());
  for (float max : coded.max) ASSERT_EQ(max, -kInf);
  ASSERT_EQ(coded.n_found, 0);
}

TEST_P(TokenCodesTest, SoftCapBoundsEstimates) {
  for (float cap : {0.5f, 50.0f, 400.0f}) {
    CodedKeys coded({.n_segments = 3});
    coded.Encode();
    coded.Step(3);
    std::vector<double> plain;
    for (int r = 0; r < 3 * kSegmentRows; ++r) plain.push_back(coded.Estimate(r, 1));
    coded.Step(3, nullptr, cap);
    const bool vanish = cap > 100;  // all are far from what the cap would let through
    for (int r = 0; r < 3 * kSegmentRows; ++r) {
      const double expected = cap * std::tanh(plain[static_cast<size_t>(r)] / cap);
      if (vanish) {
        ASSERT_GT(coded.P(r, 0), 0);
      } else {
        ASSERT_NEAR(coded.Estimate(r, 1), expected, 2 * kBow + 1e-3);
      }
    }
  }
}

void ExpectFinite(const CodedKeys& coded) {
  for (int i = 0; i < coded.n_found; ++i)
    EXPECT_TRUE(std::isfinite(coded.worths[static_cast<size_t>(i)]));
}

TEST_P(TokenCodesTest, WhatIsNotFiniteShowsAndNeverCrashes) {
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
    CodedKeys coded({.n_segments = 18, .type = type});
    std::fill_n(coded.Row(70), KvBytes(type, 64), std::byte{0xFF});  // NaN
    if (type == KvType::kF32) {
      const float inf = kInf, large = 3e38f;
      std::memcpy(coded.Row(3 * kSegmentRows), &inf, 4);
      for (int r = 0; r < kSegmentRows; ++r)
        std::memcpy(coded.Row(5 * kSegmentRows + r), &large, 4);
    }
    coded.Encode();
    EXPECT_TRUE(std::isnan(coded.scales[1]));
    if (type == KvType::kF32) {
      EXPECT_TRUE(std::isnan(coded.scales[3]));
      EXPECT_TRUE(std::isnan(coded.scales[5]));
    }
    EXPECT_TRUE(std::isfinite(coded.scales[0]));
    for (uint16_t entry : coded.book.entries) ASSERT_TRUE(std::isfinite(F32FromBF16(entry)));
    coded.Step(4);
    EXPECT_FALSE(coded.Shares());
    // Hidden, the segments do no harm.
    RowMask visible(18 * 4, 0xFFFF);
    for (int s : {1, 3, 5}) std::fill_n(visible.begin() + 4 * s, 4, 0);
    coded.Step(4, visible.data());
    for (float max : coded.max) EXPECT_TRUE(std::isfinite(max));
    ASSERT_GT(coded.n_found, 0);
    ExpectFinite(coded);
    for (float value : {kInf, -kInf, std::nanf("")}) {
      coded.q[65] = value;  // of head 1
      coded.Step(4, visible.data());
      EXPECT_FALSE(coded.Shares());
      EXPECT_TRUE(std::isfinite(coded.max[0]));
      EXPECT_TRUE(std::isnan(coded.max[1]));
    }
  }
}

TEST_P(TokenCodesTest, KeysThatDoNotVaryAreTheirCentroid) {
  for (int n_varying : {0, 1, 3, 7}) {
    CodedKeys coded({.n_segments = 4, .type = KvType::kF32});
    std::mt19937 random(2);
    for (int r = 0; r < 4 * kSegmentRows; ++r) {
      float row[64];
      for (int c = 0; c < 64; ++c)
        row[c] = c < n_varying ? RoughNormal(random) : static_cast<float>(c % 3 - 1);
      std::memcpy(coded.Row(r), row, sizeof(row));
    }
    coded.Encode();
    for (uint8_t channel : coded.book.channel) {
      // With few channels that vary, bits are left over; the rounded centroid leaves a constant
      // in the others, which has no variance.
      EXPECT_LT(channel, std::max(n_varying, 1));
    }
    coded.Step(4);
    ASSERT_EQ(coded.n_found, 4 * kSegmentRows);
    for (size_t r = 0; n_varying == 0 && r < coded.n_rows(); ++r)
      ASSERT_NEAR(coded.worths[r], 3.0 / (4 * kSegmentRows), 1e-5);
    ExpectFinite(coded);
  }
}

TEST_P(TokenCodesTest, ZeroKeysAndTinyKeysAreHarmless) {
  for (float size : {0.0f, 1e-45f, 1e-40f, 1e-37f, 1e-20f, 1e18f}) {
    CodedKeys coded({.n_segments = 2, .type = KvType::kF32});
    for (int r = 0; r < 2 * kSegmentRows; ++r) {
      float row[64];
      std::memcpy(row, coded.Row(r), sizeof(row));
      for (float& value : row) value *= size;
      std::memcpy(coded.Row(r), row, sizeof(row));
    }
    coded.Encode();
    coded.Step(1);
    for (uint16_t entry : coded.book.entries) ASSERT_TRUE(std::isfinite(F32FromBF16(entry)));
    for (float max : coded.max) ASSERT_TRUE(std::isfinite(max)) << size;
    ASSERT_EQ(coded.n_found, 2 * kSegmentRows);
    ExpectFinite(coded);
  }
}

TEST_P(TokenCodesTest, MomentsWithoutMeaningWeighAllChannelsAlike) {
  CodedKeys coded({.n_segments = 3});
  std::vector<float>& moment = coded.moment;
  coded.Encode();
  const TokenCodebook weighed = coded.book;
  for (float& value : moment) value *= 1024;
  coded.Encode();
  EXPECT_EQ(coded.book.entries, weighed.entries);  // any unit will do
  moment.assign(moment.size(), 1);
  coded.Encode();
  const TokenCodebook alike = coded.book;
  for (float value : {0.0f, kInf, std::nanf("")}) {
    moment.assign(moment.size(), value);
    coded.Encode();
    EXPECT_EQ(coded.book.channel, alike.channel);
  }
  // A channel that no query uses is coded last, if at all; one that they use most, first.
  moment.assign(moment.size(), 0);
  moment[63] = 1;
  coded.Encode();
  EXPECT_NE(std::find(coded.book.channel.begin(), coded.book.channel.end(), 63),
            coded.book.channel.end());
}

TEST_P(TokenCodesTest, TrainingWithoutASampleCodesNothing) {
  CodedKeys coded({.n_segments = 2});
  coded.Encode();
  TrainArgs train;
  train.keys = coded.keys, train.centroids = coded.centroids.data();
  train.centroid_scales = coded.scales.data();
  const TokenCodebook book = TrainCodebook(train);
  EXPECT_TRUE(book.channel.empty());
  EXPECT_EQ(book.n_nibbles, 8);
  std::vector<uint8_t> codes(CodeBytes(1, 8), 0xFF);
  EncodeSegment(book, coded.Segment(0), coded.Tile(0), 0, coded.scales[0], codes.data());
  EXPECT_EQ(codes, std::vector<uint8_t>(codes.size(), 0));
}

// Whatever the variances are, the bits are packed: every nibble is used where enough channels vary.
TEST(TokenCodebookTest, AnyVariancesPack) {
  EXPECT_TRUE(rc::check("packs", [] {
    const int dim = 16 * *rc::gen::inRange(1, 9);
    const int n_nibbles = *rc::gen::element(8, 16);
    const auto exponents =
        *rc::gen::container<std::vector<int>>(static_cast<size_t>(dim), rc::gen::inRange(-12, 13));
    CodedKeys coded({.n_segments = 2, .dim = dim, .n_nibbles = n_nibbles, .type = KvType::kF32});
    for (int r = 0; r < 2 * kSegmentRows; ++r) {
      for (int c = 0; c < dim; ++c) {
        float value;
        std::memcpy(&value, coded.Row(r) + 4 * c, 4);
        value = std::ldexp(value, exponents[static_cast<size_t>(c)] / 2);
        std::memcpy(coded.Row(r) + 4 * c, &value, 4);
      }
    }
    coded.Encode();
    for (int n = 0; n < n_nibbles; ++n) {
      const int n_channels = coded.book.first[n + 1] - coded.book.first[n];
      RC_ASSERT(n_channels >= 1 && n_channels <= kNibbleChannels);
    }
  }));
}

}  // namespace
}  // namespace condense
