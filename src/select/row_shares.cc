#include "select/row_shares.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/attend.h"
#include "kernels/token_codes.h"
#include "kernels/top.h"

namespace condense {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr float kNoCandidate = -1.0f;  // below any share

}  // namespace

void BlockLogits(const LayerQuery& query, const KvView& keys, const HeadRange& heads,
                 int first_block, int n_blocks, const uint16_t* rows, float* logits) {
  static thread_local std::vector<const uint16_t*> masks;
  AttendArgs args;
  args.k = keys.KeyRow(heads.kv_head, first_block * kBlockRows);
  args.k_stride = keys.k_row;
  args.k_type = keys.k_type;
  args.k_dim = keys.k_dim;
  args.n_blocks = n_blocks;
  args.n_queries = heads.n_heads;
  args.q = query.q + static_cast<size_t>(heads.first_head) * keys.k_dim;
  args.scale = query.scale;
  args.softcap = query.softcap;
  masks.assign(heads.n_heads, rows);
  args.masks = masks.data();
  RowLogits(args, logits);
}

void ListLogits(const LayerQuery& query, const KvView& keys, const HeadRange& heads, const float* q,
                std::span<const int32_t> rows, float* logits, size_t stride) {
  static thread_local std::vector<const uint16_t*> masks;
  static thread_local std::vector<float> of_call;  // [n_heads, 16 n_blocks]
  std::array<int32_t, kChunkRows> padded;
  std::array<uint16_t, kChunkBlocks> lanes;
  const int n_rows = static_cast<int>(rows.size());
  of_call.resize(static_cast<size_t>(heads.n_heads) * kChunkRows);
  masks.assign(heads.n_heads, lanes.data());
  AttendArgs args;
  args.k = keys.KeyRow(heads.kv_head, 0);
  args.k_stride = keys.k_row;
  args.k_type = keys.k_type;
  args.k_dim = keys.k_dim;
  args.rows = padded.data();
  args.n_queries = heads.n_heads;
  args.q = q + static_cast<size_t>(heads.first_head) * keys.k_dim;
  args.scale = query.scale;
  args.softcap = query.softcap;
  args.masks = masks.data();
  for (int first = 0; first < n_rows; first += kChunkRows) {
    const int n = std::min(kChunkRows, n_rows - first);
    args.n_blocks = BlocksFor(n);
    std::copy_n(rows.begin() + first, n, padded.begin());
    std::fill(padded.begin() + n, padded.end(), padded[0]);
    lanes.fill(0xFFFF);
    lanes[args.n_blocks - 1] = LastLanes(n);
    RowLogits(args, of_call.data());
    const int n_lanes = args.n_blocks * kBlockRows;
    for (int h = 0; h < heads.n_heads; ++h)
      std::copy_n(of_call.data() + h * n_lanes, n_lanes, logits + h * stride + first);
  }
}

bool AddListShares(const LayerQuery& query, const HeadRange& heads, const float* q,
                   std::span<const int32_t> rows, std::span<const uint16_t> visible, float* sums) {
  static thread_local std::vector<float> p;  // [n_heads, stride]
  // Lists grow by a row now and then: whole chunks, so that few of these steps allocate.
  const size_t stride = (rows.size() + kChunkRows) / kChunkRows * kChunkRows;
  p.resize(heads.n_heads * stride);
  ListLogits(query, *query.kv, heads, q, rows, p.data(), stride);
  const auto sees = [&](int32_t row) {
    return visible.empty() ||
           (static_cast<size_t>(row) / kBlockRows < visible.size() && HasRow(visible, row));
  };
  if (std::none_of(rows.begin(), rows.end(), sees)) return true;
  for (int h = 0; h < heads.n_heads; ++h) {
    const std::span<float> of_head(p.data() + h * stride, rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!sees(rows[i])) of_head[i] = kMinusInf;
    }
    const std::optional<double> share = ExpShares(of_head);
    if (!share) return false;
    for (size_t i = 0; i < rows.size(); ++i) sums[i] += static_cast<float>(of_head[i] * *share);
  }
  return true;
}

void ListRows(std::span<const uint16_t> mask, std::vector<int32_t>& rows) {
  rows.clear();
  for (size_t b = 0; b < mask.size(); ++b) {
    for (uint32_t word = mask[b]; word != 0; word &= word - 1)
      rows.push_back(static_cast<int32_t>(b) * kBlockRows + std::countr_zero(word));
  }
}

