// The policy `duo` and the profiles that it reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "select/head_profile.h"
#include "select/test_cache.h"
#include "select/test_choice.h"
#include "select/test_rows.h"

namespace condense {
namespace {

// As the authors' files are written.
constexpr const char* kPublished =
    "6.054687500000000000e-01\t0.000000000000000000e+00\n"
    "9.960937500000000000e-01\t1.000000000000000000e+00\n"
    "4.882812500000000000e-04\t2.490234375000000000e-02\n";

class DuoPolicyTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  std::string Write(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return path_;
  }
  // Each head's rows in one layer: w, whole; s, first and last; or why the step is dense.
  static std::string HeadsOf(TestCache& cache, const std::string& spec, int layer) {
    LayerQuery query = cache.Query();
    query.layer = layer;
    Selection selection;
    Make(spec)->Select(query, selection);
    if (selection.dense) return "dense " + std::to_string(static_cast<int>(selection.reason));
    EXPECT_TRUE(selection.v_masks.empty());
    EXPECT_EQ(selection.summary_bytes, 0u);
    std::string heads;
    for (int g = 0; g < query.kv->n_kv_heads; ++g) {
      const auto rows = ToRanges(KRows(selection, g));
      if (rows == ToRanges(query.visible)) {
        heads += 'w';
      } else {
        heads += rows == ToRanges(Always(query, 64, 256)) ? 's' : '?';
      }
    }
    return heads;
  }

