// `topk`: the rows that are worth most, a row's worth being its exact softmax share summed over the
// heads of the KV group: what `condense` would choose if its codes were exact and every row whose K
// it reads gave its V too. It reads every key to choose, so it is an upper line for row selection
// at a given support and never a speed; as for `oracle`, a byte budget buys rows alone and the
// counters still show the keys. One choice a KV head; none per query head.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "select/registry.h"
#include "select/row_parts.h"
#include "select/row_shares.h"

namespace condense {
namespace {

// Of the calling thread; the team works on it.
struct StepScratch {
  RowParts parts;
  std::vector<uint16_t> candidates;  // [n_blocks] visible rows that are not always read
  RowShares shares;
  std::vector<RowRanking> rankings;  // [n_kv_heads]
};

class TopkPolicy final : public Policy {
 public:
  explicit TopkPolicy(const RowOptions& options) : options_(options) {}

  void Select(const LayerQuery& query, Selection& selection) const override {
    static thread_local StepScratch scratch;
    StepScratch& s = scratch;
    selection.Reset();
    if (options_.dense_layers.Contains(query.layer)) {
      selection.reason = Fallback::kLayer;
      return;
    }
    FindRowParts(query, options_.anchor, options_.window, s.parts);
    const int n_rows = RowsOf(query), n_always = s.parts.n_always;
    if (options_.byte_share && n_rows < n_always) {
      selection.reason = Fallback::kBudget;
      return;
    }
    // A newest row before the window is read beside the rows that `tokens` counts.
    const int n_best = std::max(0, n_rows - n_always);
    if (n_always + n_best >= query.n_visible) {
      selection.reason = Fallback::kShort;
      return;
    }
    if (!s.shares.Compute(query, *query.kv, query.visible)) {
      selection.reason = Fallback::kNan;
      return;
    }
    ChooseRows(query, n_best, s, selection);
    selection.dense = false;
    const int n_unread = query.n_visible - n_always - n_best;
    selection.summary_bytes =
        static_cast<uint64_t>(n_unread) * query.kv->n_kv_heads * query.kv->KeyBytes();
  }

 private:
  // Rows of one KV head that the budget pays for; a row's K and V are read or neither.
  int RowsOf(const LayerQuery& query) const {
    if (!options_.byte_share) return options_.tokens;
    return static_cast<int>(std::floor(*options_.byte_share * query.n_visible));
  }

  // The rows always read and the n_best best of the others.
  static void ChooseRows(const LayerQuery& query, int n_best, StepScratch& s,
                         Selection& selection) {
    const size_t n_blocks = query.visible.size();
    const int n_kv_heads = query.kv->n_kv_heads, group = query.group();
    selection.n_blocks = static_cast<int>(n_blocks);
    selection.k_masks.resize(n_kv_heads * n_blocks);
    RowsWithout(query.visible, s.parts.always, s.candidates);
    if (s.rankings.size() < static_cast<size_t>(n_kv_heads)) s.rankings.resize(n_kv_heads);
#pragma omp parallel for num_threads(query.n_threads) if (query.n_threads > 1) schedule(static)
    for (int g = 0; g < n_kv_heads; ++g) {
      const std::span<uint16_t> mask(selection.KMask(g), n_blocks);
      std::copy(s.parts.always.begin(), s.parts.always.end(), mask.begin());
      RowRanking& ranking = s.rankings[g];
      ranking.worth.resize(s.shares.n_rows());
      s.shares.Worths(g * group, (g + 1) * group, ranking.worth.data());
      AddBestRows(s.candidates, n_best, ranking, mask);
    }
  }

  const RowOptions options_;
};

CONDENSE_REGISTER_POLICY(
    topk, PolicyInfo{
              .name = "topk",
              .summary = "rows by their true attention mass: an upper line that reads every key to "
                         "choose",
              .source = "exact attention probabilities",
              .label = "no speed: every key is read; a byte budget counts rows alone",
              .keys = {TokensKey(193), BudgetKey("", "instead of tokens"), AnchorKey(1),
                       WindowKey(64), DenseLayersKey()},
              .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                return std::make_unique<TopkPolicy>(ReadRowBudget(reader));
              }});

}  // namespace
}  // namespace condense
