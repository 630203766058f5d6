// `condense`: rows by their codes, our own rule (parts of it: product quantisation with tables in
// registers, Jegou et al. 2011 and faiss; PQ of KV caches, PQCache 2407.12820; exact scores for a
// shortlist). Every closed segment's rows have a code of 32 bits; a scan of the codes estimates
// each head's logits; the rows with the most estimated mass get exact logits (A), and the half of
// them with the most exact mass is worth its values (B). The mass of A \ B takes the mean value of
// the KV head's closed rows; rows outside A, anchor and window are left out.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "cache/code_index.h"
#include "kernels/summary.h"
#include "select/key_reader.h"
#include "select/registry.h"
#include "select/row_choice.h"
#include "select/row_keys.h"
#include "select/row_parts.h"

namespace condense {
namespace {

// With fewer visible rows everything is read: 64 to 127 rows of window and the codes leave nothing
// to choose with, and a codebook wants some hundred keys.
constexpr int kLeastRows = 1024;
// Fragmented caches may have few closed segments among many visible rows.
constexpr int kLeastSegments = 8;
// Of the last step's least worth: rows worth less are not ranked, unless too few are worth more. On
// a model's text .2 does in 98 of 100 cases, .02 in all but 2 of 1,000.
constexpr float kLookedAt[] = {0.2f, 0.02f, 0.0f};

struct Options {
  double byte_share = 0.08;  // (0, 1] of the bytes that dense attention reads
  double split = 0.5;        // |B| / |A|, (0, 1]
  int n_nibbles = 8;         // of a row's code
  bool rotation = false;
  double scan_share = 1;  // of the segments, (0, 1]
  double mass = 1;        // (0, 1]
  bool copies = false;
  RowOptions rows;  // anchor, window, dense_layers
  int refresh_segments = 64;
};

// What the budget buys of each KV head; nullopt where it does not cover what is read always. Every
// byte counts once, however often it is read: codes and centroids, K and V of the rows always read,
// K of loose rows, K of A, V of B.
std::optional<RowBudget> Buy(const Options& options, const LayerQuery& query,
                             const RowParts& parts) {
  const KvView& kv = *query.kv;
  const KvView read = options.copies ? RowCopies::TypesOf(kv) : kv;
  const auto k_bytes = static_cast<double>(read.KeyBytes());
  const auto v_bytes = static_cast<double>(read.ValueBytes());
  const int n_rows = parts.n_coded + parts.n_loose;  // whose V is a matter of choice
  const double rest =
      options.byte_share * query.n_visible * static_cast<double>(kv.KeyBytes() + kv.ValueBytes()) -
      parts.n_always * (k_bytes + v_bytes) - parts.n_loose * k_bytes;
  // Every key, without a look at the codes.
  const double values = std::floor((rest - parts.n_coded * k_bytes) / v_bytes);
  if (values >= options.split * n_rows) {
    return RowBudget{.n_keys = parts.n_coded,
                     .n_values = static_cast<int>(std::min<double>(n_rows, values))};
  }
  const int n_segments = static_cast<int>(parts.segments.size());
  const int n_scanned = static_cast<int>(std::ceil(options.scan_share * n_segments));
  const auto codes =
      static_cast<double>(CodeIndex::ScanBytes(options.n_nibbles, kv.k_dim, n_segments, n_scanned));
  const double keys = (rest - codes - options.split * parts.n_loose * v_bytes) /
                      (k_bytes + options.split * v_bytes);
  if (keys < 1) return std::nullopt;
  RowBudget budget;
  budget.n_scanned = n_scanned;
  budget.mass = options.mass;
  budget.split = options.split;
  // With fewer keys than there are: all of them would do without codes.
  budget.n_keys = static_cast<int>(std::min<double>(parts.n_coded - 1, std::floor(keys)));
  budget.n_values = static_cast<int>(options.split * (budget.n_keys + parts.n_loose));
  return budget;
}

// Where the mean value of the closed segments' visible rows comes from: all segments but the
// newest, so that rows taken back seldom reach into the sum.
class ValueMeans {
 public:
  ValueMeans(const LayerQuery& query, const RowParts& parts, SequenceMemory::ValueSum& values)
      : query_(query), segments_(parts.segments), values_(values) {
    const KvView& kv = *query.kv;
    const size_t n_values = static_cast<size_t>(kv.n_kv_heads) * kv.v_dim;
    n_target_ = static_cast<int>(segments_.size()) - 1;
    uint64_t key = 0x9E3779B97F4A7C15ull;
    bool same = values.n_segments == 0;
    for (int i = 0; i < n_target_; ++i) {
      key = (key ^ static_cast<uint64_t>(segments_[i])) * 0xD6E8FEB86659FD93ull;
      key = (key ^ query.codes->stamp(segments_[i])) * 0xD6E8FEB86659FD93ull;
      const uint64_t rows = SegmentRows(query.visible, segments_[i]);
      n_rows_ += CountBits(rows);
      if (rows != ~uint64_t{0}) key = (key ^ rows) * 0xD6E8FEB86659FD93ull;
      key ^= key >> 32;
      same = same || (i + 1 == values.n_segments && key == values.key);
    }
    if (!same || values.sum.size() != n_values) {
      values.n_segments = 0;
      values.sum.assign(n_values, 0.0f);
    }
    key_ = key;
  }

