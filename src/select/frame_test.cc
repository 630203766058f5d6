// The frame against selections worked out by hand: what is always read, candidates, budgets, reuse.
#include "select/frame.h"

#include <cmath>
#include <functional>

#include "gtest/gtest.h"
#include "select/test_allocations.h"
#include "select/test_cache.h"

namespace condense {
namespace {

using ScoreFn = std::function<float(const ScoreQuery&, int block)>;

class FnScorer final : public BlockScorer {
 public:
  explicit FnScorer(ScoreFn fn, SummarySet needs = 0, ScoreKind kind = ScoreKind::kLinear)
      : fn_(std::move(fn)), needs_(needs), kind_(kind) {}
  ScoreKind kind() const override { return kind_; }
  SummarySet needs() const override { return needs_; }
  void Score(const ScoreQuery& query, std::span<float> per_block) const override {
    for (size_t b = 0; b < per_block.size(); ++b) per_block[b] = fn_(query, static_cast<int>(b));
  }

 private:
  ScoreFn fn_;
  SummarySet needs_;
  ScoreKind kind_;
};

FramePolicy Frame(const FrameOptions& options, ScoreFn fn, SummarySet needs = 0) {
  return {options, std::make_unique<FnScorer>(std::move(fn), needs)};
}

// Prefers the blocks named, in that order.
ScoreFn Prefer(std::vector<int> blocks) {
  return [blocks = std::move(blocks)](const ScoreQuery&, int block) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i] == block) return 100.0f - static_cast<float>(i);
    }
    return 0.0f;
  };
}

using Ranges = std::vector<RowRange>;

Selection SelectOnce(const Policy& policy, TestCache& cache) {
  Selection selection;
  policy.Select(cache.Query(), selection);
  return selection;
}

// 310 visible rows: block 19 holds 6 of them, the window is rows 246 to 309 and cuts block 15.
TEST(Frame, TheCutBlockAndTheAnchorsBlockAreCandidates) {
  TestCache cache(320, 1, 1, 16);
  cache.See({{0, 310}});
  FrameOptions options;
  options.blocks = 2;
  Selection selection = SelectOnce(Frame(options, Prefer({15, 0})), cache);
  ASSERT_FALSE(selection.dense);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 16}, {240, 310}}));
  EXPECT_TRUE(selection.v_masks.empty());

  options.blocks = 1;
  selection = SelectOnce(Frame(options, Prefer({15})), cache);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 1}, {240, 310}}));
  selection = SelectOnce(Frame(options, Prefer({0})), cache);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 16}, {246, 310}}));
  // Blocks inside the window are no candidates however well they score: 14 is next.
  selection = SelectOnce(Frame(options, Prefer({16, 17, 18, 19, 14})), cache);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 1}, {224, 240}, {246, 310}}));
}

TEST(Frame, NoAnchorAndAWindowOnABlocksEdge) {
  TestCache cache(320, 1, 1, 16);
  FrameOptions options;
  options.anchor = 0;
  options.blocks = 1;
  const Selection selection = SelectOnce(Frame(options, Prefer({16, 15})), cache);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{240, 320}}));
}

TEST(Frame, AnAnchorOfSeveralBlocks) {
  TestCache cache(320, 1, 1, 16);
  FrameOptions options;
  options.anchor = 20;
  options.window = 16;
  options.blocks = 1;
  const Selection selection = SelectOnce(Frame(options, Prefer({0, 1})), cache);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 32}, {304, 320}}));
}

TEST(Frame, PartlyVisibleBlocksAreAlwaysReadRowByRow) {
  TestCache cache(320, 1, 1, 16);
  cache.See({{40, 310}});
  cache.Hide(100);
  FrameOptions options;
  options.blocks = 1;
  const Selection selection = SelectOnce(Frame(options, Prefer({2, 6, 5})), cache);
  // Blocks 2 and 6 are partly visible: read anyway, and no candidates. The anchor is row 40.
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{40, 48}, {80, 100}, {101, 112}, {246, 310}}));
}

// In a cache that reuses freed cells the newest row may be one of the lowest.
TEST(Frame, TheNewestRowIsReadWhereverItLies) {
  TestCache cache(320, 1, 1, 16);
  FrameOptions options;
  options.blocks = 1;
  const FramePolicy policy = Frame(options, Prefer({10}));
  LayerQuery query = cache.Query();
  query.newest_row = 37;
  Selection selection;
  policy.Select(query, selection);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 1}, {37, 38}, {160, 176}, {256, 320}}));
}

