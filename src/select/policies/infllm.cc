// `infllm`: blocks by representative rows (InfLLM, arXiv 2402.04617). The rows between the first
// `anchor` and the last `window` ones form blocks of 128 in the order in which the sequence sees
// them; each has 4 representatives, the rows that the queries of their local window attended to
// most, that is the prompt's queries that saw them among the last `window` rows. A block is worth
// the sum over all heads of q·k of its representatives; the layer reads the best blocks, and what
// the budget leaves over widens the window. Unlike the original, positions are the true ones (it
// gives all distant rows one and the same), representatives are chosen per KV head, and queries of
// steps do not vote: of blocks without votes four rows at equal distances stand for all.
// Representatives are found anew at each step from the column sums (4 bytes a row and query head,
// which no counter shows); their keys are counted.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/top.h"
#include "select/key_reader.h"
#include "select/registry.h"
#include "select/row_keys.h"
#include "select/row_shares.h"

namespace condense {
namespace {

constexpr int kInfBlock = 128, kRepresentatives = 4;
constexpr int kMostAnchor = 1'000'000;

// Of the calling thread; the team works on it.
struct StepScratch {
  std::vector<int32_t> seen;    // [n_visible] rows, ascending
  RowMask mask;                 // rows read
  std::vector<int32_t> reps;    // [n_kv_heads, n_blocks, kRepresentatives]
  std::vector<float> per_head;  // [n_kv_heads, n_blocks]
  std::vector<float> scores;    // [n_blocks]
  std::vector<int32_t> keys;
  std::vector<int> best;
};

// One step's candidates: rows seen[begin, end), those that are read in any case left out.
struct Candidates {
  int begin = 0, end = 0;

  int n() const { return std::max(0, end - begin); }
  int n_blocks() const { return (n() + kInfBlock - 1) / kInfBlock; }
  int First(int block) const { return begin + block * kInfBlock; }
  int Size(int block) const { return std::min(kInfBlock, end - First(block)); }
};

class InfllmPolicy final : public Policy {
 public:
  explicit InfllmPolicy(const RowOptions& options) : options_(options) {}

  PromptWants prompt_wants() const override {
    return {.windows = {options_.window}, .last_queries = 0};
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
    const Candidates candidates = FindCandidates(query, s);
    const int n_always = CountRows(s.mask);
    const double rows =
        options_.byte_share ? *options_.byte_share * query.n_visible : options_.tokens;
    selection.reason = WhyDense(rows, n_always, query.n_visible);
    if (selection.reason == Fallback::kNone) Read(query, candidates, rows - n_always, s, selection);
  }

 private:
  Fallback WhyDense(double rows, int n_always, int n_visible) const {
    if (options_.byte_share && rows < n_always) return Fallback::kBudget;
    // A newest row before the window is read beside the rows that `tokens` counts.
    return rows >= n_visible || n_always >= n_visible ? Fallback::kShort : Fallback::kNone;
  }

  // What `rest` rows, or the bytes of as many, buy beside the rows that are always read.
  void Read(const LayerQuery& query, const Candidates& candidates, double rest, StepScratch& s,
            Selection& selection) const {
    // What the keys of a block's representatives cost, in rows.
    const auto key = static_cast<double>(query.kv->KeyBytes());
    const double rep_rows =
        options_.byte_share
            ? kRepresentatives * key / (key + static_cast<double>(query.kv->ValueBytes()))
            : 0;
    const int n_blocks = candidates.n_blocks();
    const double for_blocks = std::max(0.0, rest - rep_rows * n_blocks);
    const int n_best =
        std::min(n_blocks, static_cast<int>(std::floor(for_blocks / (kInfBlock - rep_rows))));
    if (n_best > 0) {
      if (!ChooseBlocks(query, candidates, n_best, s)) {
        selection.reason = Fallback::kNan;
        return;
      }
      rest -= rep_rows * (n_blocks - n_best);
      for (int block : std::span(s.best).first(n_best)) {
        for (int i = 0; i < candidates.Size(block); ++i)
          rest -= AddSeen(candidates.First(block) + i, s);
      }
    }
    // What is left widens the window.
    for (int i = candidates.end; i-- > candidates.begin && rest >= 1;) rest -= AddSeen(i, s);
    Fill(query, candidates, n_best > 0, s, selection);
  }

