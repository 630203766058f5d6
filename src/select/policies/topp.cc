// `topp` (the rule of Twilight, arXiv 2502.02770): not so many rows, but the least set whose
// estimated attention mass, averaged over the heads of the KV group, reaches `mass`. Of blocks by
// default: a block's mass is estimated from its mean key, n exp(scale q·µ), which is too low for
// blocks whose rows differ, since exp is convex. `by=row`: of rows, by their exact logits, and
// `by=row_q8`, by logits of keys kept once more at 8 bits; both read every key to choose, in one
// form or the other, which the budget counts. The original prunes what another method selected, by
// keys at 4 bits, with a cut for each head.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/summary.h"
#include "kernels/token_codes.h"
#include "select/registry.h"
#include "select/row_keys.h"
#include "select/row_parts.h"
#include "select/row_shares.h"

namespace condense {
namespace {

enum class By : uint8_t { kBlock, kRow, kRowQ8 };

struct Options {
  RowOptions rows;  // byte_share: the most that is read
  By by = By::kBlock;
  double mass = 0.9;  // (0, 1]
};

// What is ranked: blocks or rows, by their number.
struct HeadScratch {
  std::vector<float> logits;   // [group, always rows]
  std::vector<float> scores;   // [group, whole tiles] or [n_rows]
  std::vector<double> worth;   // by number; estimated shares, summed over the group
  std::vector<int32_t> order;  // candidates, best first
};

// Of the calling thread; the team works on it.
struct StepScratch {
  RowParts parts;
  std::vector<uint16_t> always;      // [n_blocks]
  std::vector<int32_t> always_rows;  // theirs
  std::vector<int32_t> candidates;   // blocks or rows, ascending
  std::vector<uint16_t> whole;       // [n_blocks] 0xFFFF for candidate blocks
  RowShares shares;
  std::vector<HeadScratch> heads;  // [n_kv_heads]
};

// Bytes of one KV head, as the budget sees them.
struct Costs {
  double always = 0, to_choose = 0, candidate = 0;
};

class ToppPolicy final : public Policy {
 public:
  explicit ToppPolicy(const Options& options) : options_(options) {}

  void Select(const LayerQuery& query, Selection& selection) const override {
    static thread_local StepScratch scratch;
    StepScratch& s = scratch;
    selection.Reset();
    if (options_.rows.dense_layers.Contains(query.layer)) {
      selection.reason = Fallback::kLayer;
      return;
    }
    if (*options_.rows.byte_share >= 1) {
      selection.reason = Fallback::kShort;
      return;
    }
    FindRowParts(query, options_.rows.anchor, options_.rows.window, s.parts);
    FindCandidates(query, s);
    const Costs costs = CostsOf(query, s);
    const KvView& kv = *query.kv;
    const double rest = *options_.rows.byte_share * query.n_visible *
                            static_cast<double>(kv.KeyBytes() + kv.ValueBytes()) -
                        costs.always;
    // Summaries that the budget does not cover are not read; keys, which the rule is made of, are
    // asked for.
    const bool estimates = rest - costs.to_choose >= costs.candidate;
    if (rest < 0 || (!estimates && options_.by != By::kBlock)) {
      selection.reason = Fallback::kBudget;
      return;
    }
    if (s.candidates.empty()) {
      selection.reason = Fallback::kShort;
      return;
    }
    const int most = estimates ? static_cast<int>(std::min<double>(
                                     static_cast<double>(s.candidates.size()),
                                     std::floor((rest - costs.to_choose) / costs.candidate)))
                               : 0;
    Choose(query, most, static_cast<uint64_t>(costs.to_choose), s, selection);
  }

 private:
  bool by_blocks() const { return options_.by == By::kBlock; }
  // The view whose keys are read to rank rows.
  KvView KeysOf(const LayerQuery& query) const {
    KvView keys = *query.kv;
    if (options_.by == By::kRowQ8) keys.k_type = RowCopies::TypesOf(keys).k_type;
    return keys;
  }
  bool reads_copies(const LayerQuery& query) const {
    return options_.by == By::kRowQ8 && KeysOf(query).k_type != query.kv->k_type;
  }

