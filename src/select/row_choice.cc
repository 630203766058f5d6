#include "select/row_choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/clock.h"
#include "base/row_mask.h"
#include "kernels/attend.h"
#include "kernels/token_codes.h"

namespace condense {
namespace {

constexpr float kNoCandidate = -1.0f;  // below any mass
// Added to the distance of two heads' exponentials, so that they do not meet in the cache.
constexpr size_t kStrideOffset = 160;
// What a list may have past its end (kernels/top.h).
constexpr size_t kSpare = 16;
// Shares of mass as whole numbers, whose sums do not depend on the order of addition: a head's mass
// is 2^40 of them.
constexpr double kMassUnits = 0x1p40;

uint64_t MassOf(float worth) { return static_cast<uint64_t>(kMassUnits * worth); }

// How many of the best rows it takes to have `wanted` of mass, up to a sixteenth of an octave of
// their worth too many; all, where that is not enough.
int CountForMass(const std::vector<ScoreList>& lists, uint64_t wanted) {
  constexpr int kBins = 512, kBinBits = 19;
  std::array<uint64_t, kBins> mass{};
  std::array<int, kBins> count{};
  const auto bin_of = [](float worth) {
    return static_cast<int>(std::bit_cast<uint32_t>(std::max(worth, 0.0f)) >> kBinBits);
  };
  int top = 0;
  for (const ScoreList& list : lists) {
    for (int i = 0; i < list.n; ++i) top = std::max(top, bin_of(list.scores[i]));
  }
  for (const ScoreList& list : lists) {
    for (int i = 0; i < list.n; ++i) {
      const int below = std::min(top - bin_of(list.scores[i]), kBins - 1);
      mass[below] += MassOf(list.scores[i]);
      ++count[below];
    }
  }
  uint64_t have = 0;
  int n = 0;
  for (int below = 0; below < kBins && have < wanted; ++below) {
    have += mass[below];
    n += count[below];
  }
  return n;
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
  least_worth_ = 0;
  by_mass_ = scans_ && budget.mass < 1;
  coded_ = parts.coded.data();
  has_bases_ = false;
  part_.assign(n_parts, Part());
  share_.resize(group_);
  const size_t n_segments = static_cast<size_t>(group_) * last_;
  if (scans_) bases_.resize(n_segments);
  if (scans_ && budget.n_scanned < static_cast<int>(parts.segments.size())) ScanFewer();
  ListFixed();
  const size_t n_logits = group_ * exact_stride_;
  logits_.resize(n_logits);
  exact_.resize(n_logits);
  worths_.resize(std::max(exact_stride_, scans_ ? stride_ + n_parts * kSpare : 0));
  if (!scans_) return;
  tables_.resize(static_cast<size_t>(n_parts) * group_);
  references_.resize(n_segments);
  sums_.resize(n_segments);
  p_.resize(group_ * stride_);
  candidates_.resize(stride_ + n_parts * kSpare);
}

// Per head a softmax over n logits, a multiple of 16, and their sum over the group; false where a
// head's greatest is not finite. logits, exps: [group, stride].
bool RowChooser::Worths(const float* logits, size_t stride, int n, float* exps, float* worths) {
  for (int h = 0; h < group_; ++h) {
    const float max = LargestOf(logits + h * stride, n);
    if (!std::isfinite(max)) return false;
    share_[h] = 1 / ExpOf(logits + h * stride, n, max, exps + h * stride);
  }
  WorthOf(exps, stride, group_, share_.data(), n, worths);
  return true;
}

// best_: the n best of a list.
void RowChooser::TakeBest(const ScoreList& list, int n) {
  int n_taken;
  const TopCut cut = TopOfLists(&list, 1, n, /*guess=*/0, &n_taken);
  best_.resize(n_taken + kSpare);
  TakeTop(list, cut, n_taken, best_.data());
  best_.resize(n_taken);
}

// Chooses the segments that are scanned.
void RowChooser::ScanFewer() {
  static thread_local std::vector<float> logits, exps, worths;
  const std::vector<int32_t>& segments = parts_->segments;
  CentroidLogits(query_->codes->View(kv_head_), q_, group_, query_->scale, first_, last_,
                 bases_.data(), last_);
  has_bases_ = true;
  const size_t stride = BlocksFor(static_cast<int>(segments.size())) * size_t{kBlockRows};
  const int n = static_cast<int>(stride);
  logits.assign(group_ * stride, -std::numeric_limits<float>::infinity());
  exps.resize(group_ * stride);
  worths.resize(stride);
  for (int h = 0; h < group_; ++h) {
    for (size_t i = 0; i < segments.size(); ++i)
      logits[h * stride + i] = bases_[h * last_ + segments[i]];
  }
  // Where one is not finite, the scan of all of them will say so.
  if (!Worths(logits.data(), stride, n, exps.data(), worths.data())) return;
  TakeBest({worths.data(), segments.data(), static_cast<int>(segments.size())}, budget_.n_scanned);
  scanned_.assign(query_->visible.size(), 0);
  int n_rows = 0;
  for (int32_t segment : best_) {
    const size_t block = static_cast<size_t>(segment) * (kSegmentRows / kBlockRows);
    std::copy_n(coded_ + block, kSegmentRows / kBlockRows, scanned_.data() + block);
    n_rows += CountBits(SegmentRows(parts_->coded, segment));
  }
  coded_ = scanned_.data();
  budget_.n_keys = std::min(budget_.n_keys, n_rows);
  budget_.n_values = std::min(budget_.n_values, budget_.n_keys + parts_->n_loose);
}

// The masks as they are without a choice, and entries of the rows read in any case; room for the
// short list's.
void RowChooser::ListFixed() {
  const size_t n_blocks = query_->visible.size();
  if (scans_) {
    for (size_t b = 0; b < n_blocks; ++b)
      k_mask_[b] = static_cast<uint16_t>(parts_->always[b] | parts_->loose[b]);
  } else {
    std::copy_n(query_->visible.data(), n_blocks, k_mask_);
  }
  std::copy_n(parts_->always.data(), n_blocks, v_mask_);
  const std::span<const uint16_t> fixed(k_mask_, n_blocks);
  const int n_rows = parts_->n_always + parts_->n_loose + (scans_ ? 0 : parts_->n_coded);
  n_fixed_ = BlocksFor(n_rows);
  n_listed_ = scans_ ? budget_.n_keys : 0;
  exact_stride_ = static_cast<size_t>(n_entries()) * kBlockRows;
  // From step to step the rows before the window grow to a segment and fall back: room for them, so
  // that a warm step allocates nothing.
  const auto make_room = [&](auto& values, size_t a_row, size_t rows_each) {
    if (values.capacity() < exact_stride_ * a_row / rows_each)
      values.reserve((exact_stride_ + 2 * kSegmentRows) * a_row / rows_each);
  };
  make_room(rows_, 1, 1);
  make_room(best_, 1, 1);
  make_room(lanes_, 1, kBlockRows);
  make_room(v_lanes_, 1, kBlockRows);
  make_room(logits_, group_, 1);
  make_room(exact_, group_, 1);
  rows_.resize(exact_stride_ + kSpare);
  int32_t* to = rows_.data();
  ForFourWords(fixed, [&](size_t b, uint64_t four) {
    for (; four != 0; four &= four - 1)
      *to++ = static_cast<int32_t>(b * kBlockRows) + std::countr_zero(four);
  });
  std::fill(to, rows_.data() + rows_.size(), rows_[0]);
  lanes_.assign(n_entries(), 0xFFFF);
  lanes_[n_fixed_ - 1] = LastLanes(n_rows);
  if (n_listed_ > 0) lanes_[n_entries() - 1] = LastLanes(n_listed_);
}

int RowChooser::n_entries() const { return n_fixed_ + BlocksFor(n_listed_); }

RowChooser::Run RowChooser::PartOf(int part, int first, int last) const {
  const int64_t n = last - first;
  return {first + static_cast<int>(n * part / n_parts_),
          first + static_cast<int>(n * (part + 1) / n_parts_)};
}

// The part of the entries that are read in any case, or of the short list's.
RowChooser::Run RowChooser::EntriesOf(int part, bool listed) const {
  return listed ? PartOf(part, n_fixed_, n_entries()) : PartOf(part, 0, n_fixed_);
}

// Asks for the keys of the part of the entries that are read in any case, into the second-level
// cache: they are used when the part's codes are through.
void RowChooser::FetchKeys(int part) const {
  const KvView& kv = *query_->kv;
  const size_t bytes = kv.KeyBytes();
  const auto [begin, end] = EntriesOf(part, /*listed=*/false);
  for (int i = begin * kBlockRows; i < end * kBlockRows; ++i) {
    const std::byte* row = kv.KeyRow(kv_head_, rows_[i]);
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
  }
}

// Exact logits of the same entries.
void RowChooser::Logits(int part, bool listed) {
  static thread_local std::vector<float> logits;
  static thread_local std::vector<const uint16_t*> masks;
  const KvView& kv = *query_->kv;
  const auto [begin, end] = EntriesOf(part, listed);
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

void RowChooser::Scan(int part) {
  FetchKeys(part);
  if (scans_) ScanPart(part);
  const auto start = Clock::now();
  Logits(part, /*listed=*/false);
  part_[part].logits_ns = NsSince(start);
}

void RowChooser::ScanPart(int part) {
  const auto [begin, end] = SegmentsOf(part);
  if (begin == end) return;
  const CodesView view = query_->codes->View(kv_head_);
  if (!has_bases_)
    CentroidLogits(view, q_, group_, query_->scale, begin, end, bases_.data(), last_);
  ScanArgs args;
  args.view = view;
  args.n_heads = group_;
  QueryTable* tables = tables_.data() + static_cast<size_t>(part) * group_;
  args.tables = tables;
  args.bases = bases_.data();
  args.segment_stride = last_;
  args.softcap = query_->softcap;
  args.visible = coded_;
  args.p = p_.data();
  args.p_stride = stride_;
  args.references = references_.data();
  args.sums = sums_.data();
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
    ScanCodes(args, from, to);
    from = to;
  }
}

// Per head 1 / its mass over all coded rows and those read in any case, the latter's share of it
// over all heads to *fixed_mass; false where something is not finite. What the references are worth
// is left in factors [group, segments].
bool RowChooser::HeadShares(float* factors, float* share, double* fixed_mass) const {
  static thread_local std::vector<float> exact;
  const int n_rows = n_fixed_ * kBlockRows, n_segments = last_ - first_;
  exact.resize(n_rows);
  for (int h = 0; h < group_; ++h) {
    const size_t at = static_cast<size_t>(h) * last_;
    const float* logits = logits_.data() + h * exact_stride_;
    const float max = LargerOrNan(LargestOf(logits, n_rows),
                                  LargestOf(references_.data() + at + first_, n_segments));
    if (!std::isfinite(max)) return false;
    const float fixed = ExpOf(logits, n_rows, max, exact.data());
    const float mass = fixed + SegmentMass(references_.data() + at, sums_.data() + at, max, first_,
                                           last_, factors + at);
    // Next to nothing only where the largest estimate that there may be is far from any there is.
    share[h] = mass >= 0x1p-100f ? 1 / mass : 0.0f;
    *fixed_mass += static_cast<double>(fixed) * share[h];
  }
  return true;
}

void RowChooser::Collect(int part, float least) {
  if (!scans_) return;
  static thread_local std::vector<float> factors, share;
  factors.resize(static_cast<size_t>(group_) * last_);
  share.resize(group_);
  Part& own = part_[part];
  own.n = 0;
  double fixed_mass = 0;
  own.finite = HeadShares(factors.data(), share.data(), &fixed_mass);
  if (!own.finite) return;
  const auto [begin, end] = SegmentsOf(part);
  own.begin = begin * kSegmentRows + part * static_cast<int>(kSpare);
  CollectArgs args;
  args.p = p_.data();
  args.p_stride = stride_;
  args.n_heads = group_;
  args.visible = coded_;
  args.factors = factors.data();
  args.segment_stride = last_;
  args.share = share.data();
  own.n = CollectRows(args, begin, end, least, worths_.data() + own.begin,
                      candidates_.data() + own.begin);
  if (!by_mass_) return;
  own.wanted =
      static_cast<uint64_t>(std::max(budget_.mass * group_ - fixed_mass, 0.0) * kMassUnits);
  own.mass = 0;
  for (int i = 0; i < own.n; ++i) own.mass += MassOf(worths_[own.begin + i]);
}

bool RowChooser::TooFew() const {
  if (!scans_ || !part_[0].finite) return false;
  int n = 0;
  uint64_t mass = 0;
  for (const Part& part : part_) {
    n += part.n;
    mass += part.mass;
  }
  return n < budget_.n_keys && !(by_mass_ && n > 0 && mass >= part_[0].wanted);
}

// How long the short list is.
int RowChooser::CountListed(const std::vector<ScoreList>& lists) const {
  if (!by_mass_) return budget_.n_keys;
  return std::clamp(CountForMass(lists, part_[0].wanted), 1, budget_.n_keys);
}

void RowChooser::ShortList(int part, float guess) {
  if (!scans_ || !part_[0].finite) return;
  // Every part finds out for itself: less work than to wait for one that does.
  static thread_local std::vector<ScoreList> lists;
  static thread_local std::vector<int> n_taken;
  lists.resize(n_parts_);
  n_taken.resize(n_parts_);
  for (int i = 0; i < n_parts_; ++i)
    lists[i] = {worths_.data() + part_[i].begin, candidates_.data() + part_[i].begin, part_[i].n};
  const int n_listed = CountListed(lists);
  const TopCut cut = TopOfLists(lists.data(), n_parts_, n_listed, guess, n_taken.data());
  if (part == 0) {
    least_worth_ = cut.least;
    n_listed_ = n_listed;
    lanes_.resize(n_entries());
    lanes_.back() = LastLanes(n_listed);
  }
  int32_t* rows = rows_.data() + static_cast<size_t>(n_fixed_) * kBlockRows;
  for (int i = 0; i < part; ++i) rows += n_taken[i];
  static thread_local std::vector<int32_t> own;
  // A part may hold all of them, and a step later a few more.
  if (own.size() < budget_.n_keys + kSpare) own.resize(budget_.n_keys + 2 * kSegmentRows);
  TakeTop(lists[part], cut, n_taken[part], own.data());
  std::copy_n(own.data(), n_taken[part], rows);
  const std::span<uint16_t> mask(k_mask_, query_->visible.size());
  for (int i = 0; i < n_taken[part]; ++i) AddRow(mask, own[i]);
}

void RowChooser::ReadKeys(int part) {
  if (scans_ && part_[0].finite) Logits(part, /*listed=*/true);
}

bool RowChooser::ChooseValues(Selection::KeyLogits& logits) {
  if (scans_ && !part_[0].finite) return false;
  const int n = n_entries() * kBlockRows;
  if (!Worths(logits_.data(), exact_stride_, n, exact_.data(), worths_.data())) return false;
  const std::span<uint16_t> mask(v_mask_, query_->visible.size());
  v_lanes_.assign(n_entries(), 0);
  for (int i = 0; i < n_fixed_ * kBlockRows; ++i) {
    if (!HasRow(mask, rows_[i])) continue;
    worths_[i] = kNoCandidate;
    AddRow(v_lanes_, i);
  }
  v_lanes_[n_fixed_ - 1] &= lanes_[n_fixed_ - 1];
  for (int entry : {n_fixed_, n / kBlockRows}) {
    for (int lane = CountBits(lanes_[entry - 1]); lane < kBlockRows; ++lane)
      worths_[(entry - 1) * kBlockRows + lane] = kNoCandidate;
  }
  int n_values = budget_.n_values;
  if (by_mass_)
    n_values = std::min(n_values, static_cast<int>(budget_.split * (n_listed_ + parts_->n_loose)));
  if (n_values > 0) {
    static thread_local std::vector<int32_t> places;
    for (int i = static_cast<int>(places.size()); i < n; ++i) places.push_back(i);
    TakeBest({worths_.data(), places.data(), n}, n_values);
    for (int32_t place : best_) {
      AddRow(mask, rows_[place]);
      AddRow(v_lanes_, place);
    }
  }
  rows_.resize(n);
  logits.rows.swap(rows_);
  logits.lanes.swap(lanes_);
  logits.v_lanes.swap(v_lanes_);
  logits.logits.swap(logits_);
  logits.stride = exact_stride_;
  return true;
}

}  // namespace condense
