// `topk`: the rows that are worth most, a row's worth being its exact softmax share summed over the
// heads of the KV group: what `condense` would choose if its codes were exact and every row whose K
// it reads gave its V too. It reads every key to choose, so it is an upper line for row selection
// at a given support and never a speed; as for `oracle`, a byte budget buys rows alone and the
// counters still show the keys. One choice a KV head; none per query head.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attend.h"
#include "kernels/top.h"
#include "select/key_reader.h"
#include "select/registry.h"
#include "select/row_parts.h"

namespace condense {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr float kNoCandidate = -1.0f;  // below any share

struct Options {
  int tokens = 193;                  // rows read in all, unless byte_share is set
  std::optional<double> byte_share;  // (0, 1] of the bytes that dense attention reads
  int anchor = 1, window = 64;
  LayerRange dense_layers;
};

// Of the calling thread; the team works on it.
struct StepScratch {
  RowParts parts;
  std::vector<float> p;       // [n_query_heads, 16 n_blocks] logits, then exp(logit - the largest)
  std::vector<double> share;  // [n_query_heads] what 1 of p is as a share of all visible rows
  std::vector<float> worth;   // [n_kv_heads, 16 n_blocks]
  std::vector<int32_t> keys;  // [n_kv_heads, 16 n_blocks]
  std::vector<int> best;      // [n_kv_heads, n_best]
};

// The logits of one chunk's visible rows for the heads of one group, others' -inf, to `p`.
void ChunkLogits(const LayerQuery& query, int kv_head, int chunk, std::vector<float>& p) {
  static thread_local std::vector<float> logits;  // [group, 16 blocks]
  static thread_local std::vector<const uint16_t*> masks;
  const KvView& kv = *query.kv;
  const int n_blocks = static_cast<int>(query.visible.size());
  const int block = chunk * kChunkBlocks, group = query.group();
  AttendArgs args;
  args.k = kv.KeyRow(kv_head, block * kBlockRows);
  args.k_stride = kv.k_row;
  args.k_type = kv.k_type;
  args.k_dim = kv.k_dim;
  args.n_blocks = std::min(kChunkBlocks, n_blocks - block);
  args.n_queries = group;
  args.q = query.q + static_cast<size_t>(kv_head) * group * kv.k_dim;
  args.scale = query.scale;
  args.softcap = query.softcap;
  masks.assign(group, query.visible.data() + block);
  args.masks = masks.data();
  logits.resize(static_cast<size_t>(group) * kChunkRows);
  RowLogits(args, logits.data());
  const size_t n_rows = static_cast<size_t>(args.n_blocks) * kBlockRows;
  for (int h = 0; h < group; ++h) {
    std::copy_n(logits.data() + h * n_rows, n_rows,
                p.data() + (static_cast<size_t>(kv_head) * group + h) * n_blocks * kBlockRows +
                    static_cast<size_t>(block) * kBlockRows);
  }
}

// One head's logits to exponentials; returns their share, or nullopt where a logit is NaN or none
// is finite.
std::optional<double> Exponentials(std::span<float> p) {
  float max = kMinusInf;
  for (float z : p) max = z > max || z != z ? z : max;  // keeps NaN
  if (!std::isfinite(max)) return std::nullopt;
  double sum = 0;
  for (float& z : p) {
    z = std::exp(z - max);
    sum += z;
  }
  return 1 / sum;
}

class TopkPolicy final : public Policy {
 public:
  explicit TopkPolicy(const Options& options) : options_(options) {}

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
    if (!Choose(query, n_best, s, selection)) {
      selection.Reset();
      selection.reason = Fallback::kNan;
      return;
    }
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

