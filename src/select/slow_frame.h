// The rules of block policies as loops in double, for tests: moments of a block's keys, and what a
// frame of an anchor, a window and r blocks reads. Shares no code with the frame. Rows 0 … n are
// visible.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <vector>

#include "base/row_mask.h"
#include "gtest/gtest.h"
#include "kernels/half.h"
#include "select/test_cache.h"

namespace condense {

// Of the keys of a TestCache; variances rounded as summaries are stored.
class SlowMoments {
 public:
  SlowMoments(TestCache& cache, int dim)
      : cache_(cache), dim_(dim), scale_(static_cast<double>(cache.Query().scale)) {}

  double Mean(int head, int kv_head, int block) const {
    double sum = 0;
    for (int c = 0; c < dim_; ++c) sum += Q(head, c) * ChannelMean(kv_head, block, c);
    return scale_ * sum;
  }
  // scale² Σ_t (Σ_{i∈t} q_i²) D_t
  double Variance(int head, int kv_head, int block, int groups) const {
    double sum = 0;
    for (int t = 0; t < groups; ++t) {
      double squares = 0;
      for (int c = t * dim_ / groups; c < (t + 1) * dim_ / groups; ++c)
        squares += Q(head, c) * Q(head, c);
      sum += squares * GroupVariance(kv_head, block, t, groups);
    }
    return scale_ * scale_ * sum;
  }
  // scale ‖q‖ times the root of the mean variance
  double Offset(int head, int kv_head, int block) const {
    double squares = 0;
    for (int c = 0; c < dim_; ++c) squares += Q(head, c) * Q(head, c);
    return scale_ * std::sqrt(squares * GroupVariance(kv_head, block, 0, 1));
  }
  // scale Σ_i |q_i| std_i
  double AbsOffset(int head, int kv_head, int block) const {
    double sum = 0;
    for (int c = 0; c < dim_; ++c)
      sum += std::fabs(Q(head, c)) * Stored(std::sqrt(ChannelVariance(kv_head, block, c)));
    return scale_ * sum;
  }

 private:
  static double Stored(double value) {
    return F32FromF16(F16FromF32Saturated(static_cast<float>(value)));
  }
  double Q(int head, int channel) const { return cache_.QueryHead(head)[channel]; }
  double ChannelMean(int kv_head, int block, int channel) const {
    double sum = 0;
    for (int r = 0; r < kBlockRows; ++r)
      sum += cache_.Key(kv_head, block * kBlockRows + r)[channel];
    return sum / kBlockRows;
  }
  double ChannelVariance(int kv_head, int block, int channel) const {
    const double mean = ChannelMean(kv_head, block, channel);
    double sum = 0;
    for (int r = 0; r < kBlockRows; ++r) {
      const double off = cache_.Key(kv_head, block * kBlockRows + r)[channel] - mean;
      sum += off * off;
    }
    return sum / kBlockRows;
  }
  double GroupVariance(int kv_head, int block, int group, int groups) const {
    double sum = 0;
    const int n = dim_ / groups;
    for (int c = group * n; c < (group + 1) * n; ++c) sum += ChannelVariance(kv_head, block, c);
    return Stored(sum / n);
  }

  TestCache& cache_;
  const int dim_;
  const double scale_;
};

class SlowFrame {
 public:
  SlowFrame(int n_visible, int anchor, int window)
      : n_(n_visible), anchor_(anchor), window_start_(n_visible - window) {
    for (int b = 0; (b + 1) * kBlockRows <= n_; ++b) {
      if (Gain(b) > 0) candidates_.push_back(b);
    }
  }

  const std::vector<int>& candidates() const { return candidates_; }
  bool IsRead(int row) const {
    return row < anchor_ || row >= window_start_ || row >= n_ / kBlockRows * kBlockRows;
  }
  // Rows that choosing a block adds.
  int Gain(int block) const {
    int n = 0;
    for (int row = block * kBlockRows; row < (block + 1) * kBlockRows; ++row)
      n += row < n_ && !IsRead(row);
    return n;
  }

  // One score a candidate over some heads: the greatest, or (masses, several heads) the sum of
  // each head's softmax over the candidates.
  template <class Score>
  std::map<int, double> OverHeads(int first, int n_heads, bool mass, const Score& score) const {
    std::map<int, double> total;
    for (int h = first; h < first + n_heads; ++h) {
      std::map<int, double> of_head;
      double sum = 0;
      for (int b : candidates_) sum += std::exp(of_head[b] = score(h, b));
      for (const auto& [b, z] : of_head) {
        if (mass) {
          total[b] += std::exp(z) / sum;
        } else {
          total[b] = h == first ? z : std::max(total[b], z);
        }
      }
    }
    return total;
  }

  // Always-read rows and r blocks, none of the others better than any of them; near ties pass.
  void ExpectBest(const std::map<int, double>& scores, int r,
                  std::span<const uint16_t> mask) const {
    double least = INFINITY, best_left = -INFINITY;
    int n_chosen = 0;
    for (int b : candidates_) {
      int n_read = 0;
      for (int row = b * kBlockRows; row < (b + 1) * kBlockRows; ++row)
        n_read += HasRow(mask, row) && !IsRead(row);
      ASSERT_TRUE(n_read == 0 || n_read == Gain(b)) << "block " << b;
      n_chosen += n_read > 0;
      if (n_read > 0) least = std::min(least, scores.at(b));
      if (n_read == 0) best_left = std::max(best_left, scores.at(b));
    }
    for (int row = 0; row < n_; ++row) {
      ASSERT_TRUE(!IsRead(row) || HasRow(mask, row)) << row;
    }
    EXPECT_EQ(n_chosen, r);
    EXPECT_GE(least, best_left - 1e-5 * std::fabs(best_left));
  }

 private:
  const int n_, anchor_, window_start_;
  std::vector<int> candidates_;
};

}  // namespace condense
