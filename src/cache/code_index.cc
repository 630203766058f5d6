#include "cache/code_index.h"

#include <algorithm>
#include <array>

#include "base/result.h"

namespace condense {
namespace {

constexpr size_t kMostBooks = 64;  // of one stream, the least recently used gives way
// Fewer segments than this are coded by the calling thread alone: one closes every 64 steps.
constexpr int kParallelSegments = 4;

}  // namespace

void QueryMoment::Add(const QueryRows& queries, int n_kv_heads, int most_rows) {
  const int dim = queries.k_dim;
  const int group = queries.n_heads / n_kv_heads;
  std::span<const int> rows = queries.rows;
  if (rows.empty()) return;
  if (static_cast<int>(rows.size()) > most_rows) rows = rows.last(most_rows);
  const size_t n_values = static_cast<size_t>(n_kv_heads) * dim;
  if (mean.size() != n_values) {
    mean.assign(n_values, 0.0f);
    n_rows = 0;
  }
  const int n_new = static_cast<int>(rows.size());
  const int n_old = std::min(n_rows, most_rows - n_new);
  const float keep = static_cast<float>(n_old) / static_cast<float>(n_old + n_new);
  const float share = 1.0f / (static_cast<float>(group) * static_cast<float>(n_old + n_new));
  for (float& value : mean) value *= keep;
  for (int row : rows) {
    for (int h = 0; h < queries.n_heads; ++h) {
      const auto* q =
          reinterpret_cast<const float*>(queries.q + row * queries.q_row + h * queries.q_head);
      float* to = mean.data() + static_cast<size_t>(h / group) * dim;
      for (int c = 0; c < dim; ++c) to[c] += share * q[c] * q[c];
    }
  }
  n_rows = n_old + n_new;
}

void CodeIndex::MarkWritten(int row) {
  const size_t segment = row / kSegmentRows;
  if (segment >= segments_.size()) return;
  segments_[segment].book = -1;
  segments_[segment].centroid = false;
  for (size_t b = 0; b < books_.size(); ++b) {
    if (!books_[b].heads.empty() && books_[b].knew[segment]) DropBook(static_cast<int>(b));
  }
}

void CodeIndex::NoteQueries(const QueryRows& queries, int n_kv_heads) {
  prompt_.Add(queries, n_kv_heads, kMomentRows);
}

void CodeIndex::Forget() {
  for (Segment& segment : segments_) {
    segment.book = -1;
    segment.centroid = false;
  }
  for (Codebook& book : books_) book = Codebook();
}

// Grows to the view's whole segments and no further: hosts grow their views by 256 rows or so, and
// to copy 2 % of the cache as often costs less than memory in reserve. Another shape starts the
// codes anew.
void CodeIndex::Resize(const KvView& view, int n_nibbles) {
  const bool same =
      n_kv_heads_ == view.n_kv_heads && k_dim_ == view.k_dim && n_nibbles_ == n_nibbles;
  if (!same) {
    QueryMoment prompt = std::move(prompt_);
    *this = CodeIndex();
    prompt_ = std::move(prompt);
    n_kv_heads_ = view.n_kv_heads;
    k_dim_ = view.k_dim;
    n_nibbles_ = n_nibbles;
  }
  const int capacity = view.n_rows / kSegmentRows;
  if (capacity <= capacity_) return;
  std::vector<uint8_t> codes(n_kv_heads_ * CodeBytes(capacity, n_nibbles_));
  std::vector<int8_t> centroids(n_kv_heads_ * CentroidBytes(capacity, k_dim_));
  const size_t new_scales = CentroidBytes(capacity, 1);
  std::vector<float> scales(n_kv_heads_ * new_scales);
  for (int h = 0; h < n_kv_heads_; ++h) {
    std::copy_n(codes_.begin() + h * CodesOfHead(), CodesOfHead(),
                codes.begin() + h * CodeBytes(capacity, n_nibbles_));
    std::copy_n(centroids_.begin() + h * CentroidsOfHead(), CentroidsOfHead(),
                centroids.begin() + h * CentroidBytes(capacity, k_dim_));
    std::copy_n(scales_.begin() + h * ScalesOfHead(), ScalesOfHead(),
                scales.begin() + h * new_scales);
  }
  codes_ = std::move(codes);
  centroids_ = std::move(centroids);
  scales_ = std::move(scales);
  capacity_ = capacity;
  segments_.reserve(capacity);
  segments_.resize(capacity);
  for (Codebook& book : books_) {
    if (!book.heads.empty()) book.knew.resize(capacity, false);
  }
}

bool CodeIndex::TrainingIsDue(const Codebook& book, const Request& request) const {
  const int n = static_cast<int>(request.segments.size());
  return book.n_segments > n || n - book.n_segments >= request.refresh_segments ||
         (!book.weighted && HasQueries(request));
}

void CodeIndex::DropBook(int book) {
  books_[book] = Codebook();
  for (Segment& segment : segments_) {
    if (segment.book == book) segment.book = -1;
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

SegmentKeys CodeIndex::KeysOf(const KvView& view, int kv_head, int segment) const {
  return {.k = view.KeyRow(kv_head, segment * kSegmentRows),
          .k_stride = view.k_row,
          .k_type = view.k_type,
          .dim = view.k_dim};
}

// The calling thread's share of Refresh: one KV head's centroids where they are not current, its
// codebook where `train` says so, and the codes of `missing`.
void CodeIndex::EncodeHead(const KvView& view, const Request& request, int kv_head,
                           std::span<const int32_t> missing, Codebook& book, bool train) {
  int8_t* centroids = centroids_.data() + kv_head * CentroidsOfHead();
  float* scales = scales_.data() + kv_head * ScalesOfHead();
  const auto tile = [&](int s) {
    return centroids + static_cast<size_t>(s / kTileSegments) * kTileSegments * k_dim_;
  };
  for (int32_t s : missing) {
    if (segments_[s].centroid) continue;
    EncodeCentroid(KeysOf(view, kv_head, s), tile(s), s % kTileSegments, scales + s);
  }
  if (train) {
    TrainArgs args;
    args.keys = KeysOf(view, kv_head, 0);
    args.segments = request.segments.data();
    args.n_segments = static_cast<int>(request.segments.size());
    args.centroids = centroids;
    args.centroid_scales = scales;
    if (book.weighted) {
      args.query_moment = request.queries->mean.data() + static_cast<size_t>(kv_head) * k_dim_;
    }
    args.n_nibbles = n_nibbles_;
    book.heads[kv_head] = TrainCodebook(args);
  }
  uint8_t* codes = codes_.data() + kv_head * CodesOfHead();
  for (int32_t s : missing) {
    EncodeSegment(book.heads[kv_head], KeysOf(view, kv_head, s), tile(s), s % kTileSegments,
                  scales[s], codes + CodeBytes(s, n_nibbles_));
  }
}

// A codebook that knows of the request's segments; its heads are still to be trained.
int CodeIndex::NewBook(const Request& request) {
  const int at = FreeBook();
  Codebook& book = books_[at];
  book.heads.resize(n_kv_heads_);
  book.knew.assign(capacity_, false);
  for (int32_t s : request.segments) book.knew[s] = true;
  book.n_segments = static_cast<int>(request.segments.size());
  book.weighted = HasQueries(request);
  ++n_trained_;
  return at;
}

// Frees codebooks that no segment is coded in any more.
void CodeIndex::FreeUnused() {
  std::array<bool, kMostBooks> used = {};
  for (const Segment& segment : segments_) {
    if (segment.book >= 0) used[segment.book] = true;
  }
  for (size_t b = 0; b < books_.size(); ++b) {
    if (!used[b]) books_[b] = Codebook();
  }
}

void CodeIndex::Refresh(const KvView& view, const Request& request) {
  CONDENSE_CHECK(!request.segments.empty());
  Resize(view, request.n_nibbles);
  // The newest coded segment tells the sequence's codebook: of older ones, another sequence with
  // the same beginning may have taken over the codes.
  int at = -1;
  missing_.clear();
  for (int32_t s : request.segments) {
    if (segments_[s].book >= 0) {
      at = segments_[s].book;
    } else {
      missing_.push_back(s);
    }
  }
  const bool train = at < 0 || TrainingIsDue(books_[at], request);
  if (train) {
    at = NewBook(request);
    missing_.assign(request.segments.begin(), request.segments.end());
  }
  Codebook& book = books_[at];
  book.last_used = ++clock_;
  if (missing_.empty()) return;
  const bool parallel =
      request.n_threads > 1 && static_cast<int>(missing_.size()) >= kParallelSegments;
#pragma omp parallel for num_threads(request.n_threads) if (parallel) schedule(dynamic, 1)
  for (int h = 0; h < n_kv_heads_; ++h) EncodeHead(view, request, h, missing_, book, train);
  for (int32_t s : missing_) {
    Segment& segment = segments_[s];
    segment.book = static_cast<int16_t>(at);
    if (!segment.centroid) segment.stamp = ++clock_;
    segment.centroid = true;
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
  view.centroids = centroids_.data() + kv_head * CentroidsOfHead();
  view.centroid_scales = scales_.data() + kv_head * ScalesOfHead();
  return view;
}

size_t CodeIndex::bytes() const {
  size_t n = codes_.capacity() + centroids_.capacity() + sizeof(float) * scales_.capacity() +
             sizeof(Segment) * segments_.capacity() + sizeof(float) * prompt_.mean.capacity();
  for (const Codebook& book : books_) {
    n += sizeof(book) + book.knew.capacity() / 8;
    for (const TokenCodebook& head : book.heads) n += head.bytes();
  }
  return n;
}

}  // namespace condense