TEST(Frame, TiesGoToTheLowerIndexAndZeroesAreEqual) {
  TestCache cache(320, 1, 1, 16);
  FrameOptions options;
  options.blocks = 2;
  options.anchor = 0;
  Selection selection =
      SelectOnce(Frame(options, [](const ScoreQuery&, int) { return 1.0f; }), cache);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 32}, {256, 320}}));
  selection = SelectOnce(
      Frame(options, [](const ScoreQuery&, int b) { return b % 2 == 0 ? -0.0f : 0.0f; }), cache);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 32}, {256, 320}}));
}

TEST(Frame, ANanScoreOfACandidateMakesTheStepDense) {
  TestCache cache(320, 1, 1, 16);
  FrameOptions options;
  options.blocks = 2;
  auto nan_at = [](int block) {
    return [block](const ScoreQuery&, int b) { return b == block ? std::nanf("") : 1.0f; };
  };
  Selection selection = SelectOnce(Frame(options, nan_at(3)), cache);
  EXPECT_TRUE(selection.dense);
  EXPECT_EQ(selection.reason, Fallback::kNan);
  // Block 18 lies in the window: its score is meaningless.
  selection = SelectOnce(Frame(options, nan_at(18)), cache);
  EXPECT_FALSE(selection.dense);
}

TEST(Frame, NanIsNoticedInEveryFormOfSharing) {
  for (const ScoreKind kind : {ScoreKind::kLinear, ScoreKind::kBound, ScoreKind::kMass}) {
    for (int share = 0; share <= static_cast<int>(Share::kPerHead); ++share) {
      for (int bad_head = 0; bad_head < 4; ++bad_head) {
        TestCache cache(320, 2, 4, 16);
        FrameOptions options;
        options.blocks = 2;
        options.share = static_cast<Share>(share);
        const FramePolicy policy(
            options, std::make_unique<FnScorer>(
                         [&](const ScoreQuery& query, int b) {
                           const bool bad = query.query_head >= 0 ? query.query_head == bad_head
                                                                  : query.kv_head == bad_head / 2;
                           return bad && b == 5 ? std::nanf("") : 1.0f;
                         },
                         0, kind));
        EXPECT_EQ(SelectOnce(policy, cache).reason, Fallback::kNan)
            << "kind " << static_cast<int>(kind) << " share " << share << " head " << bad_head;
      }
    }
  }
}

// Masses add up over heads as shares: a head whose logits are larger throughout does not outvote
// the others.
TEST(Frame, LogMassesAreNormalisedPerHead) {
  TestCache cache(320, 1, 2, 16);
  FrameOptions options;
  options.blocks = 1;
  const FramePolicy policy(options,
                           std::make_unique<FnScorer>(
                               [](const ScoreQuery& query, int block) {
                                 if (query.query_head == 0) {
                                   return block == 1 ? 100.4f : block == 2 ? 100.0f : -INFINITY;
                                 }
                                 return block == 1 ? -1.0f : 0.0f;
                               },
                               0, ScoreKind::kMass));
  // Shares of block 1: 0.60 + 0.02; of block 2: 0.40 + 0.07. Scaled to the head's best block
  // instead, 2 would win.
  EXPECT_EQ(ToRanges(KRows(SelectOnce(policy, cache), 0)), (Ranges{{0, 1}, {16, 32}, {256, 320}}));
}

TEST(Frame, DenseWhereNothingIsLeftOut) {
  TestCache cache(320, 1, 1, 16);
  FrameOptions options;
  options.blocks = 2;
  const FramePolicy policy = Frame(options, Prefer({}));
  for (int n : {1, 16, 64, 65, 66, 80, 96, 97}) {
    cache.See({{0, n}});
    const Selection selection = SelectOnce(policy, cache);
    EXPECT_TRUE(selection.dense) << n;
    EXPECT_EQ(selection.reason, Fallback::kShort) << n;
  }
  // 98 = 1 + 64 + 16 * 2 + 1 rows: candidates are blocks 0 (15 rows), 1, and the 2 rows of block 2.
  cache.See({{0, 98}});
  EXPECT_FALSE(SelectOnce(policy, cache).dense);
  // Beyond the support, but every candidate is taken.
  options.blocks = 1;
  cache.See({{0, 16}, {20, 100}, {101, 120}, {200, 210}});
  EXPECT_EQ(SelectOnce(Frame(options, Prefer({})), cache).reason, Fallback::kNone);
  options.blocks = 4;
  cache.See({{0, 16}, {20, 100}, {101, 120}, {200, 210}});
  EXPECT_EQ(SelectOnce(Frame(options, Prefer({})), cache).reason, Fallback::kShort);
}