  const std::string path_ = ::testing::TempDir() + "condense_duo_" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                            ".tsv";
};

const std::string kLayer = "dense " + std::to_string(static_cast<int>(Fallback::kLayer));
const std::string kShort = "dense " + std::to_string(static_cast<int>(Fallback::kShort));

TEST_F(DuoPolicyTest, HeadsAreWholeOrStreamAsTheProfileSays) {
  TestCache cache(1000, 2, 4, 16);
  cache.See({{3, 500}, {510, 990}});
  const std::string profile = "duo:profile=" + Write(kPublished);
  EXPECT_EQ(HeadsOf(cache, profile, 0), "ws");
  EXPECT_EQ(HeadsOf(cache, profile, 1), kLayer);  // both whole
  EXPECT_EQ(HeadsOf(cache, profile, 2), "ss");
  EXPECT_EQ(HeadsOf(cache, profile + ",threshold=0.01", 2), "sw");
  EXPECT_EQ(HeadsOf(cache, profile + ",threshold=1", 1), "sw");
  EXPECT_EQ(HeadsOf(cache, profile + ",threshold=0", 0), kLayer);
  EXPECT_EQ(HeadsOf(cache, profile + ",dense_layers=2", 2), kLayer);
  for (const auto& [sparsity, heads] :
       {std::pair("0%", kLayer + "|" + kLayer + "|" + kLayer),
        std::pair("16.7%", "ws|" + kLayer + "|" + kLayer), std::pair("34%", "ws|" + kLayer + "|sw"),
        std::pair("50%", "ws|" + kLayer + "|ss"), std::pair("83.3%", std::string("ss|sw|ss")),
        std::pair("100%", std::string("ss|ss|ss"))}) {
    const std::string spec = profile + ",sparsity=" + sparsity;
    EXPECT_EQ(
        HeadsOf(cache, spec, 0) + "|" + HeadsOf(cache, spec, 1) + "|" + HeadsOf(cache, spec, 2),
        heads)
        << sparsity;
  }
}

TEST_F(DuoPolicyTest, WithoutAProfileEveryHeadStreams) {
  TestCache cache(1000, 3, 3, 16);
  EXPECT_EQ(HeadsOf(cache, "duo", 0), "sss");
  EXPECT_EQ(HeadsOf(cache, "duo", 77), "sss");
  cache.See({{0, 321}});
  EXPECT_EQ(HeadsOf(cache, "duo", 0), "sss");
  cache.See({{0, 320}});
  EXPECT_EQ(HeadsOf(cache, "duo", 0), kShort);
}

TEST_F(DuoPolicyTest, ANewestRowBeforeTheWindowIsRead) {
  TestCache cache(1000, 2, 2, 16);
  LayerQuery query = cache.Query();
  query.newest_row = 500;
  Selection selection;
  Make("duo:window=100,sink=20")->Select(query, selection);
  EXPECT_EQ(ToRanges(KRows(selection, 1)),
            (std::vector<RowRange>{{0, 20}, {500, 501}, {900, 1000}}));
}

// What it does not know stays dense, and is counted.
TEST_F(DuoPolicyTest, AProfileOfAnotherModelLeavesTheLayerDense) {
  const std::string profile = "duo:profile=" + Write(kPublished);
  TestCache two(1000, 2, 4, 16), three(1000, 3, 3, 16);
  EXPECT_EQ(HeadsOf(two, profile, 3), kLayer);
  EXPECT_EQ(HeadsOf(three, profile, 0), kLayer);
  EXPECT_EQ(HeadsOf(three, profile, 2), kLayer);
}

TEST_F(DuoPolicyTest, AWarmStepAllocatesNothing) {
  TestCache cache(1000, 2, 4, 16);
  ExpectNoAllocations(cache, "duo:profile=" + Write(kPublished), {1000}, {900, 1000});
}

TEST_F(DuoPolicyTest, SpecsSayWhatIsWrong) {
  const std::string profile = "duo:profile=" + path_;
  EXPECT_EQ(ErrorOf(profile), "duo: profile '" + path_ + "' cannot be read: is it there?");
  EXPECT_THAT(ErrorOf("duo:profile=" + ::testing::TempDir()),
              ::testing::HasSubstr("cannot be read"));
  const auto error = [&](const std::string& text) {
    Write(text);
    const std::string before = "duo: profile '" + path_ + "': ", all = ErrorOf(profile);
    EXPECT_EQ(all.substr(0, before.size()), before);
    return all.size() > before.size() ? all.substr(before.size()) : "";
  };
  EXPECT_EQ(error(""),
            "there is no number in it: a line holds a layer's KV heads, numbers from 0 to 1");
  EXPECT_EQ(error("\n \n# nothing\n"), error(""));
  EXPECT_EQ(error("0.5\t0.1\n0.5\tx\n"), "line 2: number 2: 'x' is not a number");
  EXPECT_EQ(error("0.5\tnan\n"), "line 1: number 2: 'nan' is not a number");
  EXPECT_EQ(error("0.5\t0.1\n\n1.5\t0\n"), "line 3: number 1: 1.5 is out of range: 0 to 1");
  EXPECT_EQ(error("0.5\t0.1\n0.5\n"),
            "line 2: 1 numbers, where the first layer has 2: a line is a layer's KV heads");
  EXPECT_EQ(error(std::string("\0\1\2", 3)).substr(0, 18), "line 1: number 1: ");
  Write(kPublished);
  EXPECT_EQ(ErrorOf(profile + ",threshold=0.4,sparsity=50%"),
            "duo: threshold and sparsity exclude each other: give one of them");
  EXPECT_EQ(ErrorOf(profile + ",threshold=2"), "duo: threshold=2 is out of range: 0 to 1");
  EXPECT_THAT(ErrorOf("duo:threshold=0.4"), ::testing::HasSubstr("has no effect"));
  EXPECT_EQ(SpecOf("duo"), "duo:window=256");
  const std::string spec = "duo:window=256,profile=" + path_ + ",sparsity=50%";
  EXPECT_EQ(SpecOf(profile + ",sparsity=50%"), spec);
  EXPECT_EQ(SpecOf(spec), spec);
}

TEST(HeadProfileTest, ReadsBlanksCommentsAndLineEnds) {
  const Result<HeadProfile> profile = ParseHeadProfile("# heads\r\n0.25 1\r\n\r\n0\t 0.5 # last");
  ASSERT_TRUE(profile.ok()) << profile.error();
  EXPECT_EQ(profile->n_layers, 2);
  EXPECT_EQ(profile->n_kv_heads, 2);
  EXPECT_EQ(profile->needs, (std::vector<double>{0.25, 1, 0, 0.5}));
}

TEST(HeadProfileTest, OfEqualHeadsTheEarlierStreamsFirst) {
  const HeadProfile profile{.n_layers = 2, .n_kv_heads = 2, .needs = {0.5, 0.5, 0.5, 0.1}};
  EXPECT_EQ(HeadsButLeast(profile, 0.5), (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(HeadsButLeast(profile, 0.74), (std::vector<bool>{false, false, true, false}));
}

}  // namespace
}  // namespace condense