  // Lists the visible rows, puts those always read into the mask, returns where the others lie.
  Candidates FindCandidates(const LayerQuery& query, StepScratch& s) const {
    ListRows(query.visible, s.seen);
    s.mask.assign(query.visible.size(), 0);
    const int n = static_cast<int>(s.seen.size());
    Candidates candidates;
    candidates.begin = std::min(options_.anchor, n);
    candidates.end = std::max(candidates.begin, n - options_.window);
    for (int i = 0; i < candidates.begin; ++i) AddRow(s.mask, s.seen[i]);
    for (int i = candidates.end; i < n; ++i) AddRow(s.mask, s.seen[i]);
    if (query.newest_row >= 0 && HasRow(query.visible, query.newest_row))
      AddRow(s.mask, query.newest_row);
    return candidates;
  }

  // 1 where the i-th visible row was not read yet.
  static int AddSeen(int i, StepScratch& s) {
    if (HasRow(s.mask, s.seen[i])) return 0;
    AddRow(s.mask, s.seen[i]);
    return 1;
  }

  // The n_best best blocks to s.best; false where a score is no number.
  bool ChooseBlocks(const LayerQuery& query, const Candidates& candidates, int n_best,
                    StepScratch& s) const {
    const int n_blocks = candidates.n_blocks(), n_kv_heads = query.kv->n_kv_heads;
    const SeenPrompt* record =
        query.prompts != nullptr ? query.prompts->Find(*query.kv, query.visible) : nullptr;
    const SeenPrompt::Sums* sums = record != nullptr ? record->SumsOf(options_.window) : nullptr;
    s.reps.resize(static_cast<size_t>(n_kv_heads) * n_blocks * kRepresentatives);
    s.per_head.resize(static_cast<size_t>(n_kv_heads) * n_blocks);
#pragma omp parallel for num_threads(query.n_threads) if (query.n_threads > 1) schedule(static)
    for (int g = 0; g < n_kv_heads; ++g) ScoreBlocks(query, candidates, g, sums, s);
    s.scores.resize(n_blocks);
    for (int b = 0; b < n_blocks; ++b) {
      s.scores[b] = 0;
      for (int g = 0; g < n_kv_heads; ++g)
        s.scores[b] += s.per_head[static_cast<size_t>(g) * n_blocks + b];
    }
    s.keys.resize(n_blocks);
    s.best.resize(n_blocks);
    return TopScores(s.scores.data(), n_blocks, n_best, s.keys.data(), s.best.data()) == n_best;
  }

  // One KV head's representatives and what its heads make of them.
  static void ScoreBlocks(const LayerQuery& query, const Candidates& candidates, int kv_head,
                          const SeenPrompt::Sums* sums, StepScratch& s) {
    static thread_local std::vector<float> q;       // [k_dim] the group's sum
    static thread_local std::vector<float> logits;  // of representatives, whole blocks
    const int n_blocks = candidates.n_blocks(), group = query.group(), k_dim = query.kv->k_dim;
    q.assign(k_dim, 0.0f);
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      for (int c = 0; c < k_dim; ++c) q[c] += query.q[static_cast<size_t>(h) * k_dim + c];
    }
    int32_t* reps = s.reps.data() + static_cast<size_t>(kv_head) * n_blocks * kRepresentatives;
    for (int b = 0; b < n_blocks; ++b) {
      const std::span<const int32_t> rows(s.seen.data() + candidates.First(b),
                                          static_cast<size_t>(candidates.Size(b)));
      Represent(rows, sums, kv_head * group, group, reps + b * kRepresentatives);
    }
    const int n_reps = n_blocks * kRepresentatives;
    LayerQuery plain = query;  // sums over heads are not what a model's soft-cap is for
    plain.softcap = 0;
    logits.resize(ListStride(n_reps));
    ListLogits(plain, *query.kv, {.kv_head = kv_head, .first_head = 0, .n_heads = 1}, q.data(),
               {reps, static_cast<size_t>(n_reps)}, logits.data(), logits.size());
    float* scores = s.per_head.data() + static_cast<size_t>(kv_head) * n_blocks;
    for (int b = 0; b < n_blocks; ++b) {
      scores[b] = 0;
      for (int j = 0; j < kRepresentatives; ++j) scores[b] += logits[b * kRepresentatives + j];
    }
  }

