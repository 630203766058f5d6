// How a probe keeps the layers before one dense.
#include "lab/mass_probe.h"

#include <gtest/gtest.h>

namespace condense {
namespace {

TEST(MassProbe, LayersBeforeAreDense) {
  EXPECT_EQ(WithDenseBefore("mean", 0), "mean");
  EXPECT_EQ(WithDenseBefore("mean", 1), "mean:dense_layers=0-0");
  EXPECT_EQ(WithDenseBefore("mean:blocks=2", 12), "mean:blocks=2,dense_layers=0-11");
}

}  // namespace
}  // namespace condense
