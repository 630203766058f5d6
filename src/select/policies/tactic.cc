// `tactic` (after Tactic, arXiv 2502.12216): a budget that adapts to how attention is spread. Keys
// are clustered by k-means, 16 rows a cluster; the clusters are ranked by the query's product with
// their mean, which all but sorts the rows; what rows hold by their rank x is fitted as a/x + b,
// from the exact shares of two sampled clusters, but for the first ranks, which are known exactly;
// the best clusters are read until that curve says that `mass` is reached, averaged over the heads
// of the KV group. The original clusters the whole prompt at once, without regard to place; here
// rows are clustered within pieces of up to 1,024, so that a rollback leaves no trace.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/token_codes.h"
#include "select/cluster_ranking.h"
#include "select/registry.h"
#include "select/row_keys.h"
#include "select/row_shares.h"

namespace condense {
namespace {

// Shares of the first ranks fall too steeply for the curve: one in 50 is looked at, and 16 at
// least.
constexpr int kHeadPart = 50, kLeastHead = 16;
// Where the curve is sampled, as parts of the ranks: a cluster at each.
constexpr double kSampleAt[] = {0.1, 0.6};

struct Options {
  RowOptions rows;    // byte_share: the most that is read
  double mass = 0.9;  // (0, 1]
};

// What the rows after rank x0 hold: the sum of a / x + b.
struct Tail {
  double a = 0, b = 0, x0 = 0;

  double Mass(double x) const { return a * std::log((x + 0.5) / (x0 + 0.5)) + b * (x - x0); }
};

// y1, y2: the mean share at ranks whose inverses' mean is u1 > u2. Neither term is negative.
Tail Fit(double y1, double u1, double y2, double u2, double x0) {
  Tail tail{.a = (y1 - y2) / (u1 - u2), .b = 0, .x0 = x0};
  if (tail.a < 0) {
    tail.a = 0;
    tail.b = (y1 + y2) / 2;
  } else {
    tail.b = y1 - tail.a * u1;
    if (tail.b < 0) {
      tail.b = 0;
      tail.a = y1 / u1;
    }
  }
  return tail;
}

// A cluster whose rows' shares are known: place in the ranking, [begin, end) in `sampled`.
struct Sample {
  int place = 0, begin = 0, end = 0;
};

struct HeadScratch {
  ClusterRanking ranking;
  std::vector<Sample> samples;   // places of the head, then those of kSampleAt
  int n_head = 0;                // of `samples`; the other two follow, or none
  std::vector<int32_t> sampled;  // rows
  std::vector<float> logits;     // [group, rows always read and sampled]
  std::vector<double> mass;      // [n_clusters + 1] of the rows always read and so many clusters
  std::vector<int32_t> rows;     // scratch
};

// Of the calling thread; the team works on it.
struct StepScratch {
  ClusterStep step;
  std::vector<HeadScratch> heads;  // [n_kv_heads]
};

class TacticPolicy final : public Policy {
 public:
  explicit TacticPolicy(const Options& options) : options_(options) {}

  int least_rows() const override { return kLeastClusteredRows; }

  void Select(const LayerQuery& query, Selection& selection) const override {
    static thread_local StepScratch scratch;
    StepScratch& s = scratch;
    selection.Reset();
    if (options_.rows.dense_layers.Contains(query.layer)) {
      selection.reason = Fallback::kLayer;
      return;
    }
    if (query.n_visible < kLeastClusteredRows || *options_.rows.byte_share >= 1) {
      selection.reason = Fallback::kShort;
      return;
    }
    FindClusterRows(query, options_.rows.anchor, options_.rows.window, s.step);
    const KvView& kv = *query.kv;
    const double row = static_cast<double>(kv.KeyBytes() + kv.ValueBytes());
    const double rest = row * (*options_.rows.byte_share * query.n_visible -
                               static_cast<double>(s.step.always_rows.size()));
    if (s.step.n_candidates() == 0 || rest < 0) {
      selection.reason = rest < 0 ? Fallback::kBudget : Fallback::kShort;
      return;
    }
    RefreshClusters(query, s.step);
    ChooseByHead(query, s.step.always, s.heads, selection,
                 [&](int g, HeadScratch& head, std::span<uint16_t> mask) {
                   return ChooseHead(query, g, rest, s.step, head, mask);
                 });
  }