  // The mean of one KV head, [v_dim], to `mean`. Each head once.
  void Mean(int kv_head, float* mean) const {
    const KvView& kv = *query_.kv;
    float* sum = values_.sum.data() + static_cast<size_t>(kv_head) * kv.v_dim;
    std::array<float, 256> of_run;
    BlockStats stats;
    stats.mean = of_run.data();
    for (int i = values_.n_segments; i < n_target_; ++i) {
      uint64_t rows = SegmentRows(query_.visible, segments_[i]);
      while (rows != 0) {  // run by run
        const int first = std::countr_zero(rows);
        const int n = std::countr_one(rows >> first);
        SummarizeRows(kv.ValueRow(kv_head, segments_[i] * kSegmentRows + first), kv.v_row,
                      kv.v_type, n, kv.v_dim, stats);
        for (int c = 0; c < kv.v_dim; ++c) sum[c] += static_cast<float>(n) * of_run[c];
        rows &= first + n == kSegmentRows ? 0 : ~uint64_t{0} << (first + n);
      }
    }
    for (int c = 0; c < kv.v_dim; ++c) mean[c] = sum[c] / static_cast<float>(n_rows_);
  }

  // After Mean of every head.
  void Keep() {
    values_.n_segments = n_target_;
    values_.key = key_;
  }

 private:
  const LayerQuery& query_;
  const std::vector<int32_t>& segments_;
  SequenceMemory::ValueSum& values_;
  int n_target_ = 0, n_rows_ = 0;
  uint64_t key_ = 0;
};

class CondensePolicy final : public Policy {
 public:
  explicit CondensePolicy(const Options& options) : options_(options) {}

  int least_rows() const override { return kLeastRows; }
  bool wants_query_products() const override { return options_.rotation; }

  void Select(const LayerQuery& query, Selection& selection) const override {
    static thread_local RowParts scratch;
    RowParts& parts = scratch;
    CONDENSE_CHECK(query.codes != nullptr && query.memory != nullptr);
    selection.Reset();
    if (options_.rows.dense_layers.Contains(query.layer)) {
      selection.reason = Fallback::kLayer;
      return;
    }
    if (query.n_visible < kLeastRows) {
      selection.reason = Fallback::kShort;
      return;
    }
    FindRowParts(query, options_.rows.anchor, options_.rows.window, parts);
    if (options_.byte_share >= 1 || static_cast<int>(parts.segments.size()) < kLeastSegments) {
      selection.reason = Fallback::kShort;
      return;
    }
    const std::optional<RowBudget> budget = Buy(options_, query, parts);
    if (!budget || budget->n_values == parts.n_coded + parts.n_loose) {
      selection.reason = budget ? Fallback::kShort : Fallback::kBudget;
      return;
    }
    RefreshCodes(query, parts);
    if (!options_.copies) return Choose(query, parts, *budget, selection);
    CONDENSE_CHECK(query.copies != nullptr);
    query.copies->Refresh(*query.kv, query.visible, query.n_threads);
    const KvView copies = query.copies->View(*query.kv);
    LayerQuery of_copies = query;
    of_copies.kv = &copies;
    Choose(of_copies, parts, *budget, selection);
    selection.reads_copies = !selection.dense;
    selection.copies = copies;
  }