TEST(Frame, NoBlocksMeansAnchorAndWindow) {
  TestCache cache(320, 1, 1, 16);
  FrameOptions options;
  options.anchor = 4;
  options.blocks = 0;
  const Selection selection = SelectOnce(FramePolicy(options, nullptr), cache);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 4}, {256, 320}}));
  EXPECT_EQ(selection.summary_bytes, 0u);
}

TEST(Frame, DenseLayers) {
  TestCache cache(320, 1, 1, 16);
  FrameOptions options;
  options.blocks = 2;
  options.dense_layers = {.first = 0, .last = 1};
  const FramePolicy policy = Frame(options, Prefer({}));
  for (int layer = 0; layer < 4; ++layer) {
    LayerQuery query = cache.Query();
    query.layer = layer;
    Selection selection;
    policy.Select(query, selection);
    EXPECT_EQ(selection.dense, layer <= 1);
    EXPECT_EQ(selection.reason, layer <= 1 ? Fallback::kLayer : Fallback::kNone);
  }
}

// 960 visible rows of 2 KV heads; K and V rows of 16 f32: 128 bytes a row and head. Dense: 245,760
// bytes. Always read: 65 rows, 16,640 bytes. Candidates: blocks 0 to 55, mean keys in f16: 56 * 2 *
// 32 = 3,584 bytes. A block costs 4,096.
TEST(Frame, ByteBudgetsCountSummaries) {
  TestCache cache(1024, 2, 2, 16);
  cache.See({{0, 960}});
  FrameOptions options;
  auto select = [&](double share, SummarySet needs) {
    options.byte_share = share;
    return SelectOnce(Frame(options, Prefer({5, 6, 7, 8, 9, 10, 11, 12, 13, 14}), needs), cache);
  };
  // 20 %: (49,152 - 16,640 - 3,584) / 4,096 = 7.06.
  Selection selection = select(0.20, kMeanKey);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 1}, {80, 192}, {896, 960}}));
  EXPECT_EQ(ToRanges(KRows(selection, 1)), ToRanges(KRows(selection, 0)));
  EXPECT_EQ(selection.summary_bytes, 3584u);
  // Without summaries 7.94 buys 7 as well; with twice as many, 6.19.
  EXPECT_EQ(CountRows(KRows(select(0.20, 0), 0)), 65 + 7 * 16);
  EXPECT_EQ(CountRows(KRows(select(0.20, kKeyMinMax), 0)), 65 + 6 * 16);
  EXPECT_EQ(select(0.20, kKeyMinMax).summary_bytes, 7168u);
  // 7 %: 17,203 bytes cover the rows always read, not the summaries: they are not read for nothing.
  selection = select(0.07, kMeanKey);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 1}, {896, 960}}));
  EXPECT_EQ(selection.summary_bytes, 0u);
  // 6 %: 14,746 bytes do not.
  selection = select(0.06, kMeanKey);
  EXPECT_TRUE(selection.dense);
  EXPECT_EQ(selection.reason, Fallback::kBudget);
  // All of the bytes buy all of the rows.
  selection = select(1.0, kMeanKey);
  EXPECT_TRUE(selection.dense);
  EXPECT_EQ(selection.reason, Fallback::kShort);
}

