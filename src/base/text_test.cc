#include "base/text.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace condense {
namespace {

TEST(EditDistance, CountsEachKindOfSlipOnce) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("quset", "quest"), 1);  // swap
  EXPECT_EQ(EditDistance("mean", "meann"), 1);   // insertion
  EXPECT_EQ(EditDistance("sink", "snk"), 1);     // deletion
  EXPECT_EQ(EditDistance("window", "winbow"), 1);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(EditDistance, IsSymmetricAndZeroOnlyForEquals) {
  std::mt19937 rng(1);
  for (int i = 0; i < 500; ++i) {
    std::string a, b;
    for (unsigned n = rng() % 6; n > 0; --n) a += static_cast<char>('a' + rng() % 3);
    for (unsigned n = rng() % 6; n > 0; --n) b += static_cast<char>('a' + rng() % 3);
    EXPECT_EQ(EditDistance(a, b), EditDistance(b, a));
    EXPECT_EQ(EditDistance(a, b) == 0, a == b);
  }
}

TEST(NearestName, FindsWhatWasMeantAndNothingFarOff) {
  const std::vector<std::string> names = {"dense", "mean", "oracle", "quest", "window"};
  EXPECT_EQ(NearestName("quset", names), "quest");
  EXPECT_EQ(NearestName("windw", names), "window");
  EXPECT_EQ(NearestName("xyzzyxyzzy", names), "");
  EXPECT_EQ(NearestName("q", names), "");
  EXPECT_EQ(NearestName("mean", {}), "");
  EXPECT_EQ(DidYouMean("quset", names), "; did you mean 'quest'?");
  EXPECT_EQ(DidYouMean("xyzzyxyzzy", names), "");
}

TEST(ParseInt, TakesWholeNumbersAndNothingElse) {
  EXPECT_EQ(ParseInt("42").value(), 42);
  EXPECT_EQ(ParseInt("-1").value(), -1);
  for (const char* bad : {"", " 1", "1 ", "+1", "1x", "1.5", "0x10", "x"}) {
    ASSERT_FALSE(ParseInt(bad).ok()) << bad;
    EXPECT_EQ(ParseInt(bad).error(), Quote(bad) + " is not a whole number");
  }
  EXPECT_EQ(ParseInt("99999999999999999999").error(),
            "'99999999999999999999' is too large a number");
}

TEST(ParseNumber, TakesDecimalsAndNothingElse) {
  EXPECT_EQ(ParseNumber("0.5").value(), 0.5);
  EXPECT_EQ(ParseNumber("1e-3").value(), 1e-3);
  for (const char* bad : {"", "nan", "inf", "1,5", "1.5f", "."}) {
    EXPECT_FALSE(ParseNumber(bad).ok()) << bad;
  }
}

TEST(ParsePercent, NeedsTheSign) {
  EXPECT_EQ(ParsePercent("5%").value(), 5);
  EXPECT_EQ(ParsePercent("7.5%").value(), 7.5);
  for (const char* bad : {"", "5", "%", "5 %", "5%%", "x%"}) {
    ASSERT_FALSE(ParsePercent(bad).ok()) << bad;
    EXPECT_NE(ParsePercent(bad).error().find("is no percentage"), std::string::npos);
  }
}

TEST(ParseAutoOr, TakesNumbersInRange) {
  EXPECT_EQ(ParseAutoOr("auto", 16).value(), 0);
  EXPECT_EQ(ParseAutoOr("1", 16).value(), 1);
  EXPECT_EQ(ParseAutoOr("16", 16).value(), 16);
  for (const char* bad : {"", "0", "17", "-1", "many", "4294967297"})
    EXPECT_EQ(ParseAutoOr(bad, 16).error(), Quote(bad) + " is neither auto nor 1 to 16");
}

TEST(ParseShare, TakesPercentagesInRange) {
  EXPECT_EQ(ParseShare("7.5%", 0.01, 50).value(), 0.075);
  EXPECT_EQ(ParseShare("50%", 0.01, 50).value(), 0.5);
  for (const char* bad : {"", "5", "0%", "50.1%", "-5%", "nan%"})
    EXPECT_EQ(ParseShare(bad, 0.01, 50).error(), Quote(bad) + " is no share: write 0.01% to 50%");
}

TEST(PrintNumber, ReadsBackToTheSameValue) {
  EXPECT_EQ(PrintNumber(5), "5");
  EXPECT_EQ(PrintNumber(7.5), "7.5");
  std::mt19937 rng(2);
  for (int i = 0; i < 1000; ++i) {
    const double value = std::ldexp(static_cast<double>(rng()), static_cast<int>(rng() % 80) - 60);
    EXPECT_EQ(ParseNumber(PrintNumber(value)).value(), value);
  }
}

}  // namespace
}  // namespace condense
