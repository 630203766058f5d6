#include "select/row_choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "base/row_mask.h"
#include "kernels/attend.h"
#include "kernels/top.h"

namespace condense {
namespace {

constexpr int kSegmentBlocks = kSegmentRows / kBlockRows;
constexpr float kNoCandidate = -1.0f;  // below any mass
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

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
    const size_t n_blocks = query_.visible.size();
    const bool scans = budget.n_keys < parts_.n_coded;
    for (size_t b = 0; b < n_blocks; ++b) {
      k_mask[b] =
          scans ? static_cast<uint16_t>(parts_.always[b] | parts_.loose[b]) : query_.visible[b];
      v_mask[b] = parts_.always[b];
    }
    const int n_fixed = parts_.n_always + parts_.n_loose;
    n_segments_ = (n_fixed + budget.n_keys + kSegmentRows - 1) / kSegmentRows;
    exact_stride_ = static_cast<size_t>(n_segments_) * kSegmentRows;
    s_.rows.clear();
    s_.logits.assign(group_ * exact_stride_, kMinusInf);
    s_.exact.resize(group_ * exact_stride_);
    s_.exact_sums.resize(static_cast<size_t>(group_) * n_segments_);
    s_.max.resize(group_);
    s_.share.resize(group_);
    AddExactLogits(k_mask, nullptr);
    if (scans) {
      s_.chosen.assign(n_blocks, 0);
      Estimate();
      if (!ShortList(budget.n_keys, s_.chosen)) return false;
      AddExactLogits(s_.chosen.data(), k_mask);
    }
    return BestValues(budget.n_values, {v_mask, n_blocks});
  }

 private:
  // Exact logits of the rows of `mask`, behind those that are there. The rows are added to
  // `k_mask` where it is not null.
  void AddExactLogits(const uint16_t* mask, uint16_t* k_mask) {
    s_.blocks.clear();
    s_.masks.clear();
    for (size_t b = 0; b < query_.visible.size(); ++b) {
      if (mask[b] == 0) continue;
      s_.blocks.push_back(static_cast<int32_t>(b));
      s_.masks.push_back(mask[b]);
      if (k_mask != nullptr) k_mask[b] = static_cast<uint16_t>(k_mask[b] | mask[b]);
      if (s_.blocks.size() == kChunkBlocks) AddListedLogits();
    }
    if (!s_.blocks.empty()) AddListedLogits();
  }

  // The same for the listed blocks, and empties the list.
  void AddListedLogits() {
    const KvView& kv = *query_.kv;
    const int n_blocks = static_cast<int>(s_.blocks.size());
    s_.head_masks.assign(group_, s_.masks.data());
    s_.block_logits.resize(static_cast<size_t>(group_) * kChunkRows);
    AttendArgs args;
    args.k = kv.KeyRow(kv_head_, 0);
    args.k_stride = kv.k_row;
    args.k_type = kv.k_type;
    args.k_dim = kv.k_dim;
    args.n_blocks = n_blocks;
    args.blocks = s_.blocks.data();
    args.n_queries = group_;
    args.q = q_;
    args.masks = s_.head_masks.data();
    args.scale = query_.scale;
    args.softcap = query_.softcap;
    RowLogits(args, s_.block_logits.data());
    for (int b = 0; b < n_blocks; ++b) {
      for (uint32_t word = s_.masks[b]; word != 0; word &= word - 1) {
        const int at = b * kBlockRows + std::countr_zero(word);
        for (int h = 0; h < group_; ++h) {
          s_.logits[h * exact_stride_ + s_.rows.size()] =
              s_.block_logits[h * n_blocks * kBlockRows + at];
        }
        s_.rows.push_back(s_.blocks[b] * kBlockRows + std::countr_zero(word));
      }
    }
    s_.blocks.clear();
    s_.masks.clear();
  }

