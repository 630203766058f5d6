// The policy `condense` where it reads less than its budget's best rows: codes of some segments,
// rows up to a share of the mass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cache/code_index.h"
#include "kernels/half.h"
#include "select/row_cache.h"
#include "select/row_parts.h"
#include "select/test_choice.h"

namespace condense {
namespace {

// Rows chosen by their codes: neither read always nor loose.
int CountChosen(RowCache& cache, const uint16_t* mask, const Selection& selection,
                std::vector<int>* by_segment = nullptr) {
  RowParts parts;
  FindRowParts(cache.Query(), 1, 64, parts);
  int n = 0;
  for (int r = 0; r < selection.n_blocks * kBlockRows; ++r) {
    if (!HasRow(Rows(mask, selection), r) || !HasRow(parts.coded, r)) continue;
    ++n;
    if (by_segment != nullptr) ++by_segment->at(r / kSegmentRows);
  }
  return n;
}

TEST(CondenseScanTest, RowsComeFromTheSegmentsAskedForAndWithinTheBudget) {
  RowCache cache({.n_rows = 8192});
  for (const auto& [spec, n_most] : {std::pair{"condense:budget=8%,scan=50%", 64},
                                     {"condense:budget=8%,scan=25%", 32},
                                     {"condense:budget=8%,scan=10%", 13}}) {
    const Selection selection = Select(cache, spec);
    ASSERT_FALSE(selection.dense);
    EXPECT_EQ(selection.summary_bytes, 2 * CodeIndex::ScanBytes(8, 64, 127, n_most)) << spec;
    double bytes = static_cast<double>(selection.summary_bytes);
    for (int g = 0; g < 2; ++g) {
      std::vector<int> by_segment(128, 0);
      const int n = CountChosen(cache, selection.KMask(g), selection, &by_segment);
      EXPECT_GT(n, 300) << spec;
      EXPECT_LE(128 - std::count(by_segment.begin(), by_segment.end(), 0), n_most) << spec;
      bytes += 128.0 * CountRows(Rows(selection.KMask(g), selection));
      bytes += 128.0 * CountRows(Rows(selection.VMask(g), selection));
    }
    EXPECT_LE(bytes, 0.08 * 8192 * 2 * 256);
  }
}

TEST(CondenseScanTest, TheWholeScanIsTheDefault) {
  RowCache cache({}), same({});
  EXPECT_TRUE(
      Same(Select(cache, "condense:budget=8%"), Select(same, "condense:budget=8%,scan=100%")));
}

TEST(CondenseScanTest, ASegmentThatIsLookedForIsFound) {
  RowCache cache({.n_rows = 8192, .n_kv_heads = 1, .group = 2});
  // What a whole segment has in common shows in its centroid.
  for (int r = 3200; r < 3264; ++r) cache.Rewrite(r, 7, 1.5f);
  cache.LookFor(1, {3210});
  const Selection selection = Select(cache, "condense:budget=5%,scan=10%");
  ASSERT_FALSE(selection.dense);
  for (int r = 3200; r < 3264; ++r)
    EXPECT_TRUE(HasRow(Rows(selection.VMask(0), selection), r)) << r;
}

TEST(CondenseScanTest, FewerRowsThanTheBudgetBuysAreAllRead) {
  RowCache cache({.n_rows = 8192});
  const Selection selection = Select(cache, "condense:budget=20%,scan=1%");
  ASSERT_FALSE(selection.dense);
  for (int g = 0; g < 2; ++g) {
    const int n = CountChosen(cache, selection.KMask(g), selection);
    EXPECT_GE(n, 2 * 64 - 1);  // row 0 is read always
    EXPECT_LE(n, 2 * 64);
    EXPECT_LE(CountChosen(cache, selection.VMask(g), selection), n);
  }
}

TEST(CondenseScanTest, WhatIsNotFiniteIsDense) {
  RowCache cache({});
  const uint16_t half = F16FromF32Saturated(std::numeric_limits<float>::quiet_NaN());
  std::memcpy(cache.KeyBytes(700), &half, sizeof(half));
  EXPECT_EQ(Select(cache, "condense:budget=8%,scan=30%").reason, Fallback::kNan);
  EXPECT_EQ(Select(cache, "condense:budget=8%,mass=90%").reason, Fallback::kNan);
}

TEST(CondenseFewerTest, ThreadsChangeNothing) {
  for (const char* spec : {"condense:budget=9%,scan=30%", "condense:budget=30%,mass=80%",
                           "condense:budget=30%,scan=60%,mass=60%"}) {
    RowCache one({.n_kv_heads = 3}), two({.n_kv_heads = 3});
    for (int step = 0; step < 3; ++step) {
      const Selection a = Select(one, spec, 1), b = Select(two, spec, 2);
      ASSERT_FALSE(a.dense);
      EXPECT_TRUE(Same(a, b)) << spec;
    }
  }
}

TEST(CondenseMassTest, RowsEndWhereTheMassIsKept) {
  RowCache cache({.n_rows = 8192});
  int last = 0;
  for (const int percent : {30, 50, 70, 80}) {
    const Selection selection =
        Select(cache, "condense:budget=90%,split=1,mass=" + std::to_string(percent) + "%");
    ASSERT_FALSE(selection.dense);
    int n_all = 0;
    for (int g = 0; g < 2; ++g) {
      const std::vector<double> worth = cache.Worth(g);  // 3 heads' shares
      double kept = 0;
      for (int r = 0; r < 8192; ++r) {
        if (HasRow(Rows(selection.KMask(g), selection), r)) kept += worth[r] / 3;
      }
      // The estimate's mass is not the exact one.
      EXPECT_NEAR(kept, percent / 100.0, 0.08) << g;
      n_all += CountChosen(cache, selection.KMask(g), selection);
      EXPECT_EQ(CountRows(Rows(selection.KMask(g), selection)),
                CountRows(Rows(selection.VMask(g), selection)));
    }
    EXPECT_GT(n_all, last);
    last = n_all;
  }
}

TEST(CondenseMassTest, HeadsThatNeedFewRowsReadFew) {
  RowCache cache({.n_rows = 8192, .n_kv_heads = 2, .group = 1});
  cache.Rewrite(3000, 1, 3.0f);
  cache.LookFor(0, {3000});
  const Selection selection = Select(cache, "condense:budget=20%,mass=90%");
  ASSERT_FALSE(selection.dense);
  const int few = CountChosen(cache, selection.KMask(0), selection);
  const int many = CountChosen(cache, selection.KMask(1), selection);
  EXPECT_TRUE(HasRow(Rows(selection.VMask(0), selection), 3000));
  // By how much, the codebook says: it knows no rows so far apart.
  EXPECT_LT(few, many);
  EXPECT_GE(few, 1);
}

TEST(CondenseMassTest, TheBudgetIsTheMost) {
  RowCache cache({.n_rows = 8192}), same({.n_rows = 8192});
  // No row set apart: 8 % of the bytes keep less than 99 % of the mass.
  EXPECT_TRUE(
      Same(Select(cache, "condense:budget=8%"), Select(same, "condense:budget=8%,mass=99%")));
}

}  // namespace
}  // namespace condense
