// What attention of any AttendArgs must give: the double reference, with bounds from n, epsilon and
// magnitude. For tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attend.h"
#include "kernels/half.h"
#include "kernels/reference.h"

namespace condense {

inline constexpr double kUnit = 0x1p-24;  // rounding error of one FP32 operation, relative
inline constexpr double kTiny = 512e-37;  // what flushed exponentials may add up to

inline uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

inline ::testing::AssertionResult SameBits(const std::vector<float>& a,
                                           const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < a.size(); ++i) {
    if (Bits(a[i]) != Bits(b[i]))
      return ::testing::AssertionFailure() << "at " << i << ": " << a[i] << ", " << b[i];
  }
  return ::testing::AssertionSuccess();
}

// Bound of a logit's error: a chain of k_dim / 2 multiply-adds, rounded twice each where they are
// not fused; for q8_0, half a step of the query a channel.
inline double LogitBound(const AttendArgs& args, int query, int row) {
  const std::vector<double> k =
      ReferenceRow(args.k + CacheRow(args, row) * args.k_stride, args.k_type, args.k_dim);
  double magnitude = 0;
  for (int c = 0; c < args.k_dim; ++c)
    magnitude += std::fabs(k[c] * args.q[query * args.k_dim + c]);
  magnitude *= args.scale;
  const int n_terms = args.k_dim / 2 + 3;  // one of the two chains, and its end
  double bound = n_terms * kUnit * magnitude;
  if (args.k_type == KvType::kQ8_0) {  // the query in 16-bit steps per 32 channels
    for (int block = 0; block < args.k_dim; block += 32) {
      double most = 0, keys = 0;
      for (int c = block; c < block + 32; ++c) {
        most = std::max(most, std::fabs(double{args.q[query * args.k_dim + c]}));
        keys += std::fabs(k[c]);
      }
      bound += args.scale * most / 65534 * keys;
    }
  }
  if (args.softcap > 0) bound += 16 * kUnit * args.softcap;
  if (args.bias != nullptr)
    bound += kUnit * (magnitude + std::fabs(F32FromF16(args.bias[query][row])));
  return bound;
}

struct Expected {
  std::vector<ReferenceState> states;
  std::vector<double> logit_bound;  // largest over the query's rows
};

inline Expected Expect(const AttendArgs& args) {
  Expected expected{ReferenceAttend(args), std::vector<double>(args.n_queries, 0)};
  for (int query = 0; query < args.n_queries; ++query) {
    for (int row = 0; row < args.n_blocks * kBlockRows; ++row) {
      if (!((args.masks[query][row / 16] >> (row % 16)) & 1)) continue;
      expected.logit_bound[query] =
          std::max(expected.logit_bound[query], LogitBound(args, query, row));
    }
  }
  return expected;
}

// Relative error of exp(logit - max) sums over n rows: both logits, the subtraction, the
// exponential, n additions.
inline double SumBound(double logit_bound, int n) { return 2 * logit_bound + (96 + 8 + n) * kUnit; }

inline void ExpectClose(const AttendArgs& args, const Expected& expected) {
  const int n_rows = args.n_blocks * kBlockRows;
  for (int query = 0; query < args.n_queries; ++query) {
    const ReferenceState& state = expected.states[query];
    if (state.sum == 0) {
      EXPECT_EQ(args.max[query], -std::numeric_limits<float>::infinity());
      EXPECT_EQ(args.sum[query], 0);
      EXPECT_EQ(args.sum_v[query], 0);
    } else {
      const double bound = SumBound(expected.logit_bound[query], n_rows);
      ASSERT_NEAR(args.max[query], state.max, expected.logit_bound[query]) << "query " << query;
      ASSERT_NEAR(args.sum[query], state.sum, bound * state.sum) << "query " << query;
      ASSERT_NEAR(args.sum_v[query], state.sum_v, bound * state.sum_v + kTiny) << "query " << query;
    }
    const double bound = SumBound(expected.logit_bound[query], n_rows);
    for (int c = 0; c < args.v_dim; ++c) {
      ASSERT_NEAR(args.o[query * args.v_dim + c], state.o[c], bound * state.o_abs[c] + kTiny)
          << "query " << query << ", channel " << c;
    }
  }
}

}  // namespace condense
