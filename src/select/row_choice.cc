#include "select/row_choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/row_mask.h"
#include "kernels/attend.h"
#include "kernels/top.h"

namespace condense {
namespace {

constexpr int kSegmentBlocks = kSegmentRows / kBlockRows;
constexpr float kNoCandidate = -1.0f;  // below any mass
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
// Added to the distance of two heads' estimates, so that they do not meet in the cache.
constexpr size_t kStrideOffset = 80;

// The largest of n values (a multiple of 16), in lanes that the compiler can keep in registers.
float Largest(const float* values, size_t n) {
  std::array<float, kBlockRows> lanes;
  lanes.fill(kMinusInf);
  for (size_t i = 0; i < n; i += kBlockRows) {
    for (int j = 0; j < kBlockRows; ++j) lanes[j] = LargerOrNan(lanes[j], values[i + j]);
  }
  return std::accumulate(lanes.begin(), lanes.end(), kMinusInf, LargerOrNan);
}

}  // namespace

void RowChooser::Begin(const LayerQuery& query, const RowParts& parts, int kv_head,
                       const RowBudget& budget, int n_parts, uint16_t* k_mask, uint16_t* v_mask) {
  query_ = &query;
  parts_ = &parts;
  budget_ = budget;
  kv_head_ = kv_head;
  group_ = query.group();
  n_parts_ = n_parts;
  k_mask_ = k_mask;
  v_mask_ = v_mask;
  q_ = query.q + static_cast<size_t>(kv_head) * group_ * query.kv->k_dim;
  scans_ = budget.n_keys < parts.n_coded;
  first_ = parts.segments.front();
  last_ = parts.segments.back() + 1;
  stride_ = static_cast<size_t>(last_) * kSegmentRows + kStrideOffset;
  const size_t n_blocks = query.visible.size();
  for (size_t b = 0; b < n_blocks; ++b) {
    k_mask[b] = scans_ ? static_cast<uint16_t>(parts.always[b] | parts.loose[b]) : query.visible[b];
    v_mask[b] = parts.always[b];
  }
  const std::span<const uint16_t> fixed(k_mask, n_blocks);
  n_fixed_ = BlocksFor(CountRows(fixed));
  const int n_entries = n_fixed_ + (scans_ ? BlocksFor(budget.n_keys) : 0);
  exact_stride_ =
      static_cast<size_t>((n_entries + kSegmentBlocks - 1) / kSegmentBlocks) * kSegmentRows;
  // From step to step the rows before the window grow to a segment and fall back: room for them, so
  // that a warm step allocates nothing.
  const auto make_room = [&](auto& values, size_t a_row, size_t rows_each) {
    if (values.capacity() < exact_stride_ * a_row / rows_each)
      values.reserve((exact_stride_ + 2 * kSegmentRows) * a_row / rows_each);
  };
  make_room(rows_, 1, 1);
  make_room(best_, 1, 1);
  make_room(lanes_, 1, kBlockRows);
  make_room(logits_, group_, 1);
  make_room(exact_, group_, 1);
  make_room(exact_sums_, group_, kSegmentRows);
  rows_.clear();
  lanes_.clear();
  ForFourWords(fixed, [&](size_t b, uint64_t four) {
    for (; four != 0; four &= four - 1)
      rows_.push_back(static_cast<int32_t>(b * kBlockRows) + std::countr_zero(four));
  });
  EndRows();
  logits_.assign(group_ * exact_stride_, kMinusInf);
  exact_.resize(group_ * exact_stride_);
  exact_sums_.resize(group_ * exact_stride_ / kSegmentRows);
  part_max_.resize(static_cast<size_t>(n_parts) * group_);
  share_.resize(group_);
  worth_.resize(std::max(scans_ ? stride_ : 0, exact_stride_));
  if (!scans_) return;
  tables_.resize(static_cast<size_t>(n_parts) * group_);
  bases_.resize(static_cast<size_t>(group_) * last_);
  sums_.resize(static_cast<size_t>(group_) * last_);
  estimates_.resize(group_ * stride_);
}

RowChooser::Run RowChooser::SegmentsOf(int part) const {
  const int64_t n = last_ - first_;
  return {first_ + static_cast<int>(n * part / n_parts_),
          first_ + static_cast<int>(n * (part + 1) / n_parts_)};
}

// Makes entries of the rows that were added since the last call.
void RowChooser::EndRows() {
  const size_t n_new = rows_.size() - lanes_.size() * kBlockRows, rest = n_new % kBlockRows;
  lanes_.resize(lanes_.size() + n_new / kBlockRows, 0xFFFF);
  if (rest == 0) return;
  lanes_.push_back(static_cast<uint16_t>((1u << rest) - 1));
  rows_.resize(lanes_.size() * kBlockRows, rows_.back());
}

// Exact logits of a part of the entries from `first_entry` on.
void RowChooser::Logits(int part, int first_entry) {
  static thread_local std::vector<float> logits;
  static thread_local std::vector<const uint16_t*> masks;
  const KvView& kv = *query_->kv;
  const int64_t n = static_cast<int64_t>(lanes_.size()) - first_entry;
  const int begin = first_entry + static_cast<int>(n * part / n_parts_);
  const int end = first_entry + static_cast<int>(n * (part + 1) / n_parts_);
  AttendArgs args;
  args.k = kv.KeyRow(kv_head_, 0);
  args.k_stride = kv.k_row;
  args.k_type = kv.k_type;
  args.k_dim = kv.k_dim;
  args.n_queries = group_;
  args.q = q_;
  args.scale = query_->scale;
  args.softcap = query_->softcap;
  logits.resize(static_cast<size_t>(group_) * kChunkRows);
  for (int entry = begin; entry < end; entry += args.n_blocks) {
    args.n_blocks = std::min(kChunkBlocks, end - entry);
    args.rows = rows_.data() + static_cast<size_t>(entry) * kBlockRows;
    masks.assign(group_, lanes_.data() + entry);
    args.masks = masks.data();
    const size_t n_rows = static_cast<size_t>(args.n_blocks) * kBlockRows;
    RowLogits(args, logits.data());
    for (int h = 0; h < group_; ++h) {
      std::copy_n(logits.data() + h * n_rows, n_rows,
                  logits_.data() + h * exact_stride_ + static_cast<size_t>(entry) * kBlockRows);
    }
  }
}

void RowChooser::Estimate(int part) {
  Logits(part, 0);
  float* max = part_max_.data() + static_cast<size_t>(part) * group_;
  std::fill_n(max, group_, kMinusInf);
  if (!scans_) return;
  const auto [begin, end] = SegmentsOf(part);
  if (begin == end) return;
  static thread_local std::vector<float> run_max;
  run_max.resize(group_);
  const CodesView view = query_->codes->View(kv_head_);
  CentroidLogits(view, q_, group_, query_->scale, begin, end, bases_.data(), last_);
  ScanArgs args;
  args.view = view;
  args.n_heads = group_;
  QueryTable* tables = tables_.data() + static_cast<size_t>(part) * group_;
  args.tables = tables;
  args.bases = bases_.data();
  args.bases_stride = last_;
  args.softcap = query_->softcap;
  args.visible = parts_->coded.data();
  args.estimates = estimates_.data();
  args.estimates_stride = stride_;
  // Runs of segments that are coded in the same codebook; segments of others between them have no
  // visible row.
  const std::vector<int32_t>& segments = parts_->segments;
  size_t i = std::lower_bound(segments.begin(), segments.end(), begin) - segments.begin();
  if (i == segments.size() || segments[i] >= end) --i;  // none here: any codebook will do
  for (int from = begin; from < end;) {
    const int book = query_->codes->book_of(segments[i]);
    while (i < segments.size() && query_->codes->book_of(segments[i]) == book) ++i;
    const int to = i < segments.size() ? std::min(end, segments[i]) : end;
    for (int h = 0; h < group_; ++h) {
      MakeQueryTable(query_->codes->Book(book, kv_head_),
                     q_ + static_cast<size_t>(h) * query_->kv->k_dim, query_->scale, &tables[h]);
    }
    ScanCodes(args, from, to, run_max.data());
    for (int h = 0; h < group_; ++h) max[h] = LargerOrNan(max[h], run_max[h]);
    from = to;
  }
}

// Of the estimates and the exact logits that there are; false where one is not finite.
bool RowChooser::MaxOfParts(float* max) const {
  bool finite = true;
  for (int h = 0; h < group_; ++h) {
    max[h] = Largest(logits_.data() + h * exact_stride_, exact_stride_);
    for (int p = 0; p < n_parts_; ++p) max[h] = LargerOrNan(max[h], part_max_[p * group_ + h]);
    finite = finite && std::isfinite(max[h]);
  }
  return finite;
}

void RowChooser::Exponentiate(int part) {
  if (!scans_) return;
  static thread_local std::vector<float> max;
  max.resize(group_);
  if (!MaxOfParts(max.data())) return;
  const auto [begin, end] = SegmentsOf(part);
  ExpEstimates(estimates_.data(), stride_, group_, max.data(), begin, end, sums_.data(), last_);
  if (part == 0) ExactShares(max.data());
}

// exact = exp(logit - max).
void RowChooser::ExactShares(const float* max) {
  std::copy(logits_.begin(), logits_.end(), exact_.begin());
  const int n_segments = static_cast<int>(exact_stride_ / kSegmentRows);
  ExpEstimates(exact_.data(), exact_stride_, group_, max, 0, n_segments, exact_sums_.data(),
               n_segments);
}

float RowChooser::ExactSum(int head) const {
  const int n_segments = static_cast<int>(exact_stride_ / kSegmentRows);
  return SumInOrder(exact_sums_.data() + static_cast<size_t>(head) * n_segments, n_segments);
}

void RowChooser::Weigh(int part) {
  if (!scans_) return;
  static thread_local std::vector<float> max, share;
  max.resize(group_);
  share.resize(group_);
  if (!MaxOfParts(max.data())) return;
  for (int h = 0; h < group_; ++h) {
    const float* sums = sums_.data() + static_cast<size_t>(h) * last_;
    share[h] = 1.0f / (ExactSum(h) + SumInOrder(sums + first_, last_ - first_));
  }
  const auto [begin, end] = SegmentsOf(part);
  WorthOfRows(estimates_.data(), stride_, group_, share.data(), begin, end, worth_.data());
  for (int b = begin * kSegmentBlocks; b < end * kSegmentBlocks; ++b) {
    const uint16_t coded = parts_->coded[b];
    if (coded == 0xFFFF) continue;
    for (int i = 0; i < kBlockRows; ++i) {
      if (!((coded >> i) & 1)) worth_[b * kBlockRows + i] = kNoCandidate;
    }
  }
}

bool RowChooser::ShortList() {
  if (!scans_) return true;
  if (!MaxOfParts(share_.data())) return false;
  const int begin = first_ * kSegmentRows;
  if (!Best(worth_.data() + begin, (last_ - first_) * kSegmentRows, budget_.n_keys)) return false;
  const std::span<uint16_t> mask(k_mask_, query_->visible.size());
  const size_t n = rows_.size();
  rows_.resize(n + best_.size());
  for (size_t i = 0; i < best_.size(); ++i) {
    rows_[n + i] = begin + best_[i];
    AddRow(mask, begin + best_[i]);
  }
  EndRows();
  return true;
}

void RowChooser::ReadKeys(int part) {
  if (scans_) Logits(part, n_fixed_);
}

bool RowChooser::ChooseValues(Selection::KeyLogits& logits) {
  std::fill(part_max_.begin(), part_max_.end(), kMinusInf);
  static thread_local std::vector<float> max;
  max.resize(group_);
  if (!MaxOfParts(max.data())) return false;
  ExactShares(max.data());
  for (int h = 0; h < group_; ++h) share_[h] = 1.0f / ExactSum(h);
  const int n_segments = static_cast<int>(exact_stride_ / kSegmentRows);
  WorthOfRows(exact_.data(), exact_stride_, group_, share_.data(), 0, n_segments, worth_.data());
  const std::span<uint16_t> mask(v_mask_, query_->visible.size());
  for (size_t i = 0; i < rows_.size(); ++i) {
    const bool is_row = (lanes_[i / kBlockRows] >> (i % kBlockRows)) & 1;
    if (!is_row || HasRow(mask, rows_[i])) worth_[i] = kNoCandidate;
  }
  if (!Best(worth_.data(), static_cast<int>(rows_.size()), budget_.n_values)) return false;
  for (int at : best_) AddRow(mask, rows_[at]);
  logits.rows.swap(rows_);
  logits.lanes.swap(lanes_);
  logits.logits.swap(logits_);
  logits.stride = exact_stride_;
  return true;
}

// best_ = the positions of the n greatest worths; so many candidates are there. False where one is
// NaN.
bool RowChooser::Best(const float* worth, int n_rows, int n) {
  keys_.resize(n_rows);
  best_.resize(n);
  return TopScores(worth, n_rows, n, keys_.data(), best_.data()) >= 0;
}

}  // namespace condense
