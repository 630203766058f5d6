// The policy `pillar` against plain loops: the rows of most mass in the last call of several rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "select/test_cache.h"
#include "select/test_choice.h"
#include "select/test_rows.h"

namespace condense {
namespace {

constexpr int kRows = 640, kKvHeads = 2, kHeads = 6, kDim = 16;

class Layer {
 public:
  Layer() : cache(kRows, kKvHeads, kHeads, kDim) {}

  // A call whose queries see rows [0, first + 1) to [0, last + 1), with random shares, some equal.
  void Call(int first, int last, int seed, bool of_prompt = false) {
    SeenCall& call =
        cache.calls().Take(cache.view(), first, Mask(first + 1), Mask(last + 1), of_prompt);
    std::mt19937 random(seed);
    for (int g = 0; g < kKvHeads; ++g) {
      worth[g].assign(kRows, 0.0);
      for (int row = 0; row <= last; ++row)
        worth[g][row] = call.heads[g][row] = static_cast<float>(random() % 256) / 256.0f;
    }
  }
  Selection Step(const Policy& policy, int n) {
    cache.See({{0, n}});
    LayerQuery query = Query(n);
    Selection selection;
    policy.Select(query, selection);
    return selection;
  }
  LayerQuery Query(int n) {
    LayerQuery query = cache.Query();
    query.newest_row = n - 1;
    return query;
  }

  TestCache cache;
  std::vector<double> worth[kKvHeads];