TEST(Frame, ByteBudgetsCountTheKeysOfAShortlist) {
  TestCache cache(1024, 2, 2, 16);
  cache.See({{0, 960}});
  FrameOptions options;
  options.byte_share = 0.21;
  options.share = Share::kRerank;
  options.shortlist = 4;
  // A block costs 4,096 and the K rows of 3 more: 2 * 3 * 16 * 64 = 6,144. 31,385 / 10,240 = 3.06.
  const Selection selection = SelectOnce(
      Frame(options, Prefer({5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}), kMeanKey), cache);
  EXPECT_EQ(selection.summary_bytes, 3584u + 3 * 6144);
  for (int set = 0; set < 2; ++set) {
    EXPECT_EQ(CountRows(KRows(selection, set)), 65 + 48);
    int inside = 0;
    for (int block = 5; block <= 16; ++block) inside += KRows(selection, set)[block] == 0xFFFF;
    EXPECT_EQ(inside, 3);
  }
}

// Chooses block 1 + n_visible % 8, so that a selection tells when it was chosen.
FramePolicy Clock(int reuse, std::optional<double> cosine = {}) {
  FrameOptions options;
  options.blocks = 1;
  options.reuse = reuse;
  options.reuse_cos = cosine;
  return Frame(
      options,
      [](const ScoreQuery& query, int block) {
        return block == 1 + query.layer->n_visible % 8 ? 1.0f : 0.0f;
      },
      kMeanKey);
}

// n_visible of the step that chose what a step with n rows reads.
int ChosenAt(const Policy& policy, TestCache& cache, int n) {
  cache.See({{0, n}});
  const Selection selection = SelectOnce(policy, cache);
  EXPECT_FALSE(selection.dense);
  for (int back = 0; back < 8; ++back) {
    if (KRows(selection, 0)[1 + (n - back) % 8] == 0xFFFF) {
      EXPECT_EQ(selection.summary_bytes > 0, back == 0);
      return n - back;
    }
  }
  return -1;
}

TEST(Reuse, ChoosesEveryFewSparseDecisionsAndTheWindowMoves) {
  TestCache cache(480, 1, 1, 16);
  const FramePolicy policy = Clock(4);
  const int expected[] = {301, 301, 301, 301, 305, 305, 305, 305, 309, 309};
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(ChosenAt(policy, cache, 301 + i), expected[i]);
    const Selection selection = SelectOnce(policy, cache);
    EXPECT_EQ(ToRanges(KRows(selection, 0)).back(), (RowRange{301 + i - 64, 301 + i}));
  }
}

TEST(Reuse, RolledBackChoicesAreForgotten) {
  TestCache cache(480, 1, 1, 16);
  const FramePolicy policy = Clock(4);
  for (int n = 301; n <= 310; ++n) ChosenAt(policy, cache, n);  // chosen at 301, 305, 309
  EXPECT_EQ(ChosenAt(policy, cache, 307), 305);
  EXPECT_EQ(ChosenAt(policy, cache, 308), 305);
  EXPECT_EQ(ChosenAt(policy, cache, 309), 309);
  EXPECT_EQ(ChosenAt(policy, cache, 303), 301);
  // Before the first sparse decision: it is the first one now.
  EXPECT_EQ(ChosenAt(policy, cache, 290), 290);
  EXPECT_EQ(ChosenAt(policy, cache, 293), 290);
  EXPECT_EQ(ChosenAt(policy, cache, 294), 294);
}

TEST(Reuse, AMissingChoiceIsMadeAnewAndThePhaseStays) {
  TestCache cache(960, 1, 1, 16);
  const FramePolicy policy = Clock(4);
  for (int n = 301; n <= 301 + 4 * 12; ++n) ChosenAt(policy, cache, n);
  EXPECT_EQ(cache.memory().choices.size(), 8u);
  EXPECT_EQ(ChosenAt(policy, cache, 307), 307);  // 305's is gone
  EXPECT_EQ(ChosenAt(policy, cache, 307), 307);  // another row in its place chooses for itself
  EXPECT_EQ(ChosenAt(policy, cache, 308), 307);
  EXPECT_EQ(ChosenAt(policy, cache, 309), 309);
  // Rows appended in one go (a prompt's next part) skip phases.
  EXPECT_EQ(ChosenAt(policy, cache, 403), 403);
  EXPECT_EQ(ChosenAt(policy, cache, 404), 403);
  EXPECT_EQ(ChosenAt(policy, cache, 405), 405);
}