  // The rows always read and the n_best best of the others; false where a logit is not a number or
  // infinite.
  static bool Choose(const LayerQuery& query, int n_best, StepScratch& s, Selection& selection) {
    const int n_blocks = static_cast<int>(query.visible.size());
    const int n_kv_heads = query.kv->n_kv_heads, n_chunks = ChunksFor(n_blocks * kBlockRows);
    const size_t n_rows = static_cast<size_t>(n_blocks) * kBlockRows;
    selection.n_blocks = n_blocks;
    selection.k_masks.resize(static_cast<size_t>(n_kv_heads) * n_blocks);
    s.p.resize(query.n_query_heads * n_rows);
    s.share.resize(query.n_query_heads);
    s.worth.resize(n_kv_heads * n_rows);
    s.keys.resize(n_kv_heads * n_rows);
    s.best.resize(static_cast<size_t>(n_kv_heads) * n_best);
    bool finite = true;
#pragma omp parallel num_threads(query.n_threads) if (query.n_threads > 1)
    {
#pragma omp for schedule(static)
      for (int i = 0; i < n_kv_heads * n_chunks; ++i)
        ChunkLogits(query, i / n_chunks, i % n_chunks, s.p);
#pragma omp for schedule(static) reduction(&& : finite)
      for (int h = 0; h < query.n_query_heads; ++h) {
        const std::optional<double> share = Exponentials({s.p.data() + h * n_rows, n_rows});
        s.share[h] = share.value_or(0);
        finite = finite && share;
      }
#pragma omp for schedule(static)
      for (int g = 0; g < n_kv_heads; ++g) ChooseRows(query, g, n_best, s, selection);
    }
    return finite;
  }

  static void ChooseRows(const LayerQuery& query, int kv_head, int n_best, StepScratch& s,
                         Selection& selection) {
    const size_t n_blocks = query.visible.size(), n_rows = n_blocks * kBlockRows;
    const std::span<uint16_t> mask(selection.KMask(kv_head), n_blocks);
    std::copy(s.parts.always.begin(), s.parts.always.end(), mask.begin());
    if (n_best == 0) return;
    const int group = query.group();
    float* worth = s.worth.data() + kv_head * n_rows;
    for (size_t r = 0; r < n_rows; ++r) {
      const int row = static_cast<int>(r);
      double sum = 0;
      for (int h = kv_head * group; h < (kv_head + 1) * group; ++h)
        sum += s.p[h * n_rows + r] * s.share[h];
      const bool candidate = HasRow(query.visible, row) && !HasRow(mask, row);
      worth[r] = candidate ? static_cast<float>(sum) : kNoCandidate;
    }
    int* best = s.best.data() + static_cast<size_t>(kv_head) * n_best;
    const int n =
        TopScores(worth, static_cast<int>(n_rows), n_best, s.keys.data() + kv_head * n_rows, best);
    for (int i = 0; i < n; ++i) AddRow(mask, best[i]);
  }

  const Options options_;
};

std::unique_ptr<Policy> Make(KeyReader& reader) {
  Options options;
  options.anchor = static_cast<int>(reader.Int("anchor", 0, 1024));
  options.window = static_cast<int>(reader.Int("window", 1, 1'000'000));
  options.dense_layers = reader.Layers("dense_layers");
  if (reader.Given("budget")) {
    if (reader.Given("tokens"))
      reader.Fail("tokens and budget exclude each other: give one of them");
    options.byte_share = reader.Percent("budget", 0.01, 100) / 100;
  } else {
    options.tokens = static_cast<int>(reader.Int("tokens", 1, 32'000'000));
    const int least = options.anchor + options.window;
    if (options.tokens < least) {
      reader.Fail("tokens=" + std::to_string(options.tokens) + " is less than anchor + window, " +
                  std::to_string(least) + " rows that are always read");
    }
  }
  return std::make_unique<TopkPolicy>(options);
}

CONDENSE_REGISTER_POLICY(
    topk,
    PolicyInfo{
        .name = "topk",
        .summary = "rows by their true attention mass: an upper line that reads every key to "
                   "choose",
        .source = "exact attention probabilities",
        .label = "no speed: every key is read; a byte budget counts rows alone",
        .keys = {{"tokens", "193",
                  "budget: rows read per KV head, anchor and window counted; 1 to "
                  "32000000",
                  true},
                 {"budget", "",
                  "budget: share of the K + V bytes of dense attention, such as 5%; instead of "
                  "tokens",
                  true},
                 {"anchor", "1", "rows: the first visible ones are always read; 0 to 1024"},
                 {"window", "64", "rows: the last visible ones are always read; 1 to 1000000"},
                 {"dense_layers", "none", "layers kept dense: 0-1, 7 or none"}},
        .make = Make});

}  // namespace
}  // namespace condense
