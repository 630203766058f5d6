// `tokenselect` (TokenSelect, arXiv 2411.02886): one set of rows for the whole layer. Per query
// head a softmax of the exact logits over the middle rows, those neither among the first nor the
// last; summed over all heads of the layer, the soft vote; the rows with the most are read, with
// the first and the last. `pool=k`: a row's vote is the greatest of the k rows around it. It reads
// every key to choose, which the counters show: it saves values and half the products, not the
// reading of keys, so there is no byte budget. Not taken over: one choice for similar queries in
// succession (reuse by cosine), and logits rounded to bf16.
#include <algorithm>
#include <memory>
#include <vector>

#include "select/registry.h"
#include "select/row_keys.h"
#include "select/row_parts.h"
#include "select/row_shares.h"

namespace condense {
namespace {

// The authors read 128 rows, 2,048 by their vote, and 512. In smaller budgets the first and the
// last keep their parts of it.
constexpr int kAnchor = 128, kWindow = 512, kTokens = 2688;
static_assert(kTokens == kAnchor + 2048 + kWindow);

struct Options {
  int tokens = kTokens, anchor = kAnchor, window = kWindow;
  int pool = 1;  // rows, odd
  LayerRange dense_layers;
};

// Of the calling thread; the team works on it.
struct StepScratch {
  RowParts parts;
  std::vector<uint16_t> middle;  // [n_blocks]
  RowShares shares;
  RowRanking ranking;
  std::vector<int32_t> rows;         // of the middle
  std::vector<float> votes, pooled;  // theirs
};

// Each middle row's vote becomes the greatest of the `pool` rows around it, whatever lies between
// them in the cache; at the ends, of fewer.
void Pool(int pool, StepScratch& s) {
  std::vector<float>& worth = s.ranking.worth;
  ListRows(s.middle, s.rows);
  s.votes.resize(s.rows.size());
  s.pooled.resize(s.rows.size());
  for (size_t i = 0; i < s.rows.size(); ++i) s.votes[i] = worth[s.rows[i]];
  PoolAround(s.votes, pool, /*average=*/false, s.pooled);
  for (size_t i = 0; i < s.rows.size(); ++i) worth[s.rows[i]] = s.pooled[i];
}

class TokenSelectPolicy final : public Policy {
 public:
  explicit TokenSelectPolicy(const Options& options) : options_(options) {}

  int least_rows() const override { return options_.tokens; }

  void Select(const LayerQuery& query, Selection& selection) const override {
    static thread_local StepScratch scratch;
    StepScratch& s = scratch;
    selection.Reset();
    if (options_.dense_layers.Contains(query.layer)) {
      selection.reason = Fallback::kLayer;
      return;
    }
    FindRowParts(query, options_.anchor, options_.window, s.parts);
    // A newest row before the window is read beside the rows that `tokens` counts.
    const int n_always = s.parts.n_always, n_best = std::max(0, options_.tokens - n_always);
    if (n_always + n_best >= query.n_visible) {
      selection.reason = Fallback::kShort;
      return;
    }
    RowsWithout(query.visible, s.parts.always, s.middle);
    if (!s.shares.Compute(query, *query.kv, s.middle)) {
      selection.reason = Fallback::kNan;
      return;
    }
    s.ranking.worth.resize(s.shares.n_rows());
    s.shares.Worths(0, query.n_query_heads, s.ranking.worth.data());
    if (options_.pool > 1) Pool(options_.pool, s);
    const size_t n_blocks = query.visible.size();
    const int n_kv_heads = query.kv->n_kv_heads;
    selection.dense = false;
    selection.n_blocks = static_cast<int>(n_blocks);
    selection.k_masks.resize(n_kv_heads * n_blocks);
    const std::span<uint16_t> mask(selection.KMask(0), n_blocks);
    std::copy(s.parts.always.begin(), s.parts.always.end(), mask.begin());
    AddBestRows(s.middle, n_best, s.ranking, mask);
    for (int g = 1; g < n_kv_heads; ++g) std::copy(mask.begin(), mask.end(), selection.KMask(g));
    const int n_unread = query.n_visible - n_always - n_best;
    selection.summary_bytes = static_cast<uint64_t>(n_unread) * n_kv_heads * query.kv->KeyBytes();
  }

 private:
  const Options options_;
};

std::unique_ptr<Policy> Make(KeyReader& reader) {
  Options options;
  options.tokens = static_cast<int>(reader.Int("tokens", 8, kMostTokens));
  options.anchor = static_cast<int>(
      reader.IntOrAuto("anchor", 0, 1'000'000)
          .value_or(std::min<int64_t>(kAnchor, int64_t{options.tokens} * kAnchor / kTokens)));
  options.window = static_cast<int>(
      reader.IntOrAuto("window", 1, 1'000'000)
          .value_or(std::min<int64_t>(kWindow, int64_t{options.tokens} * kWindow / kTokens)));
  options.pool = static_cast<int>(reader.Int("pool", 1, 255));
  options.dense_layers = reader.Layers("dense_layers");
  if (options.pool % 2 == 0) {
    reader.Fail("pool=" + std::to_string(options.pool) +
                " is even: as many rows count before a row as after it, so give an odd number");
  }
  CheckTokens(reader, options.tokens, int64_t{options.anchor} + options.window);
  return std::make_unique<TokenSelectPolicy>(options);
}

CONDENSE_REGISTER_POLICY(
    tokenselect,
    PolicyInfo{
        .name = "tokenselect",
        .summary = "rows by the sum over all heads of the layer of their softmax over the middle "
                   "rows",
        .source = "TokenSelect, arXiv 2411.02886",
        .label = "reads every key to choose, as the original does; no reuse for similar queries",
        .keys =
            {{"tokens", std::to_string(kTokens),
              "budget: rows read per KV head, first and last counted; 8 to 32000000", true},
             {"anchor", "auto",
              "rows: the first visible ones are always read; 0 to 1000000, or auto: 128, at most "
              "1/21 of tokens"},
             {"window", "auto",
              "rows: the last visible ones are always read; 1 to 1000000, or auto: 512, at most "
              "4/21 of tokens"},
             {"pool", "1", "rows whose greatest vote a row has; odd, 1 to 255"},
             DenseLayersKey()},
        .make = Make});

}  // namespace
}  // namespace condense
