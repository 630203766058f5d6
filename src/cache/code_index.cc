#include "cache/code_index.h"

#include <algorithm>
#include <array>

#include "base/result.h"

namespace condense {
namespace {

// Of one stream, the least recently used gives way.
constexpr size_t kMostBooks = 64;
constexpr size_t kMostStrands = 32;  // as many sequences share a segment's rows at most
constexpr uint64_t kAllRows = ~uint64_t{0};
// Fewer segments than this are coded by the calling thread alone: one closes every 64 steps.
constexpr int kParallelSegments = 4;

// part(i) for i < n, by the threads of the team, all of which call it.
template <typename Part>
void ShareParts(int n, const Part& part) {
#pragma omp for schedule(static)
  for (int i = 0; i < n; ++i) part(i);
}

}  // namespace

void CodeIndex::MarkWritten(int row) {
  const int segment = row / kSegmentRows;
  if (segment >= capacity_) return;
  const uint64_t bit = uint64_t{1} << (row % kSegmentRows);
  TakeOver(segment, bit, /*by=*/nullptr);
  for (size_t b = 0; b < books_.size(); ++b) {
    const Codebook& book = books_[b];
    if (book.heads.empty()) continue;
    bool knew = book.knew[segment];
    for (const auto& [s, rows] : book.knew_rows) knew |= s == segment && (rows & bit) != 0;
    if (knew) DropBook(static_cast<int>(b));
  }
}

// Rows of a segment are coded otherwise from now on, in the strand `by`, or not at all: strands
// that stand for one of them stand for none of the segment.
void CodeIndex::TakeOver(int segment, uint64_t rows, const Strand* by) {
  for (Strand& strand : strands_) {
    if (&strand == by || (strand.RowsOf(segment) & rows) == 0) continue;
    strand.SetRows(segment, 0);
    strand.segments[segment].book = -1;
    strand.segments[segment].centroid = 0;
  }
}

void CodeIndex::NoteQueries(const QueryRows& queries, int n_kv_heads, bool with_products) {
  prompt_.Add(queries, n_kv_heads, kMomentRows, with_products);
}

void CodeIndex::Forget() {
  strands_.resize(1);
  current_ = 0;
  Clear(strands_[0]);
  for (Codebook& book : books_) book = Codebook();
}

// Grows to the view's whole segments and no further: hosts grow their views by 256 rows or so, and
// to copy 2 % of the cache as often costs less than memory in reserve. Another shape or form
// starts the codes anew.
void CodeIndex::Resize(const KvView& view, const Request& request) {
  const bool same = n_kv_heads_ == view.n_kv_heads && k_dim_ == view.k_dim &&
                    n_nibbles_ == request.n_nibbles && rotate_ == request.rotate;
  if (!same) {
    QueryMoment prompt = std::move(prompt_);
    *this = CodeIndex();
    prompt_ = std::move(prompt);
    n_kv_heads_ = view.n_kv_heads;
    k_dim_ = view.k_dim;
    n_nibbles_ = request.n_nibbles;
    rotate_ = request.rotate;
  }
  const int capacity = view.n_rows / kSegmentRows;
  if (capacity <= capacity_) return;
  std::vector<uint8_t> codes(n_kv_heads_ * CodeBytes(capacity, n_nibbles_));
  for (int h = 0; h < n_kv_heads_; ++h) {
    std::copy_n(codes_.begin() + h * CodesOfHead(), CodesOfHead(),
                codes.begin() + h * CodeBytes(capacity, n_nibbles_));
  }
  codes_ = std::move(codes);
  const int old_capacity = std::exchange(capacity_, capacity);
  for (Strand& strand : strands_) GrowStrand(strand, old_capacity);
  for (Codebook& book : books_) {
    if (!book.heads.empty()) book.knew.resize(capacity, false);
  }
}

void CodeIndex::Strand::SetRows(int segment, uint64_t now) {
  if (rows.empty() && now != 0 && now != kAllRows) {
    std::vector<uint64_t> each(segments.size());
    for (size_t s = 0; s < each.size(); ++s) each[s] = RowsOf(static_cast<int>(s));
    rows = std::move(each);
  }
  if (!rows.empty()) {
    rows[segment] = now;
  } else {
    segments[segment].whole = now != 0;
  }
}

// To capacity_ segments.
void CodeIndex::GrowStrand(Strand& strand, int old_capacity) const {
  std::vector<int8_t> centroids(n_kv_heads_ * CentroidsOfHead());
  std::vector<float> scales(n_kv_heads_ * ScalesOfHead());
  const size_t old_centroids = CentroidBytes(old_capacity, k_dim_);
  const size_t old_scales = CentroidBytes(old_capacity, 1);
  for (int h = 0; h < n_kv_heads_ && old_capacity > 0; ++h) {
    std::copy_n(strand.centroids.begin() + h * old_centroids, old_centroids,
                centroids.begin() + h * CentroidsOfHead());
    std::copy_n(strand.scales.begin() + h * old_scales, old_scales,
                scales.begin() + h * ScalesOfHead());
  }
  strand.centroids = std::move(centroids);
  strand.scales = std::move(scales);
  strand.segments.reserve(capacity_);
  strand.segments.resize(capacity_);
  if (strand.rows.empty()) return;
  strand.rows.reserve(capacity_);
  strand.rows.resize(capacity_, 0);
}

void CodeIndex::Clear(Strand& strand) {
  strand.rows = {};
  for (Segment& segment : strand.segments) {
    segment.whole = 0;
    segment.book = -1;
    segment.centroid = 0;
  }
}

bool CodeIndex::TrainingIsDue(const Codebook& book, const Request& request) const {
  const int n = static_cast<int>(request.segments.size());
  return book.n_segments > n || n - book.n_segments >= request.refresh_segments ||
         (!book.weighted && HasQueries(request));
}

void CodeIndex::DropBook(int book) {
  books_[book] = Codebook();
  for (Strand& strand : strands_) {
    for (Segment& segment : strand.segments) {
      if (segment.book == book) segment.book = -1;
    }
  }
}

int CodeIndex::FreeBook() {
  for (size_t b = 0; b < books_.size(); ++b) {
    if (books_[b].heads.empty()) return static_cast<int>(b);
  }
  if (books_.size() < kMostBooks) {
    books_.emplace_back();
    return static_cast<int>(books_.size()) - 1;
  }
  const auto oldest = std::min_element(
      books_.begin(), books_.end(),
      [](const Codebook& a, const Codebook& b) { return a.last_used < b.last_used; });
  const int book = static_cast<int>(oldest - books_.begin());
  DropBook(book);
  return book;
}

SegmentKeys CodeIndex::KeysOf(const KvView& view, int kv_head, int segment, uint64_t rows) const {
  return {.k = view.KeyRow(kv_head, segment * kSegmentRows),
          .k_stride = view.k_row,
          .k_type = view.k_type,
          .dim = view.k_dim,
          .counted = rows};
}

int8_t* CodeIndex::TileOf(int kv_head, int segment) {
  return strands_[current_].centroids.data() + kv_head * CentroidsOfHead() +
         CentroidBytes(segment / kTileSegments * kTileSegments, k_dim_);
}

float* CodeIndex::ScalesOf(int kv_head) {
  return strands_[current_].scales.data() + kv_head * ScalesOfHead();
}

void CodeIndex::FindCentroid(const KvView& view, int kv_head, const Missing& missing) {
  const int s = missing.segment;
  if (!missing.anew) return;
  EncodeCentroid(KeysOf(view, kv_head, s, missing.rows), TileOf(kv_head, s), s % kTileSegments,
                 ScalesOf(kv_head) + s);
}

// Once all centroids are current.
TrainArgs CodeIndex::TrainingOf(const KvView& view, const Request& request, int kv_head,
                                bool weighted) {
  TrainArgs args;
  args.keys = KeysOf(view, kv_head, 0, kAllRows);
  args.segments = request.segments.data();
  args.n_segments = static_cast<int>(request.segments.size());
  args.counted = counted_.data();
  args.centroids = TileOf(kv_head, 0);
  args.centroid_scales = ScalesOf(kv_head);
  if (weighted) {
    const QueryMoment& queries = *request.queries;
    const size_t channels = static_cast<size_t>(kv_head) * k_dim_;
    args.query_moment = queries.mean.data() + channels;
    if (queries.n_product_rows >= kFewQueries)
      args.query_products = queries.products.data() + channels * k_dim_;
  }
  args.rotate = rotate_;
  args.n_nibbles = n_nibbles_;
  return args;
}

// `at`: the codebook where the missing segment names none.
void CodeIndex::Encode(const KvView& view, int kv_head, int at, const Missing& missing) {
  const int s = missing.segment;
  EncodeSegment(books_[missing.book >= 0 ? missing.book : at].heads[kv_head],
                KeysOf(view, kv_head, s, missing.rows), TileOf(kv_head, s), s % kTileSegments,
                ScalesOf(kv_head)[s],
                codes_.data() + kv_head * CodesOfHead() + CodeBytes(s, n_nibbles_));
}

// Centroids where they are not current, the codebook `at` where `train` says so, and the codes of
// what is missing. Threads share segments, channels and nibbles, whatever the heads: three heads on
// two threads would leave one idle for a third of the time.
void CodeIndex::FillMissing(const KvView& view, const Request& request, int at, bool train) {
  static thread_local std::vector<CodebookTrainer> kept;
  std::vector<CodebookTrainer>& trainers = kept;  // of the calling thread
  if (train && static_cast<int>(trainers.size()) < n_kv_heads_) trainers.resize(n_kv_heads_);
  const int n_missing = static_cast<int>(missing_.size()), n_all = n_kv_heads_ * n_missing;
  const bool parallel = request.n_threads > 1 && n_missing >= kParallelSegments;
#pragma omp parallel num_threads(request.n_threads) if (parallel)
  {
    ShareParts(n_all, [&](int i) { FindCentroid(view, i / n_missing, missing_[i % n_missing]); });
    if (train) TrainBook(view, request, books_[at], trainers.data());
    ShareParts(n_all, [&](int i) { Encode(view, i / n_missing, at, missing_[i % n_missing]); });
  }
}

// Of every thread of the team.
void CodeIndex::TrainBook(const KvView& view, const Request& request, Codebook& book,
                          CodebookTrainer* trainers) {
  const int n_heads = n_kv_heads_;
  ShareParts(n_heads,
             [&](int h) { trainers[h].Begin(TrainingOf(view, request, h, book.weighted)); });
  // Heads have as many channels and nibbles each, but for segments whose rows are not finite.
  int n_samples = 0;
  for (int h = 0; h < n_heads; ++h) n_samples = std::max(n_samples, trainers[h].n_samples());
  ShareParts(n_heads * n_samples, [&](int i) {
    CodebookTrainer& trainer = trainers[i / n_samples];
    if (i % n_samples < trainer.n_samples()) trainer.Sample(i % n_samples);
  });
  ShareParts(n_heads * k_dim_, [&](int i) { trainers[i / k_dim_].Measure(i % k_dim_); });
  ShareParts(n_heads, [&](int h) { trainers[h].Plan(); });
  ShareParts(n_heads * n_nibbles_,
             [&](int i) { trainers[i / n_nibbles_].TrainNibble(i % n_nibbles_); });
  ShareParts(n_heads, [&](int h) { book.heads[h] = trainers[h].TakeBook(); });
}

// A codebook that knows of the request's segments; its heads are still to be trained.
int CodeIndex::NewBook(const Request& request) {
  const int at = FreeBook();
  Codebook& book = books_[at];
  book.heads.resize(n_kv_heads_);
  book.knew.assign(capacity_, false);
  for (size_t i = 0; i < request.segments.size(); ++i) {
    const int32_t s = request.segments[i];
    if (counted_[i] == kAllRows) {
      book.knew[s] = true;
    } else {
      book.knew_rows.emplace_back(s, counted_[i]);
    }
  }
  book.n_segments = static_cast<int>(request.segments.size());
  book.weighted = HasQueries(request);
  ++n_trained_;
  return at;
}

// Frees codebooks that no segment is coded in any more.
void CodeIndex::FreeUnused() {
  std::array<bool, kMostBooks> used = {};
  for (const Strand& strand : strands_) {
    for (const Segment& segment : strand.segments) {
      if (segment.book >= 0) used[segment.book] = true;
    }
  }
  for (size_t b = 0; b < books_.size(); ++b) {
    if (!used[b]) books_[b] = Codebook();
  }
}

// Whether the strand stands for other rows, and for none of the request's, in a segment of it.
bool CodeIndex::Conflicts(const Strand& strand, const Request& request, int* n_common) const {
  *n_common = 0;
  for (int32_t s : request.segments) {
    const uint64_t rows = strand.RowsOf(s);
    if (rows == 0) continue;
    if ((rows & request.Rows(s)) == 0) return true;
    ++*n_common;
  }
  return false;
}

// The strand of the request's rows: that with most of them, or a free one.
size_t CodeIndex::FindStrand(const Request& request) {
  size_t best = strands_.size();
  int best_common = -1;
  for (size_t i = 0; i < strands_.size(); ++i) {
    int n_common;
    if (Conflicts(strands_[i], request, &n_common) || n_common <= best_common) continue;
    best = i;
    best_common = n_common;
  }
  if (best < strands_.size()) return best;
  if (strands_.size() < kMostStrands) {
    strands_.emplace_back();
    GrowStrand(strands_.back(), 0);
    return best;
  }
  const auto oldest =
      std::min_element(strands_.begin(), strands_.end(),
                       [](const Strand& a, const Strand& b) { return a.last_used < b.last_used; });
  Clear(*oldest);
  return oldest - strands_.begin();
}

// Where another strand stands for rows of the segment that the request sees, the current one takes
// its centroid and codes: all of the rows, or some beside rows that the request does not see (a
// fork's beginning, which both go on to see).
void CodeIndex::TakeFromOthers(int segment, uint64_t rows) {
  Strand& to = strands_[current_];
  const Strand* from = nullptr;
  for (const Strand& other : strands_) {
    const uint64_t theirs = other.RowsOf(segment);
    if (&other == &to || other.segments[segment].book < 0 || (theirs & rows) == 0) continue;
    if ((rows & ~theirs) == 0) {
      from = &other;
      break;
    }
    if (from == nullptr && (theirs & ~rows) != 0 && to.RowsOf(segment) == 0) from = &other;
  }
  if (from == nullptr) return;
  to.segments[segment] = from->segments[segment];
  to.SetRows(segment, from->RowsOf(segment));
  const int tile = segment / kTileSegments, lane = segment % kTileSegments;
  for (int h = 0; h < n_kv_heads_; ++h) {
    const size_t first = h * CentroidsOfHead() + CentroidBytes(tile * kTileSegments, k_dim_) + lane;
    for (int c = 0; c < k_dim_; ++c) {
      const size_t at = first + static_cast<size_t>(c) * kTileSegments;
      to.centroids[at] = from->centroids[at];
    }
    const size_t scale = h * ScalesOfHead() + segment;
    to.scales[scale] = from->scales[scale];
  }
}

// Fills missing_; returns the newest coded segment's codebook, -1 without one. It tells which the
// sequence's own is: of older segments, another sequence with the same beginning may have taken
// over the codes.
int CodeIndex::FindMissing(const Request& request) {
  Strand& strand = strands_[current_];
  int at = -1;
  missing_.clear();
  for (int32_t s : request.segments) {
    const uint64_t rows = request.Rows(s);
    const bool current = (rows & ~strand.RowsOf(s)) == 0 && strand.segments[s].book >= 0;
    if (!current) TakeFromOthers(s, rows);
    const Segment& segment = strand.segments[s];
    const uint64_t have = strand.RowsOf(s);
    if ((rows & ~have) == 0) {
      if (segment.book >= 0) {
        at = segment.book;
      } else {
        missing_.push_back({.segment = s, .anew = segment.centroid == 0, .rows = have});
      }
    } else if (segment.book >= 0 && (have & ~rows) != 0) {
      // Beside what another sequence has of the segment, by the same centroid.
      const auto book = static_cast<int16_t>(segment.book);
      missing_.push_back({.segment = s, .book = book, .anew = false, .rows = rows & ~have});
    } else {
      missing_.push_back({.segment = s, .rows = rows});
    }
  }
  return at;
}

// The same where a codebook is to be trained: all is coded anew.
void CodeIndex::MissAll(const Request& request) {
  const Strand& strand = strands_[current_];
  missing_.clear();
  counted_.clear();
  for (int32_t s : request.segments) {
    const uint64_t rows = request.Rows(s), have = strand.RowsOf(s);
    const bool keep = (rows & ~have) == 0 && strand.segments[s].centroid != 0;
    missing_.push_back({.segment = s, .anew = !keep, .rows = keep ? have : rows});
    counted_.push_back(rows);
  }
}

void CodeIndex::Refresh(const KvView& view, const Request& request) {
  CONDENSE_CHECK(!request.segments.empty());
  Resize(view, request);
  current_ = FindStrand(request);
  Strand& strand = strands_[current_];
  strand.last_used = ++clock_;
  int at = FindMissing(request);
  const bool train = at < 0 || TrainingIsDue(books_[at], request);
  if (train) {
    MissAll(request);
    at = NewBook(request);
  }
  books_[at].last_used = ++clock_;
  if (missing_.empty()) return;
  FillMissing(view, request, at, train);
  for (const Missing& m : missing_) {
    Segment& segment = strand.segments[m.segment];
    const bool beside = m.book >= 0;
    strand.SetRows(m.segment, beside ? strand.RowsOf(m.segment) | m.rows : m.rows);
    segment.book = static_cast<int16_t>(beside ? m.book : at);
    if (m.anew || beside) segment.stamp = ++clock_;
    segment.centroid = 1;
    TakeOver(m.segment, m.rows, &strand);
  }
  n_coded_ += missing_.size();
  if (train) FreeUnused();
}

CodesView CodeIndex::View(int kv_head) const {
  CodesView view;
  view.dim = k_dim_;
  view.n_nibbles = n_nibbles_;
  view.n_segments = capacity_;
  view.codes = codes_.data() + kv_head * CodesOfHead();
  const Strand& strand = strands_[current_];
  view.centroids = strand.centroids.data() + kv_head * CentroidsOfHead();
  view.centroid_scales = strand.scales.data() + kv_head * ScalesOfHead();
  return view;
}

size_t CodeIndex::bytes() const {
  size_t n = codes_.capacity() + prompt_.bytes();
  for (const Strand& strand : strands_) {
    n += strand.centroids.capacity() + sizeof(float) * strand.scales.capacity() +
         sizeof(Segment) * strand.segments.capacity() + sizeof(uint64_t) * strand.rows.capacity();
  }
  for (const Codebook& book : books_) {
    n += sizeof(book) + book.knew.capacity() / 8 +
         sizeof(book.knew_rows[0]) * book.knew_rows.capacity();
    for (const TokenCodebook& head : book.heads) n += head.bytes();
  }
  return n;
}

}  // namespace condense