 private:
  static RowMask Mask(int n) {
    RowMask mask(BlocksFor(kRows), 0);
    AddRange(mask, {0, n});
    return mask;
  }
};

RowMask MaskOf(const Selection& selection, int set) {
  const std::span<const uint16_t> rows = KRows(selection, set);
  return {rows.begin(), rows.end()};
}

TEST(PillarPolicyTest, ReadsWhatPlainLoopsRead) {
  struct Case {
    const char* spec;
    int anchor, window;
    int Rows(int n) const { return std::string(spec).find("budget") < 8 ? n * 3 / 10 : tokens; }
    int tokens;
  };
  for (const Case& c :
       {Case{"pillar:tokens=120", 1, 64, 120}, Case{"pillar:tokens=90,anchor=9,window=5", 9, 5, 90},
        Case{"pillar:budget=30%", 1, 64, 0}}) {
    const std::unique_ptr<Policy> policy = Make(c.spec);
    Layer layer;
    layer.Call(440, 456, 1, /*of_prompt=*/true);
    int base = 441;
    for (int i = 0; i < 80; ++i) {
      int n = 458 + i;
      if (i >= 22) n = 474 + i - 22;
      if (i == 22) {
        // A verification of rows 470 … 478, of which 470 … 472 stay.
        layer.Call(470, 478, 2);
        base = 471;
      }
      const Selection selection = layer.Step(*policy, n);
      ASSERT_FALSE(selection.dense || selection.per_query_head) << c.spec << n;
      const LayerQuery query = layer.Query(n);
      RowMask always = Always(query, c.anchor, c.window);
      AddRange(always, {base, n});
      const int n_rows = c.Rows(n);
      for (int g = 0; g < kKvHeads; ++g) {
        EXPECT_EQ(MaskOf(selection, g),
                  WithBest(query, always, layer.worth[g], n_rows - CountRows(always)))
            << c.spec << ' ' << n << ' ' << g;
      }
    }
  }
}

// The second pass over the keys shows once a call.
TEST(PillarPolicyTest, CountsTheKeysOfTheCallOnce) {
  const std::unique_ptr<Policy> policy = Make("pillar:tokens=100");
  constexpr uint64_t kRow = kKvHeads * (kDim * sizeof(float) + sizeof(float));
  Layer layer;
  layer.Call(440, 456, 1, /*of_prompt=*/true);
  EXPECT_EQ(layer.Step(*policy, 458).summary_bytes, 457 * kRow);
  for (int n : {459, 460}) EXPECT_EQ(layer.Step(*policy, n).summary_bytes, 0u);
  layer.Call(457, 461, 2);
  EXPECT_EQ(layer.Step(*policy, 461).summary_bytes, 462 * kRow);
  EXPECT_EQ(layer.Step(*policy, 462).summary_bytes, 0u);
  // A step that is taken back did not count them.
  layer.cache.memory().choices.pop_back();
  EXPECT_EQ(layer.Step(*policy, 460).summary_bytes, 462 * kRow);
  EXPECT_EQ(layer.Step(*policy, 461).summary_bytes, 0u);
}

TEST(PillarPolicyTest, ABudgetIsOfBytes) {
  const std::unique_ptr<Policy> policy = Make("pillar:budget=25%");
  Layer layer;
  layer.Call(440, 456, 1);
  layer.Step(*policy, 457);
  for (int n = 458; n <= 500; ++n) {
    const Selection selection = layer.Step(*policy, n);
    ASSERT_FALSE(selection.dense);
    const double row = kKvHeads * RowBytes(layer.cache.view());
    EXPECT_LE(BytesRead(selection, layer.cache.view()), 0.25 * n * row);
    EXPECT_GT(BytesRead(selection, layer.cache.view()), 0.25 * n * row - row);
  }
  EXPECT_EQ(layer.Step(*Make("pillar:budget=10%"), 501).reason, Fallback::kBudget);
}

// Where nothing is known, and where the rows since are more than the budget.
TEST(PillarPolicyTest, OtherwiseTheLastRowsAreRead) {
  const std::unique_ptr<Policy> policy = Make("pillar:tokens=100,anchor=4");
  Layer layer;
  const auto expect_window = [&](int n) {
    const Selection selection = layer.Step(*policy, n);
    ASSERT_FALSE(selection.dense);
    EXPECT_EQ(selection.summary_bytes, 0u);
    for (int g = 0; g < kKvHeads; ++g)
      EXPECT_EQ(ToRanges(KRows(selection, g)), (std::vector<RowRange>{{0, 4}, {n - 96, n}}));
  };
  expect_window(400);
  layer.Call(400, 410, 1);
  EXPECT_NE(ToRanges(KRows(layer.Step(*policy, 412), 0)),
            (std::vector<RowRange>{{0, 4}, {412 - 96, 412}}));
  expect_window(400);  // its first row is taken back
  layer.Step(*policy, 497);
  expect_window(498);
}

TEST(PillarPolicyTest, RowsThatChangedAreNotRanked) {
  const std::unique_ptr<Policy> policy = Make("pillar:tokens=100");
  Layer layer;
  layer.Call(440, 450, 1);
  const Selection before = layer.Step(*policy, 452);
  int best = 0;
  for (int row = 1; row < 380; ++row) {
    if (layer.worth[0][row] > layer.worth[0][best]) best = row;
  }
  ASSERT_TRUE(HasRow(KRows(before, 0), best));
  // Not there any more.
  layer.cache.See({{0, best}, {best + 1, 453}});
  LayerQuery query = layer.Query(453);
  Selection selection;
  policy->Select(query, selection);
  ASSERT_FALSE(selection.dense);
  EXPECT_FALSE(HasRow(KRows(selection, 0), best));
  EXPECT_EQ(CountRows(KRows(selection, 0)), 100);
  // Another's: a row since.
  layer.cache.calls().MarkWritten(best);
  EXPECT_TRUE(HasRow(KRows(layer.Step(*policy, 454), 0), best));
  EXPECT_TRUE(HasRow(KRows(layer.Step(*policy, 454), 1), best));
}

TEST(PillarPolicyTest, EqualRowsAreReadInTheirOrder) {
  const std::unique_ptr<Policy> policy = Make("pillar:tokens=100");
  Layer layer;
  layer.Call(440, 450, 1);
  for (std::vector<float>& of_head :
       layer.cache.calls().Find(layer.cache.view(), layer.cache.Query().visible)->heads)
    std::fill(of_head.begin(), of_head.end(), 0.25f);
  EXPECT_EQ(ToRanges(KRows(layer.Step(*policy, 452), 0)),
            (std::vector<RowRange>{{0, 36}, {388, 452}}));
}

TEST(PillarPolicyTest, SpecsSayWhatIsWrong) {
  EXPECT_EQ(SpecOf("pillar"), "pillar:tokens=193");
  EXPECT_EQ(SpecOf("pillar:budget=8%"), "pillar:budget=8%");
  EXPECT_EQ(ErrorOf("pillar:tokens=97,budget=8%"),
            "pillar: tokens and budget exclude each other: give one of them");
  EXPECT_THAT(ErrorOf("pillar:tokens=64"), ::testing::HasSubstr("is less than anchor + window"));
  Layer layer;
  EXPECT_EQ(layer.Step(*Make("pillar:tokens=300"), 300).reason, Fallback::kShort);
  EXPECT_EQ(layer.Step(*Make("pillar:tokens=100,dense_layers=0"), 300).reason, Fallback::kLayer);
}

}  // namespace
}  // namespace condense
