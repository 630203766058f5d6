// The policy `condense` on made caches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "select/registry.h"
#include "select/row_cache.h"
#include "select/row_parts.h"
#include "select/test_choice.h"

namespace condense {
namespace {

TEST(RowPartsTest, RowsBetweenTheLastClosedSegmentAndTheWindowAreLoose) {
  RowCache cache({.n_rows = 2048, .n_kv_heads = 1, .group = 1});
  RowParts parts;
  for (int n : {1024, 1025, 1087, 1088, 1089, 2048}) {
    cache.See({{0, n}});
    FindRowParts(cache.Query(), 1, 64, parts);
    const int begin = (n - 64) / 64 * 64;
    RowMask always(parts.always.size(), 0), loose(parts.always.size(), 0);
    AddRange(always, {0, 1});
    AddRange(always, {n - 64, n});
    AddRange(loose, {begin, n - 64});
    EXPECT_EQ(parts.always, always) << n;
    EXPECT_EQ(parts.loose, loose) << n;
    EXPECT_EQ(static_cast<int>(parts.segments.size()), begin / 64);
    EXPECT_EQ(parts.n_coded, begin - 1);
    EXPECT_EQ(parts.n_loose, n - 64 - begin);
    EXPECT_EQ(parts.n_always, 65);
  }
}

TEST(RowPartsTest, HolesMakeLooseRows) {
  RowCache cache({.n_rows = 2048, .n_kv_heads = 1, .group = 1});
  cache.See({{70, 300}, {310, 1500}, {1600, 1610}});
  RowParts parts;
  LayerQuery query = cache.Query();
  query.newest_row = 700;  // in a hole that was free
  FindRowParts(query, 3, 64, parts);
  using Ranges = std::vector<RowRange>;
  // The last 64 rows reach into segment 22 (1408 …); segment 10 holds the newest row.
  EXPECT_EQ(ToRanges(parts.always), (Ranges{{70, 73}, {700, 701}, {1446, 1500}, {1600, 1610}}));
  EXPECT_EQ(ToRanges(parts.loose), (Ranges{{640, 700}, {701, 704}, {1408, 1446}}));
  EXPECT_EQ(ToRanges(parts.coded), (Ranges{{73, 300}, {310, 640}, {704, 1408}}));
  EXPECT_EQ(parts.n_loose, 63 + 38);
  std::vector<int32_t> segments(22 - 1);
  std::iota(segments.begin(), segments.end(), 1);
  std::erase(segments, 10);
  EXPECT_EQ(parts.segments, segments);
  EXPECT_EQ(parts.n_always + parts.n_loose + parts.n_coded, query.n_visible);
}

TEST(RowPartsTest, AFewRowsOfASegmentAreLoose) {
  RowCache cache({.n_rows = 2048, .n_kv_heads = 1, .group = 1});
  cache.See({{0, 64}, {64, 71}, {128, 136}, {192, 2048}});
  RowParts parts;
  FindRowParts(cache.Query(), 1, 64, parts);
  using Ranges = std::vector<RowRange>;
  EXPECT_EQ(ToRanges(parts.loose), (Ranges{{64, 71}}));
  EXPECT_EQ(ToRanges(parts.coded), (Ranges{{1, 64}, {128, 136}, {192, 1984}}));
}

TEST(CondensePolicyTest, FallsBackWithItsReason) {
  RowCache cache({.n_rows = 4096, .n_kv_heads = 1, .group = 2});
  cache.See({{0, 1023}});
  EXPECT_EQ(Select(cache, "condense:budget=60%").reason, Fallback::kShort);
  cache.See({{0, 1024}});
  EXPECT_FALSE(Select(cache, "condense:budget=60%").dense);
  EXPECT_EQ(Select(cache, "condense:budget=8%").reason, Fallback::kBudget);
  EXPECT_EQ(Select(cache, "condense:budget=100%").reason, Fallback::kShort);
  EXPECT_EQ(Select(cache, "condense:budget=99.9%,split=1").reason, Fallback::kNone);
  EXPECT_EQ(Select(cache, "condense:dense_layers=0").reason, Fallback::kLayer);
  // Every other 32 rows of each segment are coded; every other 4 rows of 64 are not, and are too
  // many to be read.
  std::vector<RowRange> halves;
  for (int row = 0; row < 4096; row += 64) halves.push_back({row, row + 32});
  cache.See(halves);
  EXPECT_EQ(Select(cache, "condense:budget=30%").reason, Fallback::kNone);
  RowCache longer({.n_rows = 32768, .n_kv_heads = 1, .group = 2});
  std::vector<RowRange> few;
  for (int row = 0; row < 32768; row += 64) few.push_back({row, row + 4});
  longer.See(few);
  EXPECT_EQ(Select(longer, "condense:budget=30%").reason, Fallback::kShort);
}

TEST(CondensePolicyTest, ReadsWhatItsBudgetSays) {
  RowCache cache({.n_rows = 8192, .n_kv_heads = 2, .group = 3});
  for (const char* spec : {"condense:budget=6%", "condense:budget=8%", "condense:budget=30%",
                           "condense:budget=8%,split=1", "condense:budget=8%,split=0.2",
                           "condense:budget=8%,split=0.01", "condense:budget=9%,bits=64",
                           "condense:budget=8%,anchor=9,window=130", "condense:budget=90%",
                           "condense:budget=8%,scan=50%", "condense:budget=12%,scan=40%"}) {
    for (int n : {6000, 7000, 8180}) {
      cache.See({{0, 700}, {712, n + 12}});
      const Selection selection = Select(cache, spec);
      ASSERT_FALSE(selection.dense) << spec << ' ' << n;
      const LayerQuery query = cache.Query();
      const double row = static_cast<double>(query.kv->KeyBytes());
      double bytes = static_cast<double>(selection.summary_bytes);
      for (int g = 0; g < 2; ++g) {
        bytes += row * CountRows(Rows(selection.KMask(g), selection));
        bytes += row * CountRows(Rows(selection.VMask(g), selection));
      }
      const Result<PolicySpec> parsed = ParseSpec(spec);
      const double share = std::stod(parsed->keys[0].second) / 100;
      const double allowed = share * query.n_visible * 2 * row * 2;
      EXPECT_LE(bytes, allowed) << spec << ' ' << n;
      EXPECT_GT(bytes, allowed - 2 * 4 * row) << spec << ' ' << n;
    }
  }
}

// A row that one head of a group looks for, anywhere in the context, at every shape.
TEST(CondensePolicyTest, FindsNeedlesAtFivePercent) {
  int n_shapes = 0;
  for (KvType type : {KvType::kF16, KvType::kBF16, KvType::kQ8_0, KvType::kF32}) {
    for (int dim : {64, 80, 96, 128, 256}) {
      if (type == KvType::kQ8_0 && dim % 32 != 0) continue;
      for (int group : {1, 3, 7, 8}) {
        if (group != 3 && (dim != 64 || type != KvType::kF16)) continue;
        RowCache cache({.n_rows = 4096, .n_kv_heads = 2, .group = group, .dim = dim, .type = type});
        ++n_shapes;
        std::vector<int> needles;
        for (int h = 0; h < cache.n_query_heads(); ++h) {
          needles.push_back(1 + (h * 1237 + dim) % 3900);
          cache.Rewrite(needles[h], h, /*apart=*/3.0f);
          cache.LookFor(h, {needles[h]});
        }
        // Beside q8_0 keys, codes weigh twice as much.
        const std::string spec = type == KvType::kQ8_0 ? "condense:budget=7%"
                                 : dim < 128           ? "condense:budget=5%"
                                                       : "condense:budget=5%,bits=64";
        for (const std::string& each : {spec, spec + ",rotation=on"}) {
          const Selection selection = Select(cache, each.c_str());
          ASSERT_FALSE(selection.dense);
          for (int h = 0; h < cache.n_query_heads(); ++h) {
            EXPECT_TRUE(HasRow(Rows(selection.VMask(h / group), selection), needles[h]))
                << KvTypeName(type) << ' ' << dim << ' ' << group << " head " << h << ' ' << each;
          }
        }
      }
    }
  }
  EXPECT_EQ(n_shapes, 22);
}

// Share of the exact mass that the chosen rows hold, beside the rows with the most of it.
TEST(CondensePolicyTest, KeepsNearlyTheMassOfTheExactlyBestRows) {
  for (int group : {1, 3, 8}) {
    RowCache cache({.n_rows = 8192, .n_kv_heads = 2, .group = group});
    const Selection selection = Select(cache, "condense:budget=8%");
    ASSERT_FALSE(selection.dense);
    RowParts parts;
    FindRowParts(cache.Query(), 1, 64, parts);
    for (int g = 0; g < 2; ++g) {
      std::vector<double> worth = cache.Worth(g);
      const std::span<const uint16_t> k = Rows(selection.KMask(g), selection);
      const std::span<const uint16_t> v = Rows(selection.VMask(g), selection);
      double kept = 0, kept_v = 0;
      std::vector<double> distant;
      for (int r = 0; r < 8192; ++r) {
        if (HasRow(parts.always, r)) continue;
        distant.push_back(worth[r]);
        if (HasRow(k, r)) kept += worth[r];
        if (HasRow(v, r)) kept_v += worth[r];
      }
      std::sort(distant.rbegin(), distant.rend());
      const int n_k = CountRows(k) - parts.n_always, n_v = CountRows(v) - parts.n_always;
      const double best = std::accumulate(distant.begin(), distant.begin() + n_k, 0.0);
      const double best_v = std::accumulate(distant.begin(), distant.begin() + n_v, 0.0);
      EXPECT_GT(kept, 0.85 * best) << group;
      EXPECT_GT(kept_v, 0.9 * best_v) << group;
    }
  }
}

// What a sequence reads where others' rows stand between its own.
TEST(CondensePolicyTest, RowsByTurnsKeepTheMassAndHearNothingOfTheOthers) {
  RowCache cache({.n_rows = 8192}), garbled({.n_rows = 8192});
  std::vector<RowRange> own = {{0, 1030}};
  for (int row = 1030; row < 8192; row += 2) own.push_back({row, row + 1});
  cache.See(own);
  garbled.See(own);
  for (int row = 1031; row < 8192; row += 2)
    std::memset(garbled.KeyBytes(row), 0xFF, size_t{2} * 2 * 64);  // NaN
  const Selection selection = Select(cache, "condense:budget=10%");
  ASSERT_FALSE(selection.dense);
  EXPECT_TRUE(Same(selection, Select(garbled, "condense:budget=10%")));
  // Codes of half the rows each: the whole segments' bytes count.
  const size_t n_segments = selection.summary_bytes / (2 * CodeIndex::ScanBytes(8, 64, 1, 1));
  EXPECT_EQ(n_segments, 127u - 1);
  for (int g = 0; g < 2; ++g) {
    const std::vector<double> worth = cache.Worth(g);
    double kept = 0;
    for (int r = 0; r < 8192; ++r) {
      if (HasRow(Rows(selection.KMask(g), selection), r)) {
        kept += worth[r];
        ASSERT_TRUE(HasRow(cache.visible(), r));
      }
    }
    std::vector<double> sorted = worth;
    std::sort(sorted.rbegin(), sorted.rend());
    const int n = CountRows(Rows(selection.KMask(g), selection));
    EXPECT_GT(kept, 0.8 * std::accumulate(sorted.begin(), sorted.begin() + n, 0.0)) << g;
  }
}

TEST(CondensePolicyTest, ThreadsChangeNothing) {
  for (const char* spec : {"condense:budget=12%", "condense:budget=12%,rotation=on"}) {
    RowCache one({.n_kv_heads = 3}), two({.n_kv_heads = 3});
    EXPECT_TRUE(Same(Select(one, spec, 1), Select(two, spec, 2)));
  }
}

TEST(CondensePolicyTest, RotationWantsTheQueriesProducts) {
  EXPECT_FALSE(Make("condense")->wants_query_products());
  EXPECT_FALSE(Make("condense:rotation=off")->wants_query_products());
  EXPECT_TRUE(Make("condense:rotation=on")->wants_query_products());
  const Result<BoundPolicy> wrong = MakePolicy("condense:rotation=maybe");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error(), ::testing::HasSubstr("rotation"));
  EXPECT_THAT(wrong.error(), ::testing::HasSubstr("maybe"));
  // The same rows with the prompt's queries and without, or with their squares alone, are coded
  // along other axes.
  RowCache with({}), squares({}), without({});
  with.NotePrompt(240, true);
  squares.NotePrompt(240);
  const char* const spec = "condense:budget=12%,rotation=on";
  const Selection a = Select(with, spec), b = Select(squares, spec), c = Select(without, spec);
  ASSERT_FALSE(a.dense || b.dense || c.dense);
  EXPECT_FALSE(Same(a, b));
  EXPECT_FALSE(Same(a, c));
  EXPECT_FALSE(Same(b, c));
  // Where no prompt was seen the steps' own queries weigh, once there are enough.
  for (int i = 1; i < CodeIndex::kFewQueries; ++i) Select(without, spec);
  EXPECT_EQ(without.memory().queries.n_product_rows, CodeIndex::kFewQueries);
  EXPECT_FALSE(Same(Select(without, spec), c));
}

TEST(CondensePolicyTest, RewrittenRowsAreCodedAgain) {
  for (const char* spec : {"condense:budget=12%", "condense:budget=12%,rotation=on"}) {
    RowCache cache({}), fresh({});
    cache.NotePrompt(240, true), fresh.NotePrompt(240, true);
    cache.See({{0, 4000}});
    fresh.See({{0, 4000}});
    Select(cache, spec);
    for (int row : {3990, 3000, 17}) {
      for (RowCache* each : {&cache, &fresh}) {
        each->Rewrite(row, row);
        each->MarkWritten(row);
        each->LookFor(0, {row});
      }
      EXPECT_TRUE(Same(Select(cache, spec), Select(fresh, spec))) << row;
      fresh.codes().Forget();
      fresh.memory() = SequenceMemory();
      if (row == 17) {
        // The codebook knew row 17: all was trained anew, as without a past.
        EXPECT_TRUE(Same(Select(cache, spec), Select(fresh, spec)));
      }
    }
  }
}

// Rows that change without a word from the host: a state is loaded.
TEST(CondensePolicyTest, FingerprintsNoticeARestoredState) {
  RowCache cache({}), fresh({.seed = 2});
  Select(cache, "condense:budget=12%");
  EXPECT_TRUE(cache.index().SpotCheck(*cache.Query().kv, -1));
  RowCache other({.seed = 2});
  for (int row = 0; row < 4096; ++row)
    std::memcpy(cache.KeyBytes(row), other.KeyBytes(row), 2 * 2 * 64);
  EXPECT_FALSE(cache.index().SpotCheck(*cache.Query().kv, -1));
}

TEST(CondensePolicyTest, NanIsDense) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int row : {0, 1000, 4090}) {
    RowCache cache({.type = KvType::kF32});
    std::memcpy(cache.KeyBytes(row) + 4 * 7, &nan, 4);
    const Selection selection = Select(cache, "condense:budget=12%");
    EXPECT_TRUE(selection.dense) << row;
    EXPECT_EQ(selection.reason, Fallback::kNan) << row;
    EXPECT_TRUE(selection.v_masks.empty());
    // The NaN is gone, and so is its trace.
    const float one = 1.0f;
    std::memcpy(cache.KeyBytes(row) + 4 * 7, &one, 4);
    cache.MarkWritten(row);
    EXPECT_FALSE(Select(cache, "condense:budget=12%").dense) << row;
  }
}