  // Blocks as in the common frame: partly visible ones are read row by row, always.
  void FindCandidates(const LayerQuery& query, StepScratch& s) const {
    s.always.assign(s.parts.always.begin(), s.parts.always.end());
    s.candidates.clear();
    if (by_blocks()) {
      const int n_blocks = static_cast<int>(query.visible.size());
      s.whole.assign(n_blocks, 0);
      for (int b = 0; b < n_blocks; ++b) {
        if (query.visible[b] != 0xFFFF) {
          s.always[b] = query.visible[b];
        } else if (s.always[b] != 0xFFFF) {
          s.candidates.push_back(b);
          s.whole[b] = 0xFFFF;
        }
      }
    } else {
      RowsWithout(query.visible, s.always, s.whole);
      ListRows(s.whole, s.candidates);
    }
    ListRows(s.always, s.always_rows);
  }

  // Every byte counts once, however often it is read.
  Costs CostsOf(const LayerQuery& query, const StepScratch& s) const {
    const KvView& kv = *query.kv;
    const auto k = static_cast<double>(kv.KeyBytes()), v = static_cast<double>(kv.ValueBytes());
    const auto n = static_cast<double>(s.candidates.size());
    Costs costs;
    costs.always = static_cast<double>(s.always_rows.size()) * (k + v);
    if (by_blocks()) {
      costs.to_choose =
          n * static_cast<double>(BlockIndex::BytesPerBlock(kMeanKey, kv.k_dim, kv.v_dim));
      costs.candidate = kBlockRows * (k + v);
    } else if (reads_copies(query)) {
      costs.to_choose = query.n_visible * static_cast<double>(KeysOf(query).KeyBytes());
      costs.candidate = k + v;
    } else {
      costs.to_choose = n * k;
      costs.candidate = v;
    }
    return costs;
  }

  // Of every KV head the least set, at most `most` candidates. to_choose: bytes a KV head.
  void Choose(const LayerQuery& query, int most, uint64_t to_choose, StepScratch& s,
              Selection& selection) const {
    const KvView& kv = *query.kv;
    if (most > 0 && by_blocks()) {
      query.index->Refresh(kv, kMeanKey, s.whole);
    } else if (most > 0 && !s.shares.Compute(query, Keys(query), query.visible)) {
      selection.reason = Fallback::kNan;
      return;
    }
    ChooseByHead(
        query, s.always, s.heads, selection,
        [&](int g, HeadScratch& head, std::span<uint16_t> mask) -> std::optional<uint64_t> {
          if (most == 0) return 0;
          if (!ChooseHead(query, g, most, s, head, mask)) return std::nullopt;
          // Keys of the cache that are read to attend are no keys read to choose.
          const bool reads_rows = !by_blocks() && !reads_copies(query);
          return reads_rows ? (query.n_visible - CountRows(mask)) * kv.KeyBytes() : to_choose;
        });
  }

  // Where `by` reads its keys; copies of them are made current.
  KvView Keys(const LayerQuery& query) const {
    if (!reads_copies(query)) return *query.kv;
    CONDENSE_CHECK(query.copies != nullptr);
    KvView keys = *query.kv;
    keys.v_type = KvType::kQ8_0;  // of values, no copies are made
    query.copies->Refresh(keys, query.visible, query.n_threads);
    return query.copies->View(keys);
  }

  // False where an estimate is not finite.
  bool ChooseHead(const LayerQuery& query, int kv_head, int most, const StepScratch& s,
                  HeadScratch& head, std::span<uint16_t> mask) const {
    double always = 0;
    if (by_blocks()) {
      if (!EstimateBlocks(query, kv_head, s, head, &always)) return false;
    } else {
      const int group = query.group();
      head.scores.resize(s.shares.n_rows());
      s.shares.Worths(kv_head * group, (kv_head + 1) * group, head.scores.data());
      head.worth.assign(head.scores.begin(), head.scores.end());
      for (int32_t row : s.always_rows) always += head.worth[row];
    }
    head.order.assign(s.candidates.begin(), s.candidates.end());
    SortByWorth(head.worth, head.order);
    const int n =
        std::min(most, CountToMass(head.worth, head.order, always, options_.mass * query.group()));
    for (int i = 0; i < n; ++i) {
      if (by_blocks()) {
        mask[head.order[i]] = 0xFFFF;
      } else {
        AddRow(mask, head.order[i]);
      }
    }
    return true;
  }

