// `retrieval`: approximate nearest neighbours among the keys, as RetrievalAttention (arXiv
// 2409.10516) looks them up. Its index code is unpublished, so this is an inverted
// file in its place: keys in lists by k-means, 16 rows a list; the lists whose mean the queries
// like best are probed; of the probed rows, those with the greatest exact softmax shares over the
// group are read, with the first rows and the last. Lists are made within pieces of up to 1,024
// rows, so that a rollback leaves no trace. `topk` is the line that a perfect index would reach.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "select/cluster_ranking.h"
#include "select/registry.h"
#include "select/row_keys.h"
#include "select/row_shares.h"

namespace condense {
namespace {

// Of the bytes that are left, what probing may take: with less for values, rows would be known but
// not read.
constexpr double kMostProbed = 0.75;
// Rows between the last closed segment and the window, at most: read always.
constexpr int kLooseRows = 63;

struct Options {
  RowOptions rows;
  int n_lists = 32;
};

struct HeadScratch {
  ClusterRanking ranking;
  std::vector<int32_t> probed;  // rows, list by list
  std::vector<float> logits;    // [group, probed and rows always read]
  std::vector<double> worth;    // [n_probed]
  std::vector<int32_t> order;
};

// Of the calling thread; the team works on it.
struct StepScratch {
  ClusterStep step;
  std::vector<HeadScratch> heads;  // [n_kv_heads]
};

// Rows of one KV head: whose K is looked at, and how many of these are read.
struct Rows {
  int n_probed = 0, n_best = 0;
};

class RetrievalPolicy final : public Policy {
 public:
  explicit RetrievalPolicy(const Options& options) : options_(options) {}

  int least_rows() const override { return kLeastClusteredRows; }

  void Select(const LayerQuery& query, Selection& selection) const override {
    static thread_local StepScratch scratch;
    StepScratch& s = scratch;
    selection.Reset();
    if (options_.rows.dense_layers.Contains(query.layer)) {
      selection.reason = Fallback::kLayer;
      return;
    }
    const std::optional<double>& share = options_.rows.byte_share;
    if (query.n_visible < kLeastClusteredRows || (share && *share >= 1)) {
      selection.reason = Fallback::kShort;
      return;
    }
    FindClusterRows(query, options_.rows.anchor, options_.rows.window, s.step);
    // Whole rows beside those that are read always, were choosing free.
    const double most = (share ? *share * query.n_visible : options_.rows.tokens) -
                        static_cast<double>(s.step.always_rows.size());
    if (most < 0 || s.step.n_candidates() <= most) {
      selection.reason = most < 0 ? Fallback::kBudget : Fallback::kShort;
      return;
    }
    RefreshClusters(query, s.step);
    ChooseByHead(query, s.step.always, s.heads, selection,
                 [&](int g, HeadScratch& head, std::span<uint16_t> mask) {
                   return ChooseHead(query, g, most, s.step, head, mask);
                 });
  }

 private:
  // Adds rows to the mask. Returns the bytes read to choose; nullopt where something is not finite.
  std::optional<uint64_t> ChooseHead(const LayerQuery& query, int kv_head, double most,
                                     const ClusterStep& step, HeadScratch& head,
                                     std::span<uint16_t> mask) const {
    const size_t rank_bytes = ClusterRankBytes(query, kv_head);
    const KvView& kv = *query.kv;
    const double rest = most * static_cast<double>(kv.KeyBytes() + kv.ValueBytes()) -
                        static_cast<double>(rank_bytes);
    // Means that the budget does not cover are not read.
    if (most < 1 || (options_.rows.byte_share && RowsFor(query, rest, 1).n_best == 0)) return 0;
    if (!head.ranking.Rank(query, kv_head)) return std::nullopt;
    const int n_lists = std::min(options_.n_lists, head.ranking.n_clusters());
    const int n_asked = head.ranking.RowsBefore(n_lists);
    Rows rows{.n_probed = n_asked, .n_best = static_cast<int>(most)};
    if (options_.rows.byte_share) rows = RowsFor(query, rest, n_asked);
    Probe(step, std::max(rows.n_probed, rows.n_best), head);
    const int n_probed = static_cast<int>(head.probed.size());
    const int n_best = std::min(rows.n_best, n_probed);
    if (!Worths(query, kv_head, step, head)) return std::nullopt;
    head.order.resize(n_probed);
    for (int i = 0; i < n_probed; ++i) head.order[i] = i;
    std::sort(head.order.begin(), head.order.end(), [&](int a, int b) {
      return head.worth[a] != head.worth[b] ? head.worth[a] > head.worth[b]
                                            : head.probed[a] < head.probed[b];
    });
    for (int i = 0; i < n_best; ++i) AddRow(mask, head.probed[head.order[i]]);
    return rank_bytes + n_probed * ClusterPiece::kMemberBytes + (n_probed - n_best) * kv.KeyBytes();
  }

