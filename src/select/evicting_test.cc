// Evicting policies against plain loops in double, and that what they evicted is gone for good.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "select/row_shares.h"
#include "select/test_allocations.h"
#include "select/test_cache.h"
#include "select/test_choice.h"
#include "select/test_rows.h"

namespace condense {
namespace {

constexpr int kRows = 420, kKvHeads = 2, kGroup = 3, kHeads = kKvHeads * kGroup, kDim = 32;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Keys and queries as a model's are: no two logits alike. The prompt's sums and queries are made
// up.
class Layer {
 public:
  Layer() : cache(kRows, kKvHeads, kHeads, kDim) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (int row = 0; row < kRows; ++row) {
      for (int g = 0; g < kKvHeads; ++g) {
        for (int c = 0; c < kDim; ++c) cache.Key(g, row)[c] = normal(random);
      }
    }
  }

  void Ask(int seed) {
    std::mt19937 random(1000 + seed);
    std::normal_distribution<float> normal;
    for (int h = 0; h < kHeads; ++h) {
      for (int c = 0; c < kDim; ++c) cache.QueryHead(h)[c] = 4.0f * normal(random);
    }
  }

  // One step of `policy` that sees rows [0, n).
  Selection Step(const Policy& policy, int n, int n_threads = 1) {
    Ask(n);
    cache.See({{0, n}});
    LayerQuery query = cache.Query();
    query.newest_row = n - 1;
    query.n_threads = n_threads;
    Selection selection;
    policy.Select(query, selection);
    return selection;
  }

  // As a prompt of rows [0, n) leaves it; query i of it asks what Ask(-i) asks.
  SeenPrompt& Prompt(const Policy& policy, int n) {
    RowMask visible(BlocksFor(kRows), 0);
    SeenPrompt* record = nullptr;
    for (int row = 0; row < n; ++row) {
      AddRow(visible, row);
      record = &cache.prompts().Take(cache.view(), policy.prompt_wants(), kHeads, row, visible);
      if (record->ring.empty()) continue;
      Ask(-row);
      SeenPrompt::Query& query = record->NextQuery();
      query.q.assign(cache.QueryHead(0), cache.QueryHead(0) + kHeads * kDim);
      query.visible = visible;
    }
    for (SeenPrompt::Sums& sums : record->sums) {
      std::mt19937 random(9);
      for (std::vector<float>& of_head : sums.heads) {
        for (int row = 0; row < n; ++row)
          of_head[row] = static_cast<float>(random() % 100000) / 100000.0f;
      }
    }
    return *record;
  }

  // The shares that a head of the query in force gives `rows`.
  std::map<int, double> Shares(int head, const std::set<int>& rows) {
    const LayerQuery query = cache.Query();
    std::map<int, double> shares;
    double sum = 0;
    for (int row : rows) sum += shares[row] = std::exp(Logit(cache, query, head, row));
    for (auto& [row, share] : shares) share /= sum;
    return shares;
  }