 private:
  // Adds rows to the mask. rest: bytes left when the rows always read are paid. Returns the bytes
  // read to choose; nullopt where something is not finite.
  std::optional<uint64_t> ChooseHead(const LayerQuery& query, int kv_head, double rest,
                                     const ClusterStep& step, HeadScratch& head,
                                     std::span<uint16_t> mask) const {
    const auto k = static_cast<double>(query.kv->KeyBytes() + ClusterPiece::kMemberBytes);
    const auto v = static_cast<double>(query.kv->ValueBytes());
    uint64_t bytes = ClusterRankBytes(query, kv_head);
    rest -= static_cast<double>(bytes);
    if (rest < 0) return 0;  // means that the budget does not cover are not read
    const ClusterRanking& ranking = head.ranking;
    if (!head.ranking.Rank(query, kv_head)) return std::nullopt;
    PickSamples(head);
    for (const Sample& sample : head.samples) rest -= k * ranking.RowsOf(sample.place);
    if (rest < 0) return bytes;
    if (!Masses(query, kv_head, step, head)) return std::nullopt;
    const auto is_sample = [&](int place) {
      return std::any_of(head.samples.begin(), head.samples.end(),
                         [&](const Sample& sample) { return sample.place == place; });
    };
    const double target = options_.mass * query.group();
    for (int place = 0; place < ranking.n_clusters() && head.mass[place] < target; ++place) {
      const bool sampled = is_sample(place);
      rest -= ranking.RowsOf(place) * (sampled ? v : k + v);
      if (rest < 0) break;
      head.rows.clear();
      ranking.AppendRows(place, step.always, head.rows);
      for (int32_t row : head.rows) AddRow(mask, row);
      if (!sampled) bytes += ranking.RowsOf(place) * ClusterPiece::kMemberBytes;
    }
    for (const Sample& sample : head.samples)
      bytes += ranking.RowsOf(sample.place) * ClusterPiece::kMemberBytes;
    for (int32_t row : head.sampled) bytes += HasRow(mask, row) ? 0 : query.kv->KeyBytes();
    return bytes;
  }

  // Every cluster where there are but few.
  static void PickSamples(HeadScratch& head) {
    const ClusterRanking& ranking = head.ranking;
    const int n = ranking.n_clusters(), n_rows = ranking.RowsBefore(n);
    const int n_exact = std::max(kLeastHead, n_rows / kHeadPart);
    head.samples.clear();
    head.n_head = 0;
    while (head.n_head < n && ranking.RowsBefore(head.n_head) < n_exact)
      head.samples.push_back({.place = head.n_head++});
    if (n - head.n_head < 4) {
      while (head.n_head < n) head.samples.push_back({.place = head.n_head++});
      return;
    }
    int place = head.n_head;
    for (double at : kSampleAt) {
      while (place + 1 < n && ranking.RowsBefore(place + 1) <= at * n_rows) ++place;
      head.samples.push_back({.place = place++});
    }
  }