TEST(CondensePolicyTest, TheRestTakesTheMeanOfClosedValues) {
  RowCache cache({});
  const Selection selection = Select(cache, "condense:budget=12%");
  const LayerQuery query = cache.Query();
  for (int g = 0; g < 2; ++g) {
    std::vector<double> mean(64, 0.0);
    constexpr int kClosed = 62 * 64;  // all closed segments but the newest
    for (int r = 0; r < kClosed; ++r) {
      const auto* v = reinterpret_cast<const uint16_t*>(query.kv->ValueRow(g, r));
      for (int c = 0; c < 64; ++c) mean[c] += F32FromF16(v[c]) / kClosed;
    }
    for (int h = g * 3; h < g * 3 + 3; ++h) {
      for (int c = 0; c < 64; ++c)
        EXPECT_NEAR(selection.rest_value[h * 64 + c], mean[c], 1e-5) << g << ' ' << h;
    }
  }
}

TEST(CondensePolicyTest, AWarmStepAllocatesNothing) {
  for (const char* spec :
       {"condense:budget=8%", "condense:budget=30%,bits=64", "condense:budget=8%,rotation=on",
        "condense:budget=9%,scan=50%", "condense:budget=20%,mass=70%"}) {
    RowCache cache({.n_kv_heads = 3});
    cache.NotePrompt(240);
    ExpectNoAllocations(cache, spec, {3990, 4095, 3991}, {3992, 4095});  // a segment closes
  }
}

}  // namespace
}  // namespace condense