// The whole chosen block stays, also the rows that lay in the window when it was chosen.
TEST(Reuse, TheCutBlockStaysWhole) {
  TestCache cache(480, 1, 1, 16);
  FrameOptions options;
  options.blocks = 1;
  options.reuse = 8;
  const FramePolicy policy = Frame(options, Prefer({15}));
  cache.See({{0, 310}});
  EXPECT_EQ(ToRanges(KRows(SelectOnce(policy, cache), 0)), (Ranges{{0, 1}, {240, 310}}));
  cache.See({{0, 314}});
  EXPECT_EQ(ToRanges(KRows(SelectOnce(policy, cache), 0)), (Ranges{{0, 1}, {240, 314}}));
  cache.See({{0, 317}});
  EXPECT_EQ(ToRanges(KRows(SelectOnce(policy, cache), 0)), (Ranges{{0, 1}, {240, 317}}));
}

TEST(Reuse, RowsThatAreNoLongerVisibleAreNotRead) {
  TestCache cache(480, 1, 1, 16);
  FrameOptions options;
  options.blocks = 1;
  options.reuse = 8;
  const FramePolicy policy = Frame(options, Prefer({5}));
  cache.See({{0, 310}});
  SelectOnce(policy, cache);
  cache.See({{0, 80}, {84, 316}});
  EXPECT_EQ(ToRanges(KRows(SelectOnce(policy, cache), 0)), (Ranges{{0, 1}, {84, 96}, {252, 316}}));
}

TEST(Reuse, ChoosesAgainWhenTheQueryTurns) {
  TestCache cache(480, 1, 1, 16);
  const FramePolicy policy = Clock(/*reuse=*/0, 0.5);
  auto turn = [&](float x, float y) {
    std::fill_n(cache.QueryHead(0), 16, 0.0f);
    cache.QueryHead(0)[0] = x;
    cache.QueryHead(0)[1] = y;
  };
  turn(1, 0);
  EXPECT_EQ(ChosenAt(policy, cache, 301), 301);
  EXPECT_EQ(ChosenAt(policy, cache, 302), 301);
  turn(1, 1);  // cosine 0.71
  EXPECT_EQ(ChosenAt(policy, cache, 303), 301);
  turn(1, 2);  // 0.45 to the query that chose
  EXPECT_EQ(ChosenAt(policy, cache, 304), 304);
  turn(1, 1);  // 0.95 to that of 304
  EXPECT_EQ(ChosenAt(policy, cache, 305), 304);
  turn(1, 0);
  EXPECT_EQ(ChosenAt(policy, cache, 306), 306);
  turn(0, 0);  // no direction
  EXPECT_EQ(ChosenAt(policy, cache, 307), 307);
}

TEST(Reuse, ChoicesOfOtherSharesAreNotTaken) {
  TestCache cache(480, 1, 2, 16);
  FrameOptions options;
  options.blocks = 1;
  options.reuse = 4;
  options.share = Share::kPerHead;
  cache.See({{0, 301}});
  SelectOnce(Frame(options, Prefer({3})), cache);
  options.share = Share::kKvGroup;
  cache.See({{0, 302}});
  const Selection selection = SelectOnce(Frame(options, Prefer({4})), cache);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 1}, {64, 80}, {238, 302}}));
}

TEST(Frame, AWarmStepAllocatesNothing) {
  for (const char* spec : {"mean:blocks=4", "quest:blocks=4,share=per_head", "oracle:blocks=4",
                           "oracle:blocks=4,by=value", "mean:blocks=2,share=rerank",
                           "mean:blocks=4,share=head_union,reuse=2", "sink", "random", "unique",
                           "unique:form=abs", "mass", "mass:groups=d,share=per_head"}) {
    TestCache cache(2048, 3, 9, 64);
    const Result<BoundPolicy> bound = MakePolicy(spec);
    ASSERT_TRUE(bound.ok());
    const LayerQuery whole = cache.Query();
    Selection selection;
    // As many choices as are kept, then some.
    auto step = [&](int back) {
      LayerQuery query = whole;
      query.n_visible -= back;
      bound.value().policy->Select(query, selection);
    };
    for (int back = 40; back > 20; --back) step(back);
    ASSERT_FALSE(selection.dense);
    const long before = Allocations();
    for (int back = 20; back > 0; --back) step(back);
    EXPECT_EQ(Allocations() - before, 0) << spec;
  }
}

}  // namespace
}  // namespace condense
