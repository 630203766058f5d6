// `topk`: the rows that are worth most, a row's worth being its exact softmax share summed over the
// heads of the KV group: what `condense` would choose if its codes were exact and every row whose K
// it reads gave its V too. It reads every key to choose, so it is an upper line for row selection
// at a given support and never a speed; as for `oracle`, a byte budget buys rows alone and the
// counters still show the keys. One choice a KV head; none per query head.
#include <algorithm>
#include <memory>
#include <vector>

#include "select/registry.h"
#include "select/row_keys.h"
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
    const int n_rows = options_.RowsOf(query.n_visible), n_always = s.parts.n_always;
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
    RowsWithout(query.visible, s.parts.always, s.candidates);
    const int group = query.group();
    const uint64_t unread_bytes =
        static_cast<uint64_t>(query.n_visible - n_always - n_best) * query.kv->KeyBytes();
    ChooseByHead(
        query, s.parts.always, s.rankings, selection,
        [&](int g, RowRanking& ranking, std::span<uint16_t> mask) -> std::optional<uint64_t> {
          ranking.worth.resize(s.shares.n_rows());
          s.shares.Worths(g * group, (g + 1) * group, ranking.worth.data());
          AddBestRows(s.candidates, n_best, ranking, mask);
          return unread_bytes;
        });
  }

 private:
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