  // A block's representatives, ascending; fewer rows than those stand for themselves, repeated.
  static void Represent(std::span<const int32_t> rows, const SeenPrompt::Sums* sums, int first_head,
                        int group, int32_t* reps) {
    float votes[kInfBlock];
    int32_t keys[kInfBlock];
    int best[kRepresentatives];
    const int n = static_cast<int>(rows.size());
    bool any = false;
    for (int i = 0; i < n; ++i) {
      votes[i] = 0;
      for (int h = first_head; sums != nullptr && h < first_head + group; ++h)
        votes[i] += SeenPrompt::Sum(*sums, h, rows[i]);
      any = any || votes[i] > 0;
    }
    const bool voted = any && n >= kRepresentatives &&
                       TopScores(votes, n, kRepresentatives, keys, best) == kRepresentatives;
    for (int j = 0; j < kRepresentatives; ++j)
      reps[j] = rows[voted ? best[j] : n * j / kRepresentatives];
  }

  static void Fill(const LayerQuery& query, const Candidates& candidates, bool scored,
                   const StepScratch& s, Selection& selection) {
    if (CountRows(s.mask) == query.n_visible) {
      selection.reason = Fallback::kShort;
      return;
    }
    selection.dense = false;
    selection.n_blocks = static_cast<int>(query.visible.size());
    for (int g = 0; g < query.kv->n_kv_heads; ++g)
      selection.k_masks.insert(selection.k_masks.end(), s.mask.begin(), s.mask.end());
    if (!scored) return;
    // Keys of representatives whose rows are not read; those of one block are apart from each
    // other, but for blocks of fewer rows.
    const size_t n_reps = static_cast<size_t>(candidates.n_blocks()) * kRepresentatives;
    for (int g = 0; g < query.kv->n_kv_heads; ++g) {
      int32_t before = -1;
      for (size_t i = 0; i < n_reps; ++i) {
        const int32_t row = s.reps[g * n_reps + i];
        if (row != before && !HasRow(s.mask, row)) selection.summary_bytes += query.kv->KeyBytes();
        before = row;
      }
    }
  }

  const RowOptions options_;
};

CONDENSE_REGISTER_POLICY(
    infllm,
    PolicyInfo{
        .name = "infllm",
        .summary = "blocks of 128 rows by q·k of the 4 that their local window attended to most",
        .source = "InfLLM, arXiv 2402.04617",
        .label = "true positions; representatives per KV head, from the prompt's queries; anchor "
                 "and window of the original are 128 and 4096",
        .keys = {TokensKey(385),
                 BudgetKey("", "instead of tokens"),
                 AnchorKey(64, kMostAnchor),
                 {"window", "64",
                  "rows: the last visible ones are always read, and queries vote on rows among "
                  "them; 1 to 1000000"},
                 DenseLayersKey()},
        .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
          return std::make_unique<InfllmPolicy>(ReadRowBudget(reader, 0, kMostAnchor));
        }});

}  // namespace
}  // namespace condense
