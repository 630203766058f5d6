// Fixed patterns against their definitions, position by position; windows by layer.
#include <set>

#include "gtest/gtest.h"
#include "select/test_cache.h"
#include "select/test_choice.h"

namespace condense {
namespace {

TEST(StridedPattern, TheOriginalsRows) {
  for (int n : {300, 477, 640}) {
    for (int l : {1, 16, 25, 100}) {
      TestCache cache(640, 2, 4, 16);
      cache.See({{0, n}});
      const Selection selection = Select(cache, "strided:l=" + std::to_string(l));
      if (l == 1) {
        EXPECT_EQ(selection.reason, Fallback::kShort);
        continue;
      }
      std::set<int> expected;
      for (int j = 0, t = n - 1; j < n; ++j) {
        if (t - j < l || (t - j) % l == 0) expected.insert(j);
      }
      EXPECT_EQ(RowsOf(selection, 0), expected);
      EXPECT_EQ(RowsOf(selection, 1), expected);
      EXPECT_EQ(selection.summary_bytes, 0u);
    }
  }
}

TEST(StridedPattern, ABudgetIsMetRowByRowAndSharedEvenly) {
  for (int n : {200, 477, 640}) {
    for (int rows : {1, 2, 3, 17, 50, 193, 199}) {
      TestCache cache(640, 1, 1, 16);
      cache.See({{0, n}});
      const Selection selection = Select(cache, "strided:tokens=" + std::to_string(rows));
      ASSERT_FALSE(selection.dense);
      const std::set<int> read = RowsOf(selection, 0);
      EXPECT_EQ(static_cast<int>(read.size()), rows) << n;
      // Beyond the run of newest rows: multiples of one stride, all of them.
      const int t = n - 1;
      int window = 0;
      while (read.contains(t - window)) ++window;
      std::vector<int> far;
      for (int d = window; d <= t; ++d) {
        if (read.contains(t - d)) far.push_back(d);
      }
      EXPECT_GE(window, rows - rows / 2);
      if (far.empty()) continue;
      const int stride = far.size() > 1 ? far[1] - far[0] : far[0];
      EXPECT_EQ(far.front() % stride, 0);
      EXPECT_EQ(static_cast<int>(far.size()), t / stride - (window - 1) / stride);
    }
  }
}

TEST(FixedPattern, TheOriginalsRows) {
  for (int n : {257, 384, 385, 640}) {
    TestCache cache(640, 2, 4, 16);
    cache.See({{0, n}});
    const Selection selection = Select(cache, "fixed:l=128,c=8");
    std::set<int> expected;
    for (int j = 0, t = n - 1; j < n; ++j) {
      if (j / 128 == t / 128 || j % 128 >= 120) expected.insert(j);
    }
    EXPECT_EQ(RowsOf(selection, 0), expected);
    EXPECT_EQ(RowsOf(selection, 1), expected);
  }
}

TEST(FixedPattern, ABudgetIsMetRowByRow) {
  for (int n : {300, 384, 385, 640}) {
    for (int rows : {64, 65, 100, 193, 250}) {
      TestCache cache(640, 1, 1, 16);
      cache.See({{0, n}});
      const Selection selection = Select(cache, "fixed:l=64,tokens=" + std::to_string(rows));
      const std::set<int> read = RowsOf(selection, 0);
      EXPECT_EQ(static_cast<int>(read.size()), rows) << n;
      const int own = (n - 1) / 64 * 64;
      for (int j = own; j < n; ++j) EXPECT_TRUE(read.contains(j));
      // The rest: last rows of each earlier block, as many of each, or one more of the newer.
      int before = -1;
      for (int block = 0; block < own; block += 64) {
        int taken = 0;
        while (taken < 64 && read.contains(block + 63 - taken)) ++taken;
        for (int j = block; j < block + 64 - taken; ++j) EXPECT_FALSE(read.contains(j));
        EXPECT_TRUE(before < 0 || taken == before || taken == before + 1);
        before = taken;
      }
    }
  }
}

// Positions are places among the visible rows, the newest one last wherever it lies.
TEST(Patterns, PositionsFollowTheSequence) {
  TestCache cache(640, 1, 1, 16);
  cache.See({{10, 100}, {130, 131}, {200, 400}});
  std::vector<int> rows;
  for (int row = 10; row < 400; ++row) {
    if (row != 50 && (row < 100 || row == 130 || row >= 200)) rows.push_back(row);
  }
  rows.push_back(50);
  LayerQuery query = cache.Query();
  query.newest_row = 50;
  Selection selection;
  Make("strided:l=20")->Select(query, selection);
  std::set<int> expected;
  const int n = static_cast<int>(rows.size());
  ASSERT_EQ(n, query.n_visible);
  for (int p = 0; p < n; ++p) {
    if (n - 1 - p < 20 || (n - 1 - p) % 20 == 0) expected.insert(rows[p]);
  }
  EXPECT_EQ(RowsOf(selection, 0), expected);
}

TEST(Patterns, ShortBudgetsAndLayersAreDense) {
  TestCache cache(640, 1, 1, 16);
  EXPECT_EQ(Select(cache, "strided:tokens=640").reason, Fallback::kShort);
  EXPECT_EQ(Select(cache, "strided:budget=0.1%").reason, Fallback::kBudget);
  EXPECT_EQ(Select(cache, "fixed:budget=5%").reason, Fallback::kBudget);
  EXPECT_EQ(Select(cache, "fixed:dense_layers=0").reason, Fallback::kLayer);
  EXPECT_EQ(CountRows(KRows(Select(cache, "fixed:budget=30%"), 0)), 192);
}

TEST(Patterns, AWarmStepAllocatesNothing) {
  for (const char* spec : {"strided", "strided:l=30", "fixed:budget=20%", "bigbird", "longformer",
                           "layered:early=none"}) {
    TestCache cache(2048, 3, 9, 64);
    ExpectNoAllocations(cache, spec, {2048}, {2048, 2049});
  }
}

TEST(Longformer, WindowAndGlobalRows) {
  TestCache cache(640, 1, 1, 16);
  EXPECT_EQ(ToRanges(KRows(Select(cache, "longformer"), 0)),
            (std::vector<RowRange>{{0, 1}, {384, 640}}));
  EXPECT_EQ(ToRanges(KRows(Select(cache, "longformer:anchor=8,window=32"), 0)),
            (std::vector<RowRange>{{0, 8}, {608, 640}}));
}

TEST(Bigbird, GlobalRowsWindowAndBlocksDrawnByLayerHeadAndStep) {
  TestCache cache(1024, 2, 4, 16);
  const auto masks = [&](int layer, int n, const std::string& spec = "bigbird") {
    cache.See({{0, n}});
    LayerQuery query = cache.Query();
    query.layer = layer;
    Selection selection;
    Make(spec)->Select(query, selection);
    EXPECT_FALSE(selection.dense);
    for (int set = 0; set < 2; ++set) {
      EXPECT_EQ(CountRows(KRows(selection, set)), 32 + 64 + 8 * 16);
      for (int row = 0; row < n; ++row)
        EXPECT_TRUE((row >= 32 && row < n - 64) || HasRow(KRows(selection, set), row));
    }
    return selection.k_masks;
  };
  const std::vector<uint16_t> first = masks(3, 1024);
  EXPECT_EQ(first, masks(3, 1024));
  EXPECT_NE(first, masks(4, 1024));
  EXPECT_NE(first, masks(3, 1008));
  EXPECT_NE(first, masks(3, 1024, "bigbird:seed=2"));
  const size_t half = first.size() / 2;
  EXPECT_FALSE(std::equal(first.begin(), first.begin() + half, first.begin() + half));
}

TEST(Layered, EarlyLayersHaveTheWideWindow) {
  TestCache cache(1600, 2, 4, 16);
  const std::unique_ptr<Policy> policy =
      Make("layered:early=2-3,early_window=1000,window=100,blocks=4");
  const std::unique_ptr<Policy> wide = Make("mean:window=1000,blocks=4"),
                                narrow = Make("mean:window=100,blocks=4");
  Selection expected, selection;
  for (int layer = 0; layer < 6; ++layer) {
    LayerQuery query = cache.Query();
    query.layer = layer;
    policy->Select(query, selection);
    (layer == 2 || layer == 3 ? wide : narrow)->Select(query, expected);
    ASSERT_FALSE(selection.dense);
    EXPECT_EQ(selection.k_masks, expected.k_masks) << layer;
  }
  cache.See({{0, 1000}});
  EXPECT_EQ(Select(cache, "layered:early_window=1000").reason, Fallback::kShort);
}

// Steps that read everything for want of rows have no part in the rhythm of reuse.
TEST(Layered, ReuseBeginsWithTheFirstSparseStep) {
  TestCache cache(1100, 2, 4, 16);
  const std::unique_ptr<Policy> policy = Make("layered:early_window=1000,blocks=4,reuse=8"),
                                fresh = Make("mean:blocks=4");
  Selection expected, selection;
  for (int n = 990; n <= 1020; ++n) {
    cache.See({{0, n}});
    cache.SetQuery(n);
    LayerQuery query = cache.Query();
    query.layer = 9;
    policy->Select(query, selection);
    EXPECT_EQ(selection.reason, n > 1000 ? Fallback::kNone : Fallback::kShort) << n;
    if (n <= 1000) continue;
    fresh->Select(query, expected);
    EXPECT_EQ(selection.k_masks == expected.k_masks, (n - 1001) % 8 == 0) << n;
  }
}

TEST(Patterns, BadKeysNameTheWayOut) {
  EXPECT_EQ(ErrorOf("strided:l=8,tokens=97"),
            "strided: tokens and l exclude each other: give one of them");
  EXPECT_EQ(ErrorOf("fixed:budget=5%,c=8"),
            "fixed: budget and c exclude each other: give one of them");
  EXPECT_EQ(ErrorOf("fixed:l=16,c=17"), "fixed: c=17 is more than the l=16 rows of a block");
  EXPECT_EQ(ErrorOf("fixed:tokens=100"),
            "fixed: tokens=100 is less than the l=128 rows that the newest row's own block may "
            "have");
  EXPECT_EQ(ErrorOf("layered:early_window=32"),
            "layered: early_window=32 is less than window=64: early layers read the wider one");
  EXPECT_EQ(SpecOf("strided:l=8"), "strided:l=8");
  EXPECT_EQ(SpecOf("fixed"), "fixed:tokens=193");
}

}  // namespace
}  // namespace condense
