#include "select/row_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/row_mask.h"
#include "kernels/attend.h"
#include "kernels/top.h"

namespace condense {
namespace {

constexpr int kSegmentBlocks = kSegmentRows / kBlockRows;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Maximum that keeps NaN.
float Greater(float a, float b) { return b > a || b != b ? b : a; }

class RowChooser {
 public:
  RowChooser(const LayerQuery& query, const RowParts& parts, int kv_head, RowScratch& scratch)
      : query_(query),
        parts_(parts),
        kv_head_(kv_head),
        s_(scratch),
        group_(query.group()),
        q_(query.q + static_cast<size_t>(kv_head) * query.group() * query.kv->k_dim),
        first_(parts.segments.front()),
        last_(parts.segments.back() + 1),
        stride_(static_cast<size_t>(last_) * kSegmentRows) {}

  bool Choose(const RowBudget& budget, uint16_t* k_mask, uint16_t* v_mask) {
    const int n_blocks = static_cast<int>(query_.visible.size());
    for (int b = 0; b < n_blocks; ++b) {
      k_mask[b] = static_cast<uint16_t>(parts_.always[b] | parts_.loose[b]);
      v_mask[b] = parts_.always[b];
    }
    if (budget.n_keys >= parts_.n_coded) {
      for (int b = 0; b < n_blocks; ++b) k_mask[b] = query_.visible[b];
    } else {
      ListRows(k_mask);
      ExactLogits();
      Estimate();
      if (!ShortList(budget.n_keys, k_mask)) return false;
    }
    ListRows(k_mask);
    ExactLogits();
    return BestValues(budget.n_values, v_mask);
  }

 private:
  // The blocks and rows of `mask` as a list, padded with empty entries to whole segments.
  void ListRows(const uint16_t* mask) {
    s_.blocks.clear();
    s_.masks.clear();
    for (size_t b = 0; b < query_.visible.size(); ++b) {
      if (mask[b] == 0) continue;
      s_.blocks.push_back(static_cast<int32_t>(b));
      s_.masks.push_back(mask[b]);
    }
    n_listed_ = (static_cast<int>(s_.blocks.size()) + kSegmentBlocks - 1) / kSegmentBlocks;
  }

  // s_.logits of the listed rows, -inf between them; max and sums are left to Exponentials.
  void ExactLogits() {
    const KvView& kv = *query_.kv;
    const size_t stride = static_cast<size_t>(n_listed_) * kSegmentRows;
    s_.logits.assign(group_ * stride, kMinusInf);
    s_.head_masks.resize(group_);
    s_.out.resize(static_cast<size_t>(group_) * kChunkRows);
    AttendArgs args;
    args.k = kv.KeyRow(kv_head_, 0);
    args.k_stride = kv.k_row;
    args.k_type = kv.k_type;
    args.k_dim = kv.k_dim;
    args.n_queries = group_;
    args.q = q_;
    args.masks = s_.head_masks.data();
    args.scale = query_.scale;
    args.softcap = query_.softcap;
    const int n = static_cast<int>(s_.blocks.size());
    for (int begin = 0; begin < n; begin += kChunkBlocks) {
      args.n_blocks = std::min(kChunkBlocks, n - begin);
      args.blocks = s_.blocks.data() + begin;
      std::fill(s_.head_masks.begin(), s_.head_masks.end(), s_.masks.data() + begin);
      RowLogits(args, s_.out.data());
      const size_t n_rows = static_cast<size_t>(args.n_blocks) * kBlockRows;
      for (int h = 0; h < group_; ++h) {
        std::copy_n(s_.out.data() + h * n_rows, n_rows,
                    s_.logits.data() + h * stride + static_cast<size_t>(begin) * kBlockRows);
      }
    }
  }

  // s_.estimates of the coded rows, -inf for others; s_.max of them.
  void Estimate() {
    const CodesView view = query_.codes->View(kv_head_);
    s_.estimates.resize(group_ * stride_);
    s_.bases.resize(static_cast<size_t>(group_) * last_);
    s_.tables.resize(group_);
    s_.max.assign(group_, kMinusInf);
    s_.share.resize(group_);
    CentroidLogits(view, q_, group_, query_.scale, first_, last_, s_.bases.data(), last_);
    ScanArgs args;
    args.view = view;
    args.n_heads = group_;
    args.tables = s_.tables.data();
    args.bases = s_.bases.data();
    args.bases_stride = last_;
    args.softcap = query_.softcap;
    args.visible = parts_.coded.data();
    args.estimates = s_.estimates.data();
    args.estimates_stride = stride_;
    // Runs of segments that are coded in the same codebook; segments of others between them have no
    // visible row.
    const std::vector<int32_t>& segments = parts_.segments;
    for (size_t i = 0; i < segments.size();) {
      const int book = query_.codes->book_of(segments[i]);
      const int begin = segments[i];
      while (i < segments.size() && query_.codes->book_of(segments[i]) == book) ++i;
      const int end = i < segments.size() ? segments[i] : last_;
      for (int h = 0; h < group_; ++h) {
        MakeQueryTable(query_.codes->Book(book, kv_head_),
                       q_ + static_cast<size_t>(h) * query_.kv->k_dim, query_.scale, &s_.tables[h]);
      }
      ScanCodes(args, begin, end, s_.share.data());
      for (int h = 0; h < group_; ++h) s_.max[h] = Greater(s_.max[h], s_.share[h]);
    }
  }

