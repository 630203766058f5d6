// `pillar`: what the last verification attended to (PillarAttn of SparseSpec, arXiv 2512.01278). A
// dense call of several rows says what share of the softmax each row got, summed over its queries,
// rejected ones too, and the heads of the KV group; until the next call, steps read the rows with
// most of it, the first `anchor`, the last `window`, and all rows since. Ranking is done once a
// call, at its first step; steps look nothing up and compute nothing. As in the authors' code the
// shares take a second pass over the keys in the call, which the counters of the first step behind
// it show, with the shares that are ranked. Unlike the original: anchor and window (it reads the
// tokens just accepted alone), sums in place of means (the same ranking), and before the first
// verification the last queries of the prompt stand for it, where the original reads everything.
// Where no call is known the budget goes to the last rows.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/result.h"
#include "select/registry.h"
#include "select/row_keys.h"
#include "select/row_parts.h"
#include "select/row_shares.h"

namespace condense {
namespace {

// Steps back to which it is known whether the keys of the call were counted.
constexpr size_t kMaxCounted = 8;

// Of the calling thread.
struct StepScratch {
  RowParts parts;
  std::vector<int32_t> seen;  // visible rows, ascending
};

class PillarPolicy final : public Policy {
 public:
  explicit PillarPolicy(const RowOptions& options) : options_(options) {}

  PromptWants prompt_wants() const override {
    return {.windows = {}, .last_queries = 0, .last_call = true};
  }

  void Select(const LayerQuery& query, Selection& selection) const override {
    static thread_local StepScratch scratch;
    StepScratch& s = scratch;
    selection.Reset();
    if (options_.dense_layers.Contains(query.layer)) {
      selection.reason = Fallback::kLayer;
      return;
    }
    // So that rows which change unseen are noticed.
    query.index->Refresh(*query.kv, kFingerprint, query.visible);
    FindRowParts(query, options_.anchor, options_.window, s.parts);
    const int n_rows = options_.RowsOf(query.n_visible);
    if (options_.byte_share && n_rows < s.parts.n_always) {
      selection.reason = Fallback::kBudget;
      return;
    }
    if (std::max(n_rows, s.parts.n_always) >= query.n_visible) {
      selection.reason = Fallback::kShort;
      return;
    }
    SeenCall* call = query.calls != nullptr ? query.calls->Find(*query.kv, query.visible) : nullptr;
    if (call != nullptr && !AddRowsSince(query, *call, n_rows, s.parts)) call = nullptr;
    if (call != nullptr && !call->Rank(n_rows)) {
      selection.reason = Fallback::kNan;
      return;
    }
    selection.dense = false;
    selection.n_blocks = static_cast<int>(query.visible.size());
    for (int g = 0; g < query.kv->n_kv_heads; ++g) {
      selection.k_masks.insert(selection.k_masks.end(), s.parts.always.begin(),
                               s.parts.always.end());
    }
    if (call == nullptr) return WidenWindow(query, n_rows, s, selection);
    for (int g = 0; g < query.kv->n_kv_heads; ++g)
      AddBest(query, call->ranking[g], n_rows - s.parts.n_always, selection.KMask(g));
    if (IsFirstStep(query, *call)) {
      selection.summary_bytes = static_cast<uint64_t>(call->n_seen) * query.kv->n_kv_heads *
                                (query.kv->KeyBytes() + sizeof(float));
    }
  }

 private:
  // To what is always read, the rows that the call's first query did not see. False, with nothing
  // added, where the budget does not cover them.
  static bool AddRowsSince(const LayerQuery& query, const SeenCall& call, int n_rows,
                           RowParts& parts) {
    const std::span<const uint16_t> base = call.base.rows();
    const auto since = [&](size_t b) {
      return static_cast<uint16_t>(query.visible[b] & ~(b < base.size() ? base[b] : 0));
    };
    int n = 0;
    for (size_t b = 0; b < query.visible.size(); ++b)
      n += CountBits(static_cast<uint16_t>(since(b) | parts.always[b]));
    if (n > n_rows) return false;
    for (size_t b = 0; b < query.visible.size(); ++b)
      parts.always[b] = static_cast<uint16_t>(parts.always[b] | since(b));
    parts.n_always = n;
    return true;
  }

  // The best n rows that are visible and not in the mask.
  static void AddBest(const LayerQuery& query, std::span<const int32_t> ranking, int n,
                      uint16_t* mask) {
    const size_t n_blocks = query.visible.size();
    for (size_t i = 0; i < ranking.size() && n > 0; ++i) {
      const int32_t row = ranking[i];
      if (static_cast<size_t>(row) / kBlockRows >= n_blocks || !HasRow(query.visible, row) ||
          HasRow({mask, n_blocks}, row))
        continue;
      AddRow({mask, n_blocks}, row);
      --n;
    }
  }

  // Down from the newest row, until the budget is spent.
  static void WidenWindow(const LayerQuery& query, int n_rows, StepScratch& s,
                          Selection& selection) {
    ListRows(query.visible, s.seen);
    int n_left = n_rows - s.parts.n_always;
    for (size_t i = s.seen.size(); i-- > 0 && n_left > 0;) {
      if (HasRow(s.parts.always, s.seen[i])) continue;
      for (int g = 0; g < query.kv->n_kv_heads; ++g)
        AddRow({selection.KMask(g), query.visible.size()}, s.seen[i]);
      --n_left;
    }
  }

  // Whether no step behind the call has counted its keys; from now on this one has.
  static bool IsFirstStep(const LayerQuery& query, const SeenCall& call) {
    CONDENSE_CHECK(query.memory != nullptr);
    std::vector<SequenceMemory::Choice>& counted = query.memory->choices;
    if (!counted.empty() && counted.back().n_visible > call.n_base) return false;
    if (counted.size() == kMaxCounted) counted.erase(counted.begin());
    counted.emplace_back().n_visible = query.n_visible;
    return true;
  }

  const RowOptions options_;
};

CONDENSE_REGISTER_POLICY(
    pillar,
    PolicyInfo{.name = "pillar",
               .summary = "rows that the last call of several rows (a verification) attended to, "
                          "and all rows since",
               .source = "SparseSpec, arXiv 2512.01278",
               .label = "for drafts of exact decoding; anchor and window besides; before the first "
                        "verification the prompt's last 17 queries stand for it",
               .keys = {TokensKey(193), BudgetKey("", "instead of tokens"), AnchorKey(1),
                        WindowKey(64), DenseLayersKey()},
               .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                 return std::make_unique<PillarPolicy>(ReadRowBudget(reader));
               }});

}  // namespace
}  // namespace condense