void SortByWorth(std::span<const double> worth, std::span<int32_t> order) {
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return worth[a] != worth[b] ? worth[a] > worth[b] : a < b;
  });
}

int CountToMass(std::span<const double> worth, std::span<const int32_t> order, double base,
                double target) {
  double mass = base;
  size_t n = 0;
  while (n < order.size() && mass < target) mass += worth[order[n++]];
  return static_cast<int>(n);
}

std::optional<double> ExpShares(std::span<float> p) {
  const float max = LargestOf(p.data(), static_cast<int>(p.size()));
  if (!std::isfinite(max)) return std::nullopt;
  double sum = 0;
  for (float& z : p) {
    z = std::exp(z - max);
    sum += z;
  }
  return 1 / sum;
}

bool RowShares::Compute(const LayerQuery& query, const KvView& keys,
                        std::span<const uint16_t> rows) {
  const int n_blocks = static_cast<int>(rows.size()), group = query.group();
  const int n_chunks = ChunksFor(n_blocks * kBlockRows);
  n_rows_ = static_cast<size_t>(n_blocks) * kBlockRows;
  p_.resize(query.n_query_heads * n_rows_);
  share_.resize(query.n_query_heads);
  bool finite = true;
#pragma omp parallel num_threads(query.n_threads) if (query.n_threads > 1)
  {
    static thread_local std::vector<float> logits;  // [group, a chunk's rows]
    logits.resize(static_cast<size_t>(group) * kChunkRows);
#pragma omp for schedule(static)
    for (int i = 0; i < keys.n_kv_heads * n_chunks; ++i) {
      const int g = i / n_chunks, block = i % n_chunks * kChunkBlocks;
      const int n = std::min(kChunkBlocks, n_blocks - block);
      BlockLogits(query, keys, GroupOf(query, g), block, n, rows.data() + block, logits.data());
      for (int h = 0; h < group; ++h) {
        std::copy_n(logits.data() + static_cast<size_t>(h) * n * kBlockRows, n * kBlockRows,
                    p_.data() + (static_cast<size_t>(g) * group + h) * n_rows_ +
                        static_cast<size_t>(block) * kBlockRows);
      }
    }
#pragma omp for schedule(static) reduction(&& : finite)
    for (int h = 0; h < query.n_query_heads; ++h) {
      const std::optional<double> share = ExpShares({p_.data() + h * n_rows_, n_rows_});
      share_[h] = share.value_or(0);
      finite = finite && share;
    }
  }
  return finite;
}

void RowShares::Worths(int first, int last, float* worth) const {
  for (size_t r = 0; r < n_rows_; ++r) {
    double sum = 0;
    for (int h = first; h < last; ++h) sum += p_[h * n_rows_ + r] * share_[h];
    worth[r] = static_cast<float>(sum);
  }
}

void AddBestRows(std::span<const uint16_t> candidates, int n_best, RowRanking& ranking,
                 std::span<uint16_t> mask) {
  if (n_best == 0) return;
  const int n_rows = static_cast<int>(ranking.worth.size());
  for (int row = 0; row < n_rows; ++row) {
    if (!HasRow(candidates, row)) ranking.worth[row] = kNoCandidate;
  }
  ranking.keys.resize(n_rows);
  ranking.order.resize(n_best);
  const int n =
      TopScores(ranking.worth.data(), n_rows, n_best, ranking.keys.data(), ranking.order.data());
  for (int i = 0; i < n; ++i) AddRow(mask, ranking.order[i]);
}

void PoolAround(std::span<const float> values, int pool, bool average, std::span<float> out) {
  const int n = static_cast<int>(values.size()), reach = pool / 2;
  for (int i = 0; i < n; ++i) {
    const int begin = std::max(0, i - reach), end = std::min(n, i + reach + 1);
    float largest = values[begin], sum = 0;
    for (int j = begin; j < end; ++j) {
      largest = std::max(largest, values[j]);
      sum += values[j];
    }
    out[i] = average ? sum / static_cast<float>(pool) : largest;
  }
}

void RowsWithout(std::span<const uint16_t> rows, std::span<const uint16_t> others,
                 std::vector<uint16_t>& out) {
  out.resize(rows.size());
  for (size_t b = 0; b < rows.size(); ++b) out[b] = static_cast<uint16_t>(rows[b] & ~others[b]);
}

}  // namespace condense
