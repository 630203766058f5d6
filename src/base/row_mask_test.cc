#include "base/row_mask.h"

#include <gtest/gtest.h>

namespace condense {
namespace {

TEST(RowMaskTest, RangesRoundTrip) {
  RowMask mask(BlocksFor(100), 0);
  AddRange(mask, {3, 17});
  AddRange(mask, {32, 33});
  AddRange(mask, {48, 100});
  EXPECT_EQ(ToRanges(mask), (std::vector<RowRange>{{3, 17}, {32, 33}, {48, 100}}));
  EXPECT_EQ(CountRows(mask), 14 + 1 + 52);
  EXPECT_TRUE(HasRow(mask, 16));
  EXPECT_FALSE(HasRow(mask, 17));
}

TEST(RowMaskTest, FirstAndLastRowsAreTakenFromEitherEnd) {
  RowMask mask(4, 0);
  AddRange(mask, {5, 20});
  AddRange(mask, {50, 60});
  EXPECT_EQ(ToRanges(FirstRows(mask, 3)), (std::vector<RowRange>{{5, 8}}));
  EXPECT_EQ(ToRanges(LastRows(mask, 12)), (std::vector<RowRange>{{18, 20}, {50, 60}}));
  EXPECT_EQ(CountRows(FirstRows(mask, 1000)), 25);
  EXPECT_EQ(CountRows(LastRows(mask, 0)), 0);
}

TEST(RowMaskTest, CountsWordsOfAnyNumber) {
  for (int n_blocks : {1, 3, 4, 5, 8, 9}) {
    RowMask a(n_blocks, 0), b(n_blocks + 2, 0);
    AddRange(a, {1, n_blocks * kBlockRows});
    AddRange(b, {7, n_blocks * kBlockRows + 20});
    EXPECT_EQ(CountRows(a), n_blocks * kBlockRows - 1);
    EXPECT_EQ(CountRows(b), n_blocks * kBlockRows + 13);
    EXPECT_EQ(CountCommonRows(a, b), n_blocks * kBlockRows - 7);
    EXPECT_EQ(CountCommonRows(b, a), n_blocks * kBlockRows - 7);
  }
}

TEST(RowMaskTest, EmptyMaskHasNoRows) {
  const RowMask mask(3, 0);
  EXPECT_TRUE(ToRanges(mask).empty());
  EXPECT_EQ(CountRows(LastRows(mask, 5)), 0);
}

}  // namespace
}  // namespace condense