  // head.mass, summed over the group.
  static bool Masses(const LayerQuery& query, int kv_head, const ClusterStep& step,
                     HeadScratch& head) {
    head.sampled.clear();
    for (Sample& sample : head.samples) {
      sample.begin = static_cast<int>(head.sampled.size());
      head.ranking.AppendRows(sample.place, step.always, head.sampled);
      sample.end = static_cast<int>(head.sampled.size());
    }
    const size_t n_fixed = ListStride(step.always_rows.size());
    const size_t n_sampled = ListStride(head.sampled.size()), n = n_fixed + n_sampled;
    const HeadRange heads = GroupOf(query, kv_head);
    head.logits.resize(heads.n_heads * n);
    ListLogits(query, *query.kv, heads, query.q, step.always_rows, head.logits.data(), n);
    ListLogits(query, *query.kv, heads, query.q, head.sampled, head.logits.data() + n_fixed, n);
    head.mass.assign(head.ranking.n_clusters() + 1, 0.0);
    for (int h = 0; h < heads.n_heads; ++h) {
      float* logits = head.logits.data() + h * n;
      if (!AddMasses({logits, n_fixed}, {logits + n_fixed, n_sampled}, head)) return false;
    }
    return true;
  }

  // One query head's.
  static bool AddMasses(std::span<float> fixed, std::span<float> sampled, HeadScratch& head) {
    const float max = LargerOrNan(LargestOf(fixed.data(), static_cast<int>(fixed.size())),
                                  LargestOf(sampled.data(), static_cast<int>(sampled.size())));
    if (!std::isfinite(max)) return false;
    double of_fixed = 0;
    for (float z : fixed) of_fixed += std::exp(z - max);
    for (float& z : sampled) z = std::exp(z - max);
    const auto sum_of = [&](const Sample& sample) {
      double sum = 0;
      for (int i = sample.begin; i < sample.end; ++i) sum += sampled[i];
      return sum;
    };
    double of_head = 0;
    for (int i = 0; i < head.n_head; ++i) of_head += sum_of(head.samples[i]);
    const ClusterRanking& ranking = head.ranking;
    const int n = ranking.n_clusters();
    Tail tail;
    if (head.n_head < n) {
      double y[2], u[2];
      for (int i = 0; i < 2; ++i) {
        const Sample& sample = head.samples[head.n_head + i];
        y[i] = sum_of(sample) / std::max(1, sample.end - sample.begin);
        u[i] = 0;
        for (int x = ranking.RowsBefore(sample.place) + 1;
             x <= ranking.RowsBefore(sample.place + 1); ++x)
          u[i] += 1.0 / x / ranking.RowsOf(sample.place);
      }
      tail = Fit(y[0], u[0], y[1], u[1], ranking.RowsBefore(head.n_head));
    }
    const double sum = of_fixed + of_head + tail.Mass(ranking.RowsBefore(n));
    double mass = of_fixed;
    head.mass[0] += mass / sum;
    for (int i = 0; i < head.n_head; ++i) {
      mass += sum_of(head.samples[i]);
      head.mass[i + 1] += mass / sum;
    }
    for (int place = head.n_head; place < n; ++place)
      head.mass[place + 1] += (mass + tail.Mass(ranking.RowsBefore(place + 1))) / sum;
    return true;
  }

  const Options options_;
};

std::unique_ptr<Policy> Make(KeyReader& reader) {
  Options options;
  options.mass = reader.Percent("mass", 0.01, 100) / 100;
  options.rows = ReadRowOptions(reader);
  options.rows.byte_share = ReadByteShare(reader);
  return std::make_unique<TacticPolicy>(options);
}

CONDENSE_REGISTER_POLICY(
    tactic,
    PolicyInfo{
        .name = "tactic",
        .summary = "clusters of keys by the query's product with their mean, until a fitted curve "
                   "says that a share of the mass is reached",
        .source = "Tactic, arXiv 2502.12216",
        .label = "keys are clustered within pieces of up to 1,024 rows, not all at once; one set a "
                 "KV group",
        .keys = {{"mass", "90%",
                  "share of the estimated attention mass at which a KV head's set ends; 0.01% to "
                  "100%",
                  true},
                 BudgetKey("25%",
                           "the most that is read, all that is read to choose counted; 100% reads "
                           "everything"),
                 AnchorKey(1),
                 WindowKey(64),
                 DenseLayersKey()},
        .make = Make});

}  // namespace
}  // namespace condense