 private:
  void RefreshCodes(const LayerQuery& query, RowParts& parts) const {
    NoticeSegments(query, parts);
    CodeIndex::Request request;
    request.segments = parts.segments;
    request.visible = query.visible;
    request.n_nibbles = options_.n_nibbles;
    request.rotate = options_.rotation;
    request.refresh_segments = options_.refresh_segments;
    request.queries = &query.codes->prompt_queries();
    if (request.queries->n_rows < CodeIndex::kFewQueries) {
      // No prompt to speak of passed by (a restored state): the sequence's own steps will do. Steps
      // taken back are among them.
      NoteStep(query, options_.rotation);
      request.queries = &query.memory->queries;
    }
    request.n_threads = query.n_threads;
    query.codes->Refresh(*query.kv, request);
  }

  static void NoteStep(const LayerQuery& query, bool with_products) {
    const int row = 0;
    QueryRows queries;
    queries.q = reinterpret_cast<const std::byte*>(query.q);
    queries.q_head = sizeof(float) * query.kv->k_dim;
    queries.q_row = queries.q_head * query.n_query_heads;
    queries.rows = {&row, 1};
    queries.n_heads = query.n_query_heads;
    queries.k_dim = query.kv->k_dim;
    query.memory->queries.Add(queries, query.kv->n_kv_heads, CodeIndex::kMomentRows, with_products);
  }

  void Choose(const LayerQuery& query, const RowParts& parts, const RowBudget& budget,
              Selection& selection) const {
    const KvView& kv = *query.kv;
    const int group = query.group();
    selection.n_blocks = static_cast<int>(query.visible.size());
    const size_t n_words = static_cast<size_t>(kv.n_kv_heads) * selection.n_blocks;
    selection.k_masks.resize(n_words);
    selection.v_masks.resize(n_words);
    selection.rest_value.resize(static_cast<size_t>(query.n_query_heads) * kv.v_dim);
    ValueMeans means(query, parts, query.memory->values);
    static thread_local std::vector<RowChooser> kept;
    std::vector<RowChooser>& choosers = kept;  // of the calling thread
    if (selection.logits.size() < static_cast<size_t>(kv.n_kv_heads))
      selection.logits.resize(kv.n_kv_heads);
    if (choosers.size() < static_cast<size_t>(kv.n_kv_heads)) choosers.resize(kv.n_kv_heads);
    // KV heads times parts of their rows, so that threads have the same to do whatever the heads.
    const int n_heads = kv.n_kv_heads, n_parts = query.n_threads, n_all = n_heads * n_parts;
    // A row that is chosen now was as a rule worth not much less than the last step's least one:
    // few others need a look. Where that was too much to ask, everything gets one.
    std::vector<float>& least = query.memory->least_worth;
    least.resize(n_heads, 0.0f);
    bool finite = true;
    Clock::time_point start;
#pragma omp parallel num_threads(query.n_threads) if (query.n_threads > 1)
    {
#pragma omp for schedule(static)
      for (int g = 0; g < n_heads; ++g) {
        choosers[g].Begin(query, parts, g, budget, n_parts, selection.KMask(g),
                          selection.v_masks.data() + static_cast<size_t>(g) * selection.n_blocks);
      }
#pragma omp for schedule(static)
      for (int i = 0; i < n_all; ++i) choosers[i / n_parts].Scan(i % n_parts);
      static thread_local std::vector<uint8_t> again;  // the same for all threads
      again.assign(n_heads, 1);
      for (float share : kLookedAt) {
#pragma omp for schedule(static)
        for (int i = 0; i < n_all; ++i) {
          const int g = i / n_parts;
          if (again[g] != 0) choosers[g].Collect(i % n_parts, share * least[g]);
        }
        bool any = false;
        for (int g = 0; g < n_heads; ++g) any |= (again[g] = choosers[g].TooFew()) != 0;
        if (!any) break;
#pragma omp barrier
      }
#pragma omp for schedule(static)
      for (int i = 0; i < n_all; ++i) {
        const int g = i / n_parts;
        choosers[g].ShortList(i % n_parts, least[g]);
      }
#pragma omp master
      start = Clock::now();
#pragma omp for schedule(static)
      for (int i = 0; i < n_all; ++i) choosers[i / n_parts].ReadKeys(i % n_parts);
#pragma omp master
      {
        selection.logits_ns = NsSince(start);
        for (int i = 0; i < n_heads; ++i)  // what this thread took, as all did
          selection.logits_ns += choosers[i / n_parts].logits_ns(i % n_parts);
      }
#pragma omp for schedule(static) reduction(&& : finite)
      for (int g = 0; g < n_heads; ++g) {
        finite = choosers[g].ChooseValues(selection.logits[g]) && finite;
        float* rest = selection.rest_value.data() + static_cast<size_t>(g) * group * kv.v_dim;
        means.Mean(g, rest);
        for (int h = 1; h < group; ++h) std::copy_n(rest, kv.v_dim, rest + h * kv.v_dim);
      }
    }
    means.Keep();
    for (int g = 0; g < n_heads; ++g) least[g] = choosers[g].least_worth();
    if (!finite) {
      selection.Reset();
      selection.reason = Fallback::kNan;
      return;
    }
    selection.dense = false;
    selection.has_logits = true;
    const bool scanned = budget.n_keys < parts.n_coded;
    selection.summary_bytes =
        scanned ? kv.n_kv_heads * CodeIndex::ScanBytes(options_.n_nibbles, kv.k_dim,
                                                       static_cast<int>(parts.segments.size()),
                                                       budget.n_scanned)
                : 0;
  }

