#include "select/list_shares.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attend.h"

namespace condense {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// The logits of rows [begin, begin + n) of a list, n at most kChunkRows, to p[head][begin …].
void ChunkLogits(const LayerQuery& query, const HeadRange& heads, const float* q,
                 std::span<const int32_t> list, size_t begin, size_t n, std::vector<float>& p) {
  static thread_local std::vector<float> logits;           // [n_heads, 16 n_blocks]
  static thread_local std::vector<int32_t> rows;           // [16 n_blocks]
  static thread_local std::vector<uint16_t> mask;          // [n_blocks]
  static thread_local std::vector<const uint16_t*> masks;  // [n_heads]
  // All that any chunk needs: lists grow by a row now and then.
  logits.reserve(static_cast<size_t>(heads.n_heads) * kChunkRows);
  rows.reserve(kChunkRows);
  mask.reserve(kChunkRows / kBlockRows);
  const KvView& kv = *query.kv;
  AttendArgs args;
  args.n_blocks = BlocksFor(static_cast<int>(n));
  const size_t n_lanes = static_cast<size_t>(args.n_blocks) * kBlockRows;
  rows.assign(n_lanes, list[begin]);
  std::copy_n(list.begin() + begin, n, rows.begin());
  mask.assign(args.n_blocks, 0xFFFF);
  mask.back() = LastLanes(static_cast<int>(n));
  masks.assign(heads.n_heads, mask.data());
  args.k = kv.KeyRow(heads.kv_head, 0);
  args.k_stride = kv.k_row;
  args.k_type = kv.k_type;
  args.k_dim = kv.k_dim;
  args.rows = rows.data();
  args.n_queries = heads.n_heads;
  args.q = q + static_cast<size_t>(heads.first_head) * kv.k_dim;
  args.masks = masks.data();
  args.scale = query.scale;
  args.softcap = query.softcap;
  logits.resize(heads.n_heads * n_lanes);
  RowLogits(args, logits.data());
  for (int h = 0; h < heads.n_heads; ++h)
    std::copy_n(logits.data() + h * n_lanes, n, p.data() + h * list.size() + begin);
}

// One head's logits to shares, added to sums.
bool AddSoftmax(std::span<float> p, float* sums) {
  float max = kMinusInf;
  for (float z : p) max = z > max || z != z ? z : max;  // keeps NaN
  if (max == kMinusInf) return true;
  if (!std::isfinite(max)) return false;
  double sum = 0;
  for (float& z : p) {
    z = std::exp(z - max);
    sum += z;
  }
  const double share = 1 / sum;
  for (size_t i = 0; i < p.size(); ++i) sums[i] += static_cast<float>(p[i] * share);
  return true;
}

}  // namespace

bool AddListShares(const LayerQuery& query, const HeadRange& heads, const float* q,
                   std::span<const int32_t> rows, std::span<const uint16_t> visible, float* sums) {
  static thread_local std::vector<float> p;  // [n_heads, n_rows]
  const size_t n_whole = (rows.size() + kChunkRows) / kChunkRows * kChunkRows;
  p.reserve(heads.n_heads * n_whole);
  p.resize(heads.n_heads * rows.size());
  for (size_t begin = 0; begin < rows.size(); begin += kChunkRows) {
    const size_t n = std::min<size_t>(kChunkRows, rows.size() - begin);
    ChunkLogits(query, heads, q, rows, begin, n, p);
  }
  for (int h = 0; h < heads.n_heads; ++h) {
    const std::span<float> of_head(p.data() + h * rows.size(), rows.size());
    if (!visible.empty()) {
      for (size_t i = 0; i < rows.size(); ++i) {
        const bool sees =
            static_cast<size_t>(rows[i]) / kBlockRows < visible.size() && HasRow(visible, rows[i]);
        if (!sees) of_head[i] = kMinusInf;
      }
    }
    if (!AddSoftmax(of_head, sums)) return false;
  }
  return true;
}

}  // namespace condense
