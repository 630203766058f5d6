#include "cache/row_copies.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kernels/quantize.h"
#include "kernels/test_case.h"

namespace condense {
namespace {

constexpr int kHeads = 3;

struct MadeRows {
  explicit MadeRows(int n_rows, int dim = 64, KvType type = KvType::kF16) {
    view.k_type = view.v_type = type;
    view.n_rows = n_rows, view.n_kv_heads = kHeads;
    view.k_dim = view.v_dim = dim;
    for (int r = 0; r < n_rows; ++r) {
      AppendStored(Row(), type, k);
      AppendStored(Row(), type, v);
    }
    view.k = k.data(), view.v = v.data();
    view.k_head = view.v_head = KvBytes(type, dim);
    view.k_row = view.v_row = kHeads * view.k_head;
  }
  std::vector<float> Row() {
    std::normal_distribution<float> normal;
    std::vector<float> row(static_cast<size_t>(kHeads) * view.k_dim);
    for (float& x : row) x = normal(random);
    return row;
  }
  void Rewrite(int row) {
    std::vector<std::byte> bytes;
    AppendStored(Row(), view.k_type, bytes);
    std::copy(bytes.begin(), bytes.end(), k.begin() + row * view.k_row);
    std::copy(bytes.begin(), bytes.end(), v.begin() + row * view.v_row);
  }

  std::mt19937 random{6};
  KvView view;
  std::vector<std::byte> k, v;
};

RowMask Rows(int n_rows, std::vector<RowRange> ranges) {
  RowMask mask(BlocksFor(n_rows), 0);
  for (RowRange range : ranges) AddRange(mask, range);
  return mask;
}

// Of both, every head.
bool AreCopies(const RowCopies& copies, const KvView& view, int row) {
  const KvView copied = copies.View(view);
  std::vector<std::byte> expected(copied.KeyBytes());
  for (int h = 0; h < kHeads; ++h) {
    QuantizeRow(view.KeyRow(h, row), view.k_type, view.k_dim, expected.data());
    if (std::memcmp(copied.KeyRow(h, row), expected.data(), expected.size()) != 0) return false;
    QuantizeRow(view.ValueRow(h, row), view.v_type, view.v_dim, expected.data());
    if (std::memcmp(copied.ValueRow(h, row), expected.data(), expected.size()) != 0) return false;
  }
  return true;
}

TEST(RowCopiesTest, CopiesVisibleRowsOnceAndWrittenOnesAgain) {
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
    MadeRows rows(700, 96, type);
    RowCopies copies;
    const RowMask some = Rows(700, {{0, 300}, {310, 600}});
    copies.Refresh(rows.view, some, 1);
    EXPECT_EQ(copies.n_copied(), 590u);
    for (int row : {0, 15, 299, 310, 599}) EXPECT_TRUE(AreCopies(copies, rows.view, row)) << row;
    copies.Refresh(rows.view, some, 1);
    EXPECT_EQ(copies.n_copied(), 590u);
    rows.Rewrite(17);
    rows.Rewrite(305);
    for (int row : {17, 305, 5000}) copies.MarkWritten(row);
    copies.Refresh(rows.view, Rows(700, {{0, 306}}), 1);
    EXPECT_EQ(copies.n_copied(), 590u + 1 + 6);
    for (int row : {16, 17, 305}) EXPECT_TRUE(AreCopies(copies, rows.view, row)) << row;
    copies.Forget();
    copies.Refresh(rows.view, some, 1);
    EXPECT_EQ(copies.n_copied(), 597u + 590);
  }
}

TEST(RowCopiesTest, GrowsWithTheView) {
  MadeRows rows(1000);
  RowCopies copies;
  KvView view = rows.view;
  for (int n : {250, 500, 999, 1000}) {
    view.n_rows = n;
    copies.Refresh(view, Rows(n, {{0, n}}), 2);
    EXPECT_EQ(copies.n_copied(), static_cast<uint64_t>(n));
    EXPECT_TRUE(AreCopies(copies, view, 0));
    EXPECT_TRUE(AreCopies(copies, view, n - 1));
  }
  // 34 of 64 bytes, and up to an eighth in reserve.
  const double share = static_cast<double>(copies.bytes()) / static_cast<double>(rows.k.size() * 2);
  EXPECT_GT(share, 34.0 / 64);
  EXPECT_LT(share, 34.0 / 64 * 1.2);
}

TEST(RowCopiesTest, ThreadsChangeNothing) {
  MadeRows rows(1000);
  RowCopies one, two;
  one.Refresh(rows.view, Rows(1000, {{0, 1000}}), 1);
  two.Refresh(rows.view, Rows(1000, {{0, 1000}}), 2);
  const size_t n_bytes = one.View(rows.view).k_row * 1000;
  EXPECT_EQ(std::memcmp(one.View(rows.view).k, two.View(rows.view).k, n_bytes), 0);
  EXPECT_EQ(std::memcmp(one.View(rows.view).v, two.View(rows.view).v, n_bytes), 0);
}

TEST(RowCopiesTest, WhatIsNotCopiedIsReadWhereItIs) {
  MadeRows rows(100, 64, KvType::kQ8_0), narrow(100, 80);
  for (MadeRows* each : {&rows, &narrow}) {
    RowCopies copies;
    copies.Refresh(each->view, Rows(100, {{0, 100}}), 1);
    EXPECT_EQ(copies.n_copied(), 0u);
    EXPECT_EQ(copies.View(each->view).k, each->view.k);
    EXPECT_EQ(copies.View(each->view).v_type, each->view.v_type);
    EXPECT_LT(copies.bytes(), 100u);
  }
  // Keys alone.
  MadeRows half(100);
  half.view.v_type = KvType::kQ8_0;
  RowCopies copies;
  copies.Refresh(half.view, Rows(100, {{0, 100}}), 1);
  EXPECT_EQ(copies.View(half.view).k_type, KvType::kQ8_0);
  EXPECT_NE(copies.View(half.view).k, half.view.k);
  EXPECT_EQ(copies.View(half.view).v, half.view.v);
}

}  // namespace
}  // namespace condense