  TestCache cache;
};

// Leaves n rows: the last n_recent and the others of most worth.
void Keep(std::set<int>& rows, std::map<int, double>& worth, int n, int n_recent) {
  const int n_lost = static_cast<int>(rows.size()) - n;
  std::vector<int> least(rows.begin(), std::prev(rows.end(), n_recent));
  std::sort(least.begin(), least.end(),
            [&](int a, int b) { return worth[a] != worth[b] ? worth[a] < worth[b] : a > b; });
  for (int i = 0; i < n_lost; ++i) rows.erase(least[i]);
}

std::set<int> FirstRows(int n) {
  std::set<int> rows;
  for (int row = 0; row < n; ++row) rows.insert(row);
  return rows;
}

// H2O in plain loops.
TEST(H2oPolicyTest, KeepsWhatPlainLoopsKeep) {
  struct Case {
    const char* spec;
    bool per_head;
    int tokens, n_recent;
  };
  for (const auto& [spec, per_head, tokens, n_recent] :
       {Case{"h2o:tokens=80", true, 80, 40}, Case{"h2o:tokens=80,share=kv_group", false, 80, 40},
        Case{"h2o:tokens=61,recent=20%", true, 61, 13},
        Case{"h2o:tokens=40,recent=100%", true, 40, 40}}) {
    for (bool with_prompt : {true, false}) {
      const std::unique_ptr<Policy> policy = Make(spec);
      Layer layer;
      const SeenPrompt* record = with_prompt ? &layer.Prompt(*policy, 300) : nullptr;
      const int n_sets = per_head ? kHeads : kKvHeads, heads = kHeads / n_sets;
      std::vector<std::set<int>> kept(n_sets, FirstRows(300));
      std::vector<std::map<int, double>> worth(n_sets);
      for (int set = 0; set < n_sets && with_prompt; ++set) {
        for (int row = 0; row < 300; ++row) {
          for (int h = set * heads; h < (set + 1) * heads; ++h)
            worth[set][row] += SeenPrompt::Sum(*record->SumsOf(0), h, row);
        }
      }
      for (int n = 301; n <= 380; ++n) {
        const Selection selection = layer.Step(*policy, n);
        ASSERT_FALSE(selection.dense) << spec << n;
        ASSERT_EQ(selection.per_query_head, per_head);
        for (int set = 0; set < n_sets; ++set) {
          kept[set].insert(n - 1);
          Keep(kept[set], worth[set], tokens, n_recent);
          ASSERT_EQ(RowsOf(selection, set), kept[set]) << spec << ' ' << n << ' ' << set;
          for (int h = set * heads; h < (set + 1) * heads; ++h) {
            for (const auto& [row, share] : layer.Shares(h, kept[set])) worth[set][row] += share;
          }
        }
      }
    }
  }
}

// Steps count from the first one on, while there is room for all rows too.
TEST(H2oPolicyTest, DenseStepsCount) {
  const std::unique_ptr<Policy> policy = Make("h2o:tokens=60,recent=10%");
  Layer layer;
  std::set<int> kept = FirstRows(49);
  std::vector<std::map<int, double>> worth(kHeads);
  for (int n = 50; n <= 61; ++n) {
    const Selection selection = layer.Step(*policy, n);
    kept.insert(n - 1);
    EXPECT_EQ(selection.dense, n <= 60);
    if (selection.dense) {
      EXPECT_EQ(selection.reason, Fallback::kShort);
      EXPECT_EQ(selection.summary_bytes, 0u);
      for (int h = 0; h < kHeads; ++h) {
        for (const auto& [row, share] : layer.Shares(h, kept)) worth[h][row] += share;
      }
      continue;
    }
    for (int h = 0; h < kHeads; ++h) {
      std::set<int> of_head = kept;
      Keep(of_head, worth[h], 60, 6);
      EXPECT_EQ(RowsOf(selection, h), of_head);
    }
  }
}

TEST(H2oPolicyTest, CountsItsState) {
  const std::unique_ptr<Policy> policy = Make("h2o:tokens=80,share=kv_group");
  Layer layer;
  layer.Prompt(*policy, 300);
  // Every prompt row's sums at the first step; then number and two sums of the kept rows.
  EXPECT_EQ(layer.Step(*policy, 301).summary_bytes, 301u * kHeads * 4 + 2u * 80 * 12);
  EXPECT_EQ(layer.Step(*policy, 302).summary_bytes, 2u * 80 * 12);
}

TEST(H2oPolicyTest, ABudgetIsOfBytes) {
  const std::unique_ptr<Policy> policy = Make("h2o:budget=20%");
  Layer layer;
  for (int n = 300; n <= 400; ++n) {
    const Selection selection = layer.Step(*policy, n);
    ASSERT_FALSE(selection.dense || selection.per_query_head);
    const double row = 2 * kDim * sizeof(float);
    const double bytes = BytesRead(selection, layer.cache.view());
    EXPECT_LE(bytes, 0.2 * n * kKvHeads * row);
    EXPECT_GT(bytes, 0.2 * n * kKvHeads * row - 2 * kKvHeads * row);
  }
  EXPECT_EQ(layer.Step(*Make("h2o:budget=0.1%"), 401).reason, Fallback::kBudget);
}

// As torch's max_pool1d and avg_pool1d with padding pool / 2, which a mean counts: at the ends
// shares are of fewer rows and of as many in the divisor.
TEST(SnapkvPolicyTest, AMeanAtTheEndsCountsItsPadding) {
  const std::vector<float> votes = {6, 0, 0, 3, 3, 3, 0, 5};
  std::vector<float> pooled(votes.size());
  PoolAround(votes, 3, /*average=*/true, pooled);
  EXPECT_EQ(pooled, (std::vector<float>{2, 2, 1, 2, 3, 2, 8 / 3.0f, 5 / 3.0f}));
  PoolAround(votes, 3, /*average=*/false, pooled);
  EXPECT_EQ(pooled, (std::vector<float>{6, 6, 3, 3, 3, 3, 5, 5}));
}

// SnapKV in plain loops.
TEST(SnapkvPolicyTest, KeepsWhatPlainLoopsKeep) {
  struct Case {
    const char* spec;
    int tokens, reach;
    bool average;
  };
  for (const auto& [spec, tokens, reach, average] :
       {Case{"snapkv:tokens=100,observe=24", 100, 3, false},
        Case{"snapkv:tokens=90,observe=24,pool=1", 90, 0, false},
        Case{"snapkv:tokens=100,observe=24,pooling=average", 100, 3, true}}) {
    const std::unique_ptr<Policy> policy = Make(spec);
    Layer layer;
    layer.Prompt(*policy, 300);
    std::vector<std::map<int, double>> votes(kKvHeads);
    for (int row = 276; row < 300; ++row) {
      layer.Ask(-row);
      for (int h = 0; h < kHeads; ++h) {
        for (const auto& [seen, share] : layer.Shares(h, FirstRows(row + 1)))
          votes[h / kGroup][seen] += share;
      }
    }
    std::vector<std::set<int>> kept(kKvHeads, FirstRows(301));
    const int n_before = 301 - 25;
    for (int g = 0; g < kKvHeads; ++g) {
      std::map<int, double> pooled;
      for (int row = 0; row < n_before; ++row) {
        for (int near = std::max(0, row - reach); near <= std::min(n_before - 1, row + reach);
             ++near) {
          pooled[row] =
              average ? pooled[row] + votes[g][near] : std::max(pooled[row], votes[g][near]);
        }
      }
      Keep(kept[g], pooled, tokens, 25);
    }
    for (int n = 301; n <= 340; ++n) {
      const Selection selection = layer.Step(*policy, n);
      ASSERT_FALSE(selection.dense || selection.per_query_head);
      // The vote reads the keys of the rows that lose; later steps read nothing to choose.
      EXPECT_EQ(selection.summary_bytes,
                n == 301 ? 2u * (301 - tokens) * kDim * sizeof(float) : 0u);
      for (int g = 0; g < kKvHeads; ++g) {
        kept[g].insert(n - 1);
        ASSERT_EQ(RowsOf(selection, g), kept[g]) << spec << ' ' << n;
      }
    }
  }
}

// A vote that comes late, as in exact decoding, whose verifications take the step that voted back:
// what followed the prompt is read beside what is kept of it.
TEST(SnapkvPolicyTest, ALateVoteKeepsWhatFollowsThePrompt) {
  for (const char* spec : {"snapkv:tokens=100,observe=8", "snapkv:budget=30%,observe=8"}) {
    const std::unique_ptr<Policy> policy = Make(spec);
    Layer steps, late;
    steps.Prompt(*policy, 300);
    late.Prompt(*policy, 300);
    for (int n = 301; n < 350; ++n) steps.Step(*policy, n);
    const Selection expected = steps.Step(*policy, 350), selection = late.Step(*policy, 350);
    ASSERT_FALSE(selection.dense);
    for (int g = 0; g < kKvHeads; ++g) EXPECT_EQ(RowsOf(selection, g), RowsOf(expected, g)) << spec;
    // Nor does it vote again for that.
    late.cache.memory().evictions.TakeBack(301);
    EXPECT_TRUE(Same(steps.Step(*policy, 351), late.Step(*policy, 351))) << spec;
    EXPECT_EQ(late.Step(*policy, 352).summary_bytes, 0u);
    late.cache.memory().evictions.TakeBack(300);
    EXPECT_GT(late.Step(*policy, 353).summary_bytes, 0u);
  }
}

TEST(SnapkvPolicyTest, ALaterPromptVotesOnWhatIsLeft) {
  const std::unique_ptr<Policy> policy = Make("snapkv:tokens=60,observe=8");
  Layer layer;
  layer.Prompt(*policy, 200);
  const Selection first = layer.Step(*policy, 201);
  ASSERT_EQ(CountRows(KRows(first, 0)), 60);
  layer.Prompt(*policy, 300);
  const Selection second = layer.Step(*policy, 301);
  for (int g = 0; g < kKvHeads; ++g) {
    EXPECT_EQ(CountRows(KRows(second, g)), 60);
    for (int row : RowsOf(second, g)) EXPECT_TRUE(row >= 201 || HasRow(KRows(first, g), row));
  }
}

// TOVA in plain loops.
TEST(TovaPolicyTest, KeepsWhatPlainLoopsKeep) {
  for (bool with_prompt : {true, false}) {
    const std::unique_ptr<Policy> policy = Make("tova:tokens=70");
    Layer layer;
    std::map<int, double> worth;
    std::set<int> kept = FirstRows(300);
    const auto average = [&] {
      worth.clear();
      for (int h = 0; h < kHeads; ++h) {
        for (const auto& [row, share] : layer.Shares(h, kept)) worth[row] += share;
      }
    };
    if (with_prompt) {
      layer.Prompt(*policy, 300);
      layer.Ask(-299);
      average();
    }
    for (int n = 301; n <= 380; ++n) {
      const Selection selection = layer.Step(*policy, n);
      ASSERT_FALSE(selection.dense || selection.per_query_head);
      kept.insert(n - 1);
      Keep(kept, worth, 70, 1);
      for (int g = 0; g < kKvHeads; ++g) ASSERT_EQ(RowsOf(selection, g), kept) << n;
      const uint64_t lost = n == 301 && with_prompt ? kKvHeads * 231u * kDim * 4 : 0;
      EXPECT_EQ(selection.summary_bytes, 70u * 8 + lost);
      average();
    }
  }
}

// Rows behind the prompt that no step was there to drop are none that got nothing.
TEST(TovaPolicyTest, ALateStepKeepsWhatFollowsThePrompt) {
  const std::unique_ptr<Policy> policy = Make("tova:tokens=70");
  Layer layer;
  layer.Prompt(*policy, 300);
  const Selection selection = layer.Step(*policy, 330);
  for (int row = 300; row < 330; ++row) EXPECT_TRUE(HasRow(KRows(selection, 0), row)) << row;
  EXPECT_EQ(CountRows(KRows(selection, 0)), 70);
  Layer later;
  later.Prompt(*policy, 300);
  EXPECT_EQ(ToRanges(KRows(later.Step(*policy, 400), 0)), (std::vector<RowRange>{{330, 400}}));
}

const char* const kSpecs[] = {"h2o:tokens=80", "h2o:budget=20%", "snapkv:tokens=100",
                              "tova:tokens=70"};

// A row that no head keeps any more could as well be gone: its key and value are.
TEST(EvictingPolicyTest, EvictedRowsAreNotReadAgain) {
  for (const char* spec : kSpecs) {
    const std::unique_ptr<Policy> policy = Make(spec);
    ASSERT_TRUE(policy->evicts());
    Layer intact, poisoned;
    intact.Prompt(*policy, 300);
    poisoned.Prompt(*policy, 300);
    std::vector<std::set<int>> before;
    for (int n = 301; n <= 390; ++n) {
      const Selection a = intact.Step(*policy, n), b = poisoned.Step(*policy, n);
      ASSERT_FALSE(b.dense) << spec << ' ' << n;
      ASSERT_TRUE(Same(a, b)) << spec << ' ' << n;
      const int n_sets = b.per_query_head ? kHeads : kKvHeads;
      std::set<int> read;
      std::vector<std::set<int>> now;
      for (int set = 0; set < n_sets; ++set) {
        now.push_back(RowsOf(b, set));
        read.insert(now[set].begin(), now[set].end());
        for (int row : now[set]) {
          EXPECT_TRUE(before.empty() || row == n - 1 || before[set].contains(row))
              << spec << ": row " << row << " came back at " << n;
        }
      }
      before = now;
      for (int row = 0; row < n; ++row) {
        if (read.contains(row)) continue;
        for (int g = 0; g < kKvHeads; ++g) std::fill_n(poisoned.cache.Key(g, row), kDim, kNan);
      }
    }
  }
}

TEST(EvictingPolicyTest, StepsTakenBackLeaveNoTrace) {
  for (const char* spec : kSpecs) {
    const std::unique_ptr<Policy> policy = Make(spec);
    Layer straight, rolled;
    straight.Prompt(*policy, 300);
    rolled.Prompt(*policy, 300);
    for (int n = 301; n <= 340; ++n) {
      straight.Step(*policy, n);
      rolled.Step(*policy, n);
    }
    for (int n = 341; n <= 360; ++n) rolled.Step(*policy, n);
    rolled.cache.memory().evictions.TakeBack(340);
    for (int n = 341; n <= 380; ++n)
      EXPECT_TRUE(Same(straight.Step(*policy, n), rolled.Step(*policy, n))) << spec << ' ' << n;
  }
}

TEST(EvictingPolicyTest, ThreadsChangeNothing) {
  for (const char* spec : kSpecs) {
    const std::unique_ptr<Policy> policy = Make(spec);
    Layer one, two;
    one.Prompt(*policy, 300);
    two.Prompt(*policy, 300);
    for (int n = 301; n <= 320; ++n) {
      const Selection alone = one.Step(*policy, n, 1);
      ASSERT_FALSE(alone.dense) << spec << ' ' << n;
      EXPECT_TRUE(Same(alone, two.Step(*policy, n, 2))) << spec << ' ' << n;
    }
  }
}

TEST(EvictingPolicyTest, AWarmStepAllocatesNothing) {
  for (const char* spec : kSpecs) {
    const std::unique_ptr<Policy> policy = Make(spec);
    Layer layer;
    layer.Prompt(*policy, 280);
    int n = 281;
    Selection selection;
    for (; n <= 340; ++n) selection = layer.Step(*policy, n);
    for (; n <= 400; ++n) {
      layer.Ask(n);
      layer.cache.See({{0, n}});
      LayerQuery query = layer.cache.Query();
      query.newest_row = n - 1;
      const long before = Allocations();
      policy->Select(query, selection);
      EXPECT_EQ(Allocations() - before, 0) << spec << ' ' << n;
    }
  }
}

TEST(EvictingPolicyTest, ALogitThatIsNoNumberIsDense) {
  for (const char* spec : kSpecs) {
    const std::unique_ptr<Policy> policy = Make(spec);
    Layer layer;
    layer.Step(*policy, 301);
    layer.cache.Key(1, 301)[0] = kNan;
    const Selection selection = layer.Step(*policy, 302);
    // Whose choice asks no logit of the step leaves the number to attention.
    const bool asks = std::string(spec).find("snapkv") == std::string::npos;
    EXPECT_EQ(selection.dense, asks) << spec;
    EXPECT_EQ(selection.reason, asks ? Fallback::kNan : Fallback::kNone) << spec;
    // Once the row is another's, the rows are still those that were left.
    for (int c = 0; c < kDim; ++c) layer.cache.Key(1, 301)[c] = 0.5f;
    EXPECT_FALSE(layer.Step(*policy, 303).dense) << spec;
  }
}

TEST(EvictingPolicyTest, RowsThatAreNotThereAnyMoreAreNotRead) {
  for (const char* spec : kSpecs) {
    const std::unique_ptr<Policy> policy = Make(spec);
    Layer layer;
    layer.Step(*policy, 301);
    layer.cache.See({{10, 303}});
    LayerQuery query = layer.cache.Query();
    query.newest_row = 302;
    Selection selection;
    policy->Select(query, selection);
    ASSERT_FALSE(selection.dense);
    const int n_sets = selection.per_query_head ? kHeads : kKvHeads;
    for (int set = 0; set < n_sets; ++set) EXPECT_FALSE(HasRow(KRows(selection, set), 9)) << spec;
  }
}

TEST(EvictingPolicyTest, SpecsSayWhatIsWrong) {
  EXPECT_EQ(ErrorOf("h2o:tokens=97,budget=8%"),
            "h2o: tokens and budget exclude each other: give one of them");
  EXPECT_THAT(ErrorOf("h2o:budget=20%,share=per_head"),
              ::testing::HasSubstr("h2o: share=per_head takes tokens"));
  EXPECT_EQ(ErrorOf("h2o:recent=101%"), "h2o: recent=101% is out of range: 0% to 100%");
  EXPECT_EQ(ErrorOf("snapkv:pool=4"),
            "snapkv: pool=4 has no middle row: give an odd number, such as 5");
  EXPECT_EQ(ErrorOf("snapkv:tokens=32"),
            "snapkv: tokens=32 is less than 33, the observing rows and the newest one");
  EXPECT_EQ(ErrorOf("tova:tokens=0"), "tova: tokens=0 is out of range: 1 to 32000000");
  EXPECT_EQ(SpecOf("h2o"), "h2o:tokens=97");
  EXPECT_EQ(SpecOf("h2o:budget=20%,share=kv_group"), "h2o:budget=20%,share=kv_group");
  EXPECT_EQ(SpecOf("snapkv:observe=64,tokens=193"), "snapkv:tokens=193,observe=64");
}

}  // namespace
}  // namespace condense