  // In place: s_.logits to exp(logit - max), with the larger of their maximum and s_.max; s_.share
  // to 1 / the head's whole mass, `others` included. False where a logit is not finite.
  bool ExactShares() {
    const size_t stride = static_cast<size_t>(n_listed_) * kSegmentRows;
    for (int h = 0; h < group_; ++h) {
      for (size_t i = h * stride; i < (h + 1) * stride; ++i) {
        s_.max[h] = Greater(s_.max[h], s_.logits[i]);
      }
      if (!std::isfinite(s_.max[h])) return false;
    }
    s_.logit_sums.resize(static_cast<size_t>(group_) * n_listed_);
    ExpEstimates(s_.logits.data(), stride, group_, s_.max.data(), 0, n_listed_,
                 s_.logit_sums.data(), n_listed_);
    return true;
  }
  float ExactSum(int head) const {
    return SumInOrder(s_.logit_sums.data() + static_cast<size_t>(head) * n_listed_, n_listed_);
  }

  // Adds the `n` coded rows with the most estimated mass to `mask`.
  bool ShortList(int n, uint16_t* mask) {
    if (!ExactShares()) return false;
    s_.sums.resize(static_cast<size_t>(group_) * last_);
    ExpEstimates(s_.estimates.data(), stride_, group_, s_.max.data(), first_, last_, s_.sums.data(),
                 last_);
    for (int h = 0; h < group_; ++h) {
      const float* sums = s_.sums.data() + static_cast<size_t>(h) * last_;
      s_.share[h] = 1.0f / (ExactSum(h) + SumInOrder(sums + first_, last_ - first_));
    }
    s_.worth.resize(stride_);
    WorthOfRows(s_.estimates.data(), stride_, group_, s_.share.data(), first_, last_,
                s_.worth.data());
    const int begin = first_ * kSegmentRows;
    if (!BestRows(parts_.coded.data() + static_cast<size_t>(first_) * kSegmentBlocks,
                  (last_ - first_) * kSegmentBlocks, n, s_.worth.data() + begin)) {
      return false;
    }
    for (int at : s_.best) AddRow({mask, query_.visible.size()}, begin + at);
    return true;
  }

  // Adds the `n` rows with the most exact mass to `mask`, of the listed ones that it lacks.
  bool BestValues(int n, uint16_t* mask) {
    s_.max.assign(group_, kMinusInf);
    s_.share.resize(group_);
    if (!ExactShares()) return false;
    for (int h = 0; h < group_; ++h) s_.share[h] = 1.0f / ExactSum(h);
    const size_t stride = static_cast<size_t>(n_listed_) * kSegmentRows;
    s_.worth.resize(std::max(s_.worth.size(), stride));
    WorthOfRows(s_.logits.data(), stride, group_, s_.share.data(), 0, n_listed_, s_.worth.data());
    for (size_t i = 0; i < s_.blocks.size(); ++i) {
      s_.masks[i] = static_cast<uint16_t>(s_.masks[i] & ~mask[s_.blocks[i]]);
    }
    if (!BestRows(s_.masks.data(), static_cast<int>(s_.blocks.size()), n, s_.worth.data())) {
      return false;
    }
    for (int at : s_.best) {
      AddRow({mask, query_.visible.size()},
             s_.blocks[at / kBlockRows] * kBlockRows + at % kBlockRows);
    }
    return true;
  }

  // s_.best = the positions of the n greatest of `worth` among the rows of `mask`; no fewer are
  // there. Worths of other rows are overwritten. False where a worth is NaN.
  bool BestRows(const uint16_t* mask, int n_blocks, int n, float* worth) {
    for (int b = 0; b < n_blocks; ++b) {
      if (mask[b] == 0xFFFF) continue;
      for (int i = 0; i < kBlockRows; ++i) {
        if (!((mask[b] >> i) & 1)) worth[b * kBlockRows + i] = -1.0f;  // below any mass
      }
    }
    const int n_rows = n_blocks * kBlockRows;
    s_.keys.resize(n_rows);
    s_.best.resize(n);
    return TopScores(worth, n_rows, n, s_.keys.data(), s_.best.data()) >= 0;
  }

  const LayerQuery& query_;
  const RowParts& parts_;
  const int kv_head_;
  RowScratch& s_;
  const int group_;
  const float* const q_;    // [group, k_dim]
  const int first_, last_;  // segments that are scanned
  const size_t stride_;     // of estimates
  int n_listed_ = 0;        // segments of four listed blocks
};

}  // namespace

bool ChooseRows(const LayerQuery& query, const RowParts& parts, int kv_head,
                const RowBudget& budget, RowScratch& scratch, uint16_t* k_mask, uint16_t* v_mask) {
  return RowChooser(query, parts, kv_head, scratch).Choose(budget, k_mask, v_mask);
}

}  // namespace condense
