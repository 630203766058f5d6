#include "select/tail.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/summary.h"
#include "select/block_mass.h"
#include "select/row_shares.h"

namespace condense {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Of one thread, for one query head.
struct TailScratch {
  std::vector<float> logits, variances;  // whole tiles; logits become weights
};

// Rows of block b that a set of the selection does not read; 0 where b is not in `whole`.
int Unread(const LayerQuery& query, std::span<const uint16_t> whole, const uint16_t* set,
           size_t b) {
  return b < whole.size() && whole[b] != 0 ? CountBits(query.visible[b] & ~uint32_t{set[b]}) : 0;
}

// One query head's pseudo-rows as a partial state; false where a logit is not finite.
bool HeadTail(const LayerQuery& query, Tail tail, std::span<const uint16_t> whole, int n_tiles,
              int head, Selection& selection) {
  static thread_local TailScratch scratch;
  const KvView& kv = *query.kv;
  const int kv_head = head / query.group();
  const ScoreQuery score{.layer = &query,
                         .q = query.q + static_cast<size_t>(head) * kv.k_dim,
                         .kv_head = kv_head,
                         .query_head = head,
                         .rows = {},
                         .first_block = 0};
  std::vector<float>& z = scratch.logits;
  z.resize(static_cast<size_t>(n_tiles) * kTileBlocks);
  MeanLogits(score, z);
  if (tail == Tail::kVar) {
    scratch.variances.resize(z.size());
    LogitVariances(score, VarianceForm::kGroups, scratch.variances);
  }
  const uint16_t* set = selection.KMask(selection.per_query_head ? head : kv_head);
  float max = kMinusInf;
  for (size_t b = 0; b < z.size(); ++b) {
    const int n = Unread(query, whole, set, b);
    if (n == 0) {
      z[b] = kMinusInf;
      continue;
    }
    z[b] = SoftCapped(query, z[b]);
    if (tail == Tail::kVar) z[b] += 0.5f * scratch.variances[b];
    z[b] += LogRows(n);
    if (!std::isfinite(z[b])) return false;
    max = std::max(max, z[b]);
  }
  float sum = 0;
  for (float& value : z) {
    value = value == kMinusInf ? 0.0f : std::exp(value - max);
    sum += value;
  }
  selection.tail.max[head] = max;
  selection.tail.sum[head] = sum;
  SumTiles(query.index->Tiles(Column::kMeanValue, kv_head), n_tiles, kv.v_dim, z.data(),
           selection.tail.o.data() + static_cast<size_t>(head) * kv.v_dim);
  return true;
}

// Blocks of a KV head that some query head of the group leaves out.
int CountLeftOut(const LayerQuery& query, std::span<const uint16_t> whole, int kv_head,
                 const Selection& selection) {
  const int n_sets = selection.per_query_head ? query.group() : 1;
  int n = 0;
  for (size_t b = 0; b < whole.size(); ++b) {
    bool left_out = false;
    for (int i = 0; i < n_sets; ++i)
      left_out = left_out || Unread(query, whole, selection.KMask(kv_head * n_sets + i), b) > 0;
    n += left_out;
  }
  return n;
}

}  // namespace

SummarySet TailNeeds(Tail tail) {
  if (tail == Tail::kOff) return 0;
  return kMeanKey | kMeanValue | (tail == Tail::kVar ? SummarySet{kGroupVariances} : 0);
}

size_t TailBytes(Tail tail, SummarySet read, const KvView& kv) {
  return BlockIndex::BytesPerBlock(TailNeeds(tail) & ~read, kv.k_dim, kv.v_dim);
}

bool AddTail(const LayerQuery& query, Tail tail, std::span<const uint16_t> whole, SummarySet read,
             Selection& selection) {
  const KvView& kv = *query.kv;
  query.index->Refresh(kv, TailNeeds(tail), whole);
  const auto last = std::find_if(whole.rbegin(), whole.rend(), [](uint16_t w) { return w != 0; });
  const int n_tiles = static_cast<int>(whole.rend() - last - 1) / kTileBlocks + 1;
  selection.has_tail = true;
  selection.tail.o.resize(static_cast<size_t>(query.n_query_heads) * kv.v_dim);
  selection.tail.max.resize(query.n_query_heads);
  selection.tail.sum.resize(query.n_query_heads);
  bool finite = true;
#pragma omp parallel for num_threads(query.n_threads) if (query.n_threads > 1) schedule(static) \
    reduction(&& : finite)
  for (int h = 0; h < query.n_query_heads; ++h)
    finite = HeadTail(query, tail, whole, n_tiles, h, selection) && finite;
  uint64_t blocks = 0;
  for (int g = 0; g < kv.n_kv_heads; ++g) blocks += CountLeftOut(query, whole, g, selection);
  selection.summary_bytes += blocks * TailBytes(tail, read, kv);
  return finite;
}

}  // namespace condense
