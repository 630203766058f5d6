// When a sequence counts as continued: its rows of the last step, and otherwise only such as were
// written since, by however many nodes. What does not is compared with the cache as a whole.
#include "attention/layer_cache.h"

#include <gtest/gtest.h>

#include "base/row_mask.h"

namespace condense {
namespace {

class Continued : public ::testing::Test {
 protected:
  void Write(int begin, int end) {
    for (int row = begin; row < end; ++row) stream_.MarkWritten(row);
  }
  // A step that sees rows [0, n).
  bool Step(int n) {
    RowMask visible(BlocksFor(64), 0);
    AddRange(visible, {0, n});
    bool continued = false;
    stream_.Sequence(visible, n, &continued);
    return continued;
  }

  StreamCache stream_;
};

TEST_F(Continued, AfterOneRowOrSeveral) {
  Write(0, 20);
  EXPECT_FALSE(Step(20)) << "never seen";
  Write(20, 21);
  EXPECT_TRUE(Step(21));
  Write(21, 26);
  EXPECT_TRUE(Step(26)) << "rows that a verification wrote";
  Write(26, 27);
  Write(27, 28);
  EXPECT_TRUE(Step(28)) << "a dense step between";
}

TEST_F(Continued, WhereRowsAreWrittenAgain) {
  Write(0, 20);
  Step(20);
  Write(19, 20);
  EXPECT_TRUE(Step(20)) << "the last step, redone";
  Write(20, 24);
  Step(24);
  Write(20, 22);
  EXPECT_FALSE(Step(22)) << "rolled back by more than was written again";
  Write(22, 23);
  EXPECT_TRUE(Step(23));
}

TEST_F(Continued, NotWhereRowsCameFromElsewhere) {
  Write(0, 20);
  Step(20);
  Write(30, 31);
  EXPECT_FALSE(Step(31)) << "rows 20 to 29 were never written here";
}

}  // namespace
}  // namespace condense