  // head.worth of the candidates, and the always-read rows' share; summed over the group.
  bool EstimateBlocks(const LayerQuery& query, int kv_head, const StepScratch& s, HeadScratch& head,
                      double* always) const {
    const int group = query.group(), k_dim = query.kv->k_dim;
    const size_t stride = ListStride(s.always_rows.size());
    const int n_tiles = s.candidates.back() / kTileBlocks + 1;
    head.logits.resize(group * stride);
    ListLogits(query, *query.kv, GroupOf(query, kv_head), query.q, s.always_rows,
               head.logits.data(), stride);
    head.scores.resize(static_cast<size_t>(n_tiles) * kTileBlocks);
    head.worth.assign(query.visible.size(), 0.0);
    for (int h = 0; h < group; ++h) {
      const float* q = query.q + (static_cast<size_t>(kv_head) * group + h) * k_dim;
      ScoreMean(query.index->Tiles(Column::kMeanKey, kv_head), n_tiles, k_dim, q, query.scale,
                head.scores.data());
      if (!AddShares(query, s, {head.logits.data() + h * stride, stride}, head, always))
        return false;
    }
    return true;
  }

  // One head's: fixed, the logits of the rows always read; head.scores, the blocks'.
  static bool AddShares(const LayerQuery& query, const StepScratch& s, std::span<const float> fixed,
                        HeadScratch& head, double* always) {
    float max = LargestOf(fixed.data(), static_cast<int>(fixed.size()));
    for (int32_t b : s.candidates) {
      head.scores[b] = SoftCapped(query, head.scores[b]);
      max = LargerOrNan(max, head.scores[b]);
    }
    if (!std::isfinite(max)) return false;
    const auto rows_of = [&](int32_t b) { return CountBits(static_cast<uint16_t>(~s.always[b])); };
    double of_fixed = 0, sum = 0;
    for (float z : fixed) of_fixed += std::exp(z - max);
    sum = of_fixed;
    for (int32_t b : s.candidates) {
      head.scores[b] = static_cast<float>(rows_of(b)) * std::exp(head.scores[b] - max);
      sum += head.scores[b];
    }
    *always += of_fixed / sum;
    for (int32_t b : s.candidates) head.worth[b] += head.scores[b] / sum;
    return true;
  }

  const Options options_;
};

std::unique_ptr<Policy> Make(KeyReader& reader) {
  Options options;
  options.by = static_cast<By>(reader.Choice("by", {"block", "row", "row_q8"}));
  options.mass = reader.Percent("mass", 0.01, 100) / 100;
  options.rows = ReadRowOptions(reader);
  options.rows.byte_share = ReadByteShare(reader);
  if (options.by != By::kBlock && !reader.Given("budget")) {
    reader.Fail(
        "by=row and by=row_q8 read every key to choose, half or a quarter of the bytes of an f16 "
        "cache, which the default budget does not cover: give a budget above that, such as "
        "budget=75%");
  }
  return std::make_unique<ToppPolicy>(options);
}

CONDENSE_REGISTER_POLICY(
    topp,
    PolicyInfo{
        .name = "topp",
        .summary = "the least set of blocks, or of rows, whose estimated attention mass reaches a "
                   "share",
        .source = "Twilight, arXiv 2502.02770",
        .label = "estimates from mean keys, keys at 8 bits or exact keys, not from keys at 4 bits; "
                 "one set a KV group",
        .keys = {{"mass", "90%",
                  "share of the estimated attention mass at which a KV head's set ends; 0.01% to "
                  "100%",
                  true},
                 BudgetKey("25%",
                           "the most that is read, all that is read to choose counted; 100% reads "
                           "everything"),
                 {"by", "block",
                  "block: by mean keys; row: by exact logits; row_q8: by keys at 8 bits, kept "
                  "beside the cache"},
                 AnchorKey(1),
                 WindowKey(64),
                 DenseLayersKey()},
        .make = Make});

}  // namespace
}  // namespace condense