  const Options options_;
};

std::unique_ptr<Policy> Make(KeyReader& reader) {
  Options options;
  options.byte_share = ReadByteShare(reader);
  options.split = reader.Number("split", 0.01, 1);
  options.n_nibbles = reader.Choice("bits", {"32", "64"}) == 0 ? 8 : 16;
  options.rotation = reader.Bool("rotation");
  options.scan_share = reader.Percent("scan", 0.01, 100) / 100;
  options.mass = reader.Percent("mass", 0.01, 100) / 100;
  options.copies = reader.Choice("copies", {"none", "q8_0"}) == 1;
  options.rows = ReadRowOptions(reader);
  options.refresh_segments =
      static_cast<int>(reader.Int("refresh", kSegmentRows, 16'000'000) / kSegmentRows);
  return std::make_unique<CondensePolicy>(options);
}

CONDENSE_REGISTER_POLICY(
    condense,
    PolicyInfo{
        .name = "condense",
        .summary = "rows by 32-bit codes of their keys, exact keys for a shortlist, values for its "
                   "best half",
        .source = "ours; product quantisation as in faiss and PQCache (2407.12820)",
        .label = "",
        .keys = {{"budget", "8%",
                  "budget: share of the K + V bytes of dense attention, codes counted; 0.01% to "
                  "100%",
                  true},
                 {"split", "0.5",
                  "rows whose V is read, as a share of those whose K is; 0.01 to 1"},
                 {"bits", "32", "of a row's code: 32 or 64"},
                 {"rotation", "off",
                  "on: codes along the keys' principal axes in the queries' metric, at some more "
                  "set-up and memory"},
                 {"scan", "100%",
                  "share of the segments whose codes are read, the best by their centroids; 0.01% "
                  "to 100%"},
                 {"mass", "100%",
                  "share of the estimated attention mass at which a head's rows end, within the "
                  "budget; 0.01% to 100% (the whole budget is used)"},
                 {"copies", "none",
                  "q8_0: rows are read from copies at 8 bits a value, in half as much memory again "
                  "(f16)"},
                 AnchorKey(1),
                 WindowKey(64),
                 {"refresh", "4096",
                  "rows after which the codebook is trained anew; 64 to 16000000"},
                 DenseLayersKey()},
        .make = Make});

}  // namespace
}  // namespace condense
