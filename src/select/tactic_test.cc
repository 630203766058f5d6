// The policy `tactic` on made caches, against plain forms in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "select/row_cache.h"
#include "select/test_cache.h"
#include "select/test_choice.h"
#include "select/test_clusters.h"
#include "select/test_rows.h"

namespace condense {
namespace {

// The rule in plain loops, for one KV head: its rows.
RowMask SlowTactic(TestCache& cache, const LayerQuery& query, int kv_head, double share,
                   double target, int* n_read) {
  const RowMask always = AlwaysWithLoose(query, 1, 64);
  const std::vector<SlowCluster> clusters = RankedClusters(cache, query, kv_head, always);
  const int n = static_cast<int>(clusters.size());
  std::vector<int> before = {0};
  for (const SlowCluster& cluster : clusters) before.push_back(before.back() + cluster.size);
  const double k = sizeof(float) * query.kv->k_dim, v = k;
  double rest = share * query.n_visible * (k + v) - CountRows(always) * (k + v) -
                static_cast<double>(RankBytes(query, kv_head));
  // What is sampled.
  std::vector<int> places;
  while (before[places.size()] < std::max(16, before[n] / 50)) {
    places.push_back(static_cast<int>(places.size()));
  }
  const int n_head = static_cast<int>(places.size());
  int place = n_head;
  for (double at : {0.1, 0.6}) {
    while (before[place + 1] <= at * before[n]) ++place;
    places.push_back(place++);
  }
  for (int p : places) rest -= (k + 2) * clusters[p].size;
  // The mass by place.
  std::vector<double> mass(n + 1, 0.0);
  const int group = query.group();
  for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    const auto of = [&](const std::vector<int>& rows) {
      double sum = 0;
      for (int row : rows) sum += std::exp(Logit(cache, query, h, row));
      return sum;
    };
    double fixed = 0, head = 0;
    for (int row = 0; row < query.kv->n_rows; ++row) {
      if (HasRow(always, row)) fixed += of({row});
    }
    std::vector<double> known = {fixed};
    for (int p = 0; p < n_head; ++p) {
      head += of(clusters[p].rows);
      known.push_back(fixed + head);
    }
    double y[2], u[2] = {0, 0};
    for (int i = 0; i < 2; ++i) {
      const int p = places[n_head + i];
      y[i] = of(clusters[p].rows) / static_cast<double>(clusters[p].rows.size());
      for (int x = before[p] + 1; x <= before[p + 1]; ++x) u[i] += 1.0 / x / clusters[p].size;
    }
    double a = (y[0] - y[1]) / (u[0] - u[1]), b = y[0] - a * u[0];
    if (a < 0) {
      a = 0, b = (y[0] + y[1]) / 2;
    } else if (b < 0) {
      b = 0, a = y[0] / u[0];
    }
    const double x0 = before[n_head];
    const auto tail = [&](double x) { return a * std::log((x + .5) / (x0 + .5)) + b * (x - x0); };
    const double sum = fixed + head + tail(before[n]);
    for (int p = 0; p <= n; ++p)
      mass[p] += (p <= n_head ? known[p] : fixed + head + tail(before[p])) / sum / group;
  }
  RowMask rows = always;
  *n_read = 0;
  for (int p = 0; p < n && mass[p] < target; ++p) {
    const bool sampled = std::find(places.begin(), places.end(), p) != places.end();
    rest -= clusters[p].size * (sampled ? v : k + v + 2);
    if (rest < 0) break;
    for (int row : clusters[p].rows) AddRow(rows, row);
    ++*n_read;
  }
  return rows;
}

TEST(TacticPolicyTest, ReadsTheClustersThatTheCurveAsksFor) {
  int n_different = 0, last = 0;
  for (const auto& [n_kv_heads, n_heads] : {std::pair(1, 1), std::pair(2, 6)}) {
    for (const auto& [spec, share, mass] :
         {std::tuple("tactic", .25, .9), std::tuple("tactic:mass=50%,budget=90%", .9, .5),
          std::tuple("tactic:mass=80%,budget=95%", .95, .8),
          std::tuple("tactic:mass=100%,budget=40%", .4, 1.0)}) {
      for (float softcap : {0.0f, 5.0f}) {
        TestCache cache(2300, n_kv_heads, n_heads, 32, 3);
        cache.See({{0, 700}, {713, 1900}, {1901, 2280}});
        LayerQuery query = cache.Query();
        query.softcap = softcap;
        Selection selection;
        Make(spec)->Select(query, selection);
        ASSERT_FALSE(selection.dense) << spec;
        uint64_t bytes = selection.summary_bytes;
        for (int g = 0; g < n_kv_heads; ++g) {
          int n_read = 0;
          const RowMask rows = SlowTactic(cache, query, g, share, mass, &n_read);
          EXPECT_EQ(ToRanges(KRows(selection, g)), ToRanges(rows)) << spec << ' ' << g;
          bytes += CountRows(rows) * uint64_t{256};
          n_different += n_read != last;
          last = n_read;
        }
        EXPECT_LE(static_cast<double>(bytes), share * query.n_visible * 256 * n_kv_heads);
      }
    }
  }
  EXPECT_GT(n_different, 8);
}

// Rows that look alike and far apart share a cluster, and a query for one reads all.
TEST(TacticPolicyTest, AQueryReadsTheRowsThatLookAlike) {
  RowCache cache({.n_rows = 4096, .n_kv_heads = 1, .group = 2});
  std::vector<int> alike;
  for (int row = 1030; row < 2000; row += 97) alike.push_back(row);
  for (int row : alike) {
    std::copy_n(cache.KeyBytes(1030), 128, cache.KeyBytes(row));
  }
  cache.LookFor(0, {1030});
  cache.LookFor(1, {1030});
  const Selection selection = Select(cache, "tactic:budget=12%");
  ASSERT_FALSE(selection.dense);
  for (int row : alike) EXPECT_TRUE(HasRow(KRows(selection, 0), row)) << row;
  EXPECT_LT(CountRows(KRows(selection, 0)), 250);  // 3 to 4 % of the mass is in any other row
}

TEST(TacticPolicyTest, EveryTypeStaysInItsBudget) {
  for (KvType type : {KvType::kF16, KvType::kBF16, KvType::kQ8_0, KvType::kF32}) {
    RowCache cache({.n_rows = 4096, .n_kv_heads = 2, .group = 3, .type = type});
    cache.See({{0, 700}, {712, 4000}});
    for (double percent : {8.0, 20.0, 60.0}) {
      const std::string spec = "tactic:mass=100%,budget=" + std::to_string(percent) + "%";
      const Selection selection = Select(cache, spec);
      ASSERT_FALSE(selection.dense) << spec;
      const LayerQuery query = cache.Query();
      const double row = RowBytes(*query.kv), bytes = BytesRead(selection, *query.kv);
      const double allowed = percent / 100 * query.n_visible * 2 * row;
      EXPECT_LE(bytes, allowed) << spec;
      if (percent < 10 && selection.summary_bytes == 0) continue;  // too little for the means
      EXPECT_GT(bytes, allowed - 2 * 80 * row) << spec;  // a cluster that did not fit, samples
    }
  }
}

TEST(TacticPolicyTest, AWindowBeyondTheBudgetIsDense) {
  TestCache cache(2048, 2, 4, 16);
  EXPECT_EQ(Select(cache, "tactic:window=3000,budget=99%").reason, Fallback::kBudget);
}

TEST(TacticPolicyTest, SpecsSayWhatIsWrong) {
  EXPECT_EQ(ErrorOf("tactic:mass=101%"), "tactic: mass=101% is out of range: 0.01% to 100%");
  EXPECT_THAT(ErrorOf("tactic:tokens=193"), ::testing::HasSubstr("has no key 'tokens'"));
  EXPECT_EQ(SpecOf("tactic"), "tactic:mass=90%,budget=25%");
}

}  // namespace
}  // namespace condense