  // What `rest` bytes buy where n_asked rows were to be probed: fewer where that would leave too
  // little for values, more where all of them could be read.
  static Rows RowsFor(const LayerQuery& query, double rest, int n_asked) {
    const auto k = static_cast<double>(query.kv->KeyBytes() + ClusterPiece::kMemberBytes);
    const auto v = static_cast<double>(query.kv->ValueBytes());
    if (rest < k + v) return {};
    const double n_probed = std::max(std::min<double>(n_asked, std::floor(kMostProbed * rest / k)),
                                     std::floor(rest / (k + v)));
    const double n_best = std::min(n_probed, std::floor((rest - n_probed * k) / v));
    return {.n_probed = static_cast<int>(n_probed), .n_best = static_cast<int>(n_best)};
  }

  // n rows of the best lists; of the last list, its first ones.
  static void Probe(const ClusterStep& step, int n, HeadScratch& head) {
    head.probed.clear();
    for (int place = 0;
         place < head.ranking.n_clusters() && static_cast<int>(head.probed.size()) < n; ++place)
      head.ranking.AppendRows(place, step.always, head.probed);
    if (static_cast<int>(head.probed.size()) > n) head.probed.resize(n);
  }

  // Shares among the rows whose keys are known, summed over the group.
  static bool Worths(const LayerQuery& query, int kv_head, const ClusterStep& step,
                     HeadScratch& head) {
    const size_t n_probed = ListStride(head.probed.size());
    const size_t n = n_probed + ListStride(step.always_rows.size());
    const HeadRange heads = GroupOf(query, kv_head);
    head.logits.resize(heads.n_heads * n);
    ListLogits(query, *query.kv, heads, query.q, head.probed, head.logits.data(), n);
    ListLogits(query, *query.kv, heads, query.q, step.always_rows, head.logits.data() + n_probed,
               n);
    head.worth.assign(head.probed.size(), 0.0);
    for (int h = 0; h < heads.n_heads; ++h) {
      const std::span<float> p(head.logits.data() + h * n, n);
      const std::optional<double> share = ExpShares(p);
      if (!share) return false;
      for (size_t i = 0; i < head.probed.size(); ++i) head.worth[i] += p[i] * *share;
    }
    return true;
  }

  const Options options_;
};

std::unique_ptr<Policy> Make(KeyReader& reader) {
  Options options;
  options.rows = ReadRowBudget(reader, kLooseRows);
  options.n_lists = static_cast<int>(reader.Int("probe", 1, 1'000'000));
  return std::make_unique<RetrievalPolicy>(options);
}

CONDENSE_REGISTER_POLICY(
    retrieval,
    PolicyInfo{
        .name = "retrieval",
        .summary = "rows by the exact logits of those that an inverted file over the keys "
                   "finds",
        .source = "stands for RetrievalAttention, arXiv 2409.10516",
        .label = "IVF stand-in: the authors' index code is unpublished; lists are made within "
                 "pieces of up to 1,024 rows",
        .keys = {TokensKey(193),
                 BudgetKey("", "instead of tokens, all that is read to choose counted"),
                 {"probe", "32",
                  "lists of 16 rows looked at; more where the budget reads all of theirs, "
                  "fewer where it leaves them less than a quarter for values; 1 to 1000000"},
                 AnchorKey(1),
                 WindowKey(64),
                 DenseLayersKey()},
        .make = Make});

}  // namespace
}  // namespace condense
