#include "cache/query_moment.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace condense {
namespace {

constexpr int kDim = 32, kQueryHeads = 6, kKvHeads = 2, kMostRows = 240;

// 300 rows of whole numbers.
class MadeQueries {
 public:
  MadeQueries() : q_(size_t{300} * kQueryHeads * kDim) {
    std::mt19937 random(5);
    for (float& x : q_) x = static_cast<float>(random() % 17) - 8.0f;
  }
  double At(int row, int head, int channel) const {
    return q_[(row * kQueryHeads + head) * kDim + channel];
  }
  // Of the rows first … end - 1.
  void AddTo(QueryMoment& moment, int first, int end, bool products = false) const {
    std::vector<int> rows(end - first);
    std::iota(rows.begin(), rows.end(), first);
    QueryRows queries;
    queries.q = reinterpret_cast<const std::byte*>(q_.data());
    queries.q_head = sizeof(float) * kDim;
    queries.q_row = queries.q_head * kQueryHeads;
    queries.rows = rows;
    queries.n_heads = kQueryHeads;
    queries.k_dim = kDim;
    moment.Add(queries, kKvHeads, kMostRows, products);
  }
  // Mean over rows 60 … 299 of a KV head's queries' products of two channels.
  double Expected(int kv_head, int i, int j) const {
    double sum = 0;
    for (int row = 60; row < 300; ++row) {
      for (int h = 3 * kv_head; h < 3 * (kv_head + 1); ++h) sum += At(row, h, i) * At(row, h, j);
    }
    return sum / (240 * 3);
  }

 private:
  std::vector<float> q_;
};

TEST(QueryMomentTest, KeepsTheLastRows) {
  const MadeQueries queries;
  QueryMoment last, more, pieces;
  queries.AddTo(last, 60, 300);
  queries.AddTo(more, 0, 300);
  EXPECT_EQ(more.n_rows, 240);
  EXPECT_EQ(last.mean, more.mean);
  const double expected = queries.Expected(1, 3, 3);
  EXPECT_NEAR(last.mean[kDim + 3], expected, 1e-3);
  queries.AddTo(pieces, 0, 100);
  queries.AddTo(pieces, 100, 200);
  EXPECT_EQ(pieces.n_rows, 200);
  queries.AddTo(pieces, 200, 300);
  EXPECT_EQ(pieces.n_rows, 240);
  EXPECT_NEAR(pieces.mean[kDim + 3], expected, 0.1 * expected);
}

TEST(QueryMomentTest, ProductsAreOfTheLastRowsAndOnlyWhereAskedFor) {
  const MadeQueries queries;
  QueryMoment moment, once;
  queries.AddTo(moment, 0, 300);
  EXPECT_TRUE(moment.products.empty());
  queries.AddTo(moment, 0, 100, true);
  EXPECT_EQ(moment.n_product_rows, 100);
  queries.AddTo(moment, 0, 300, true);
  queries.AddTo(once, 60, 300, true);
  EXPECT_EQ(moment.n_product_rows, 240);
  EXPECT_EQ(moment.mean, once.mean);
  for (int h = 0; h < kKvHeads; ++h) {
    for (int i = 0; i < kDim; ++i) {
      for (int j = i; j < kDim; ++j) {
        const double expected = queries.Expected(h, i, j);
        ASSERT_NEAR(once.products[(h * kDim + i) * kDim + j], expected, 1e-3);
        ASSERT_NEAR(moment.products[(h * kDim + i) * kDim + j], expected, 1e-3);
      }
    }
  }
  queries.AddTo(once, 0, 1);
  EXPECT_TRUE(once.products.empty());
  EXPECT_EQ(once.n_product_rows, 0);
}

}  // namespace
}  // namespace condense
