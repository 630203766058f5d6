// For tests: a fixture whose tests run with the kernels of one target.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels/target.h"

namespace condense {

class OneTargetTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(ForceTarget(GetParam()).ok());
    ASSERT_EQ(CurrentTarget(), GetParam());
  }
  void TearDown() override { ASSERT_TRUE(ForceTarget("").ok()); }
};

}  // namespace condense