  // s_.estimates of the coded rows, -inf for others; s_.max of them.
  void Estimate() {
    const CodesView view = query_.codes->View(kv_head_);
    s_.estimates.resize(group_ * stride_);
    s_.bases.resize(static_cast<size_t>(group_) * last_);
    s_.tables.resize(group_);
    std::fill(s_.max.begin(), s_.max.end(), kMinusInf);
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
      for (int h = 0; h < group_; ++h) s_.max[h] = LargerOrNan(s_.max[h], s_.share[h]);
    }
  }

  // s_.exact = exp(logit - max), s_.max the larger of what it was and the greatest logit. False
  // where that is not finite.
  bool ExactShares() {
    for (int h = 0; h < group_; ++h) {
      s_.max[h] = LargerOrNan(s_.max[h], Largest(s_.logits.data() + h * exact_stride_));
      if (!std::isfinite(s_.max[h])) return false;
    }
    std::copy(s_.logits.begin(), s_.logits.end(), s_.exact.begin());
    ExpEstimates(s_.exact.data(), exact_stride_, group_, s_.max.data(), 0, n_segments_,
                 s_.exact_sums.data(), n_segments_);
    return true;
  }
  // Of one head's exact logits, in lanes that the compiler can keep in registers.
  float Largest(const float* logits) const {
    std::array<float, kBlockRows> lanes;
    lanes.fill(kMinusInf);
    for (size_t i = 0; i < exact_stride_; i += kBlockRows) {
      for (int j = 0; j < kBlockRows; ++j) lanes[j] = LargerOrNan(lanes[j], logits[i + j]);
    }
    return std::accumulate(lanes.begin(), lanes.end(), kMinusInf, LargerOrNan);
  }
  float ExactSum(int head) const {
    return SumInOrder(s_.exact_sums.data() + static_cast<size_t>(head) * n_segments_, n_segments_);
  }

  // Adds the `n` coded rows with the most estimated mass to `mask`.
  bool ShortList(int n, std::span<uint16_t> mask) {
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
    for (int b = first_ * kSegmentBlocks; b < last_ * kSegmentBlocks; ++b) {
      const uint16_t coded = parts_.coded[b];
      if (coded == 0xFFFF) continue;
      for (int i = 0; i < kBlockRows; ++i) {
        if (!((coded >> i) & 1)) s_.worth[b * kBlockRows + i] = kNoCandidate;
      }
    }
    const int begin = first_ * kSegmentRows;
    if (!Best(s_.worth.data() + begin, (last_ - first_) * kSegmentRows, n)) return false;
    for (int at : s_.best) AddRow(mask, begin + at);
    return true;
  }

  // Adds the `n` rows with the most exact mass to `mask`, of those with exact logits that it lacks.
  bool BestValues(int n, std::span<uint16_t> mask) {
    std::fill(s_.max.begin(), s_.max.end(), kMinusInf);
    if (!ExactShares()) return false;
    for (int h = 0; h < group_; ++h) s_.share[h] = 1.0f / ExactSum(h);
    s_.worth.resize(std::max(s_.worth.size(), exact_stride_));
    WorthOfRows(s_.exact.data(), exact_stride_, group_, s_.share.data(), 0, n_segments_,
                s_.worth.data());
    for (size_t i = 0; i < s_.rows.size(); ++i) {
      if (HasRow(mask, s_.rows[i])) s_.worth[i] = kNoCandidate;
    }
    if (!Best(s_.worth.data(), static_cast<int>(s_.rows.size()), n)) return false;
    for (int at : s_.best) AddRow(mask, s_.rows[at]);
    return true;
  }

  // s_.best = the positions of the n greatest worths; so many candidates are there. False where one
  // is NaN.
  bool Best(const float* worth, int n_rows, int n) {
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
  int n_segments_ = 0;      // of 64 rows with exact logits
  size_t exact_stride_ = 0;
};

}  // namespace

bool ChooseRows(const LayerQuery& query, const RowParts& parts, int kv_head,
                const RowBudget& budget, RowScratch& scratch, uint16_t* k_mask, uint16_t* v_mask) {
  return RowChooser(query, parts, kv_head, scratch).Choose(budget, k_mask, v_mask);
}

}  // namespace condense
