// Codes of one stream's rows in one layer, for policies that scan rows (`condense`; arithmetic:
// kernels/token_codes.h). A segment, 64 aligned rows, is coded lazily, once a query asks, over the
// rows of it that the query sees, and kept until one of these is written again. Rows that change
// unseen are noticed by the BlockIndex's fingerprints; whoever is told so calls Forget.
//
// Codebooks are trained on the segments of the query that asks, and each segment remembers which
// codebook its codes are in: sequences that share a stream do not share a codebook unless they
// share rows, so company changes no choice.
//
// Sequences that decode side by side own rows of the same segments by turns. Where a sequence sees
// none of the rows that a segment is coded for, it gets a strand of its own: centroids and codebook
// numbers, a quarter of what codes take. The rows' codes share one place, a row being one
// sequence's. So neither codes the other's rows, and neither's rows move the other's centroid, at
// whatever positions of their texts the two are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/row_mask.h"
#include "cache/kv_view.h"
#include "cache/query_moment.h"
#include "kernels/codebook.h"
#include "kernels/token_codes.h"

namespace condense {

// The rows of a segment that `mask` (by block) holds, row 0 in the lowest bit.
inline uint64_t SegmentRows(std::span<const uint16_t> mask, int segment) {
  constexpr size_t kBlocks = kSegmentRows / kBlockRows;
  const size_t block = static_cast<size_t>(segment) * kBlocks;
  uint64_t rows = 0;
  std::memcpy(&rows, mask.data() + block, 2 * std::min(kBlocks, mask.size() - block));
  return rows;
}

class CodeIndex {
 public:
  // The prompt's last rows, whose queries weight the channels (TOKEN_CODES: 240 did as well as
  // more).
  static constexpr int kMomentRows = 240;

  // Fewer rows' queries than this weight nothing: one query's channels are no guide to the next's.
  static constexpr int kFewQueries = 64;

  // Rows whose contents were just written: their segment's codes are dropped. A codebook that was
  // trained on the row is dropped with all that it coded.
  void MarkWritten(int row);
  // Queries of prompt rows, one node's. with_products: for rotated codes.
  void NoteQueries(const QueryRows& queries, int n_kv_heads, bool with_products = false);
  const QueryMoment& prompt_queries() const { return prompt_; }

  struct Request {
    std::span<const int32_t> segments;     // ascending, not empty, each with a visible row
    std::span<const uint16_t> visible;     // by block, as in LayerQuery; empty: all rows
    int n_nibbles = 8;                     // 8 or 16
    int refresh_segments = 64;             // a codebook is trained anew after so many more
    const QueryMoment* queries = nullptr;  // may have too few rows, or be null
    bool rotate = false;  // code along axes; by the diagonal where `queries` has no products
    int n_threads = 1;    // of the host's OpenMP team, for training; changes no bit

    uint64_t Rows(int segment) const {
      return visible.empty() ? ~uint64_t{0} : SegmentRows(visible, segment);
    }
  };
  // Makes the codes of the segments asked for current. Trains where there is no codebook yet, where
  // it is due, where it knew rows that the query does not see (rolled back), and where it was
  // trained without queries and enough are there now. Cheap when nothing changed.
  void Refresh(const KvView& view, const Request& request);
  void Forget();

  // These are valid until the next Refresh, for the segments and rows that it made current.
  CodesView View(int kv_head) const;
  int book_of(int segment) const { return strands_[current_].segments[segment].book; }
  const TokenCodebook& Book(int book, int kv_head) const { return books_[book].heads[kv_head]; }
  // Changes whenever the segment is coded after its rows changed; for what is kept of it elsewhere.
  uint64_t stamp(int segment) const { return strands_[current_].segments[segment].stamp; }

  // Read by one scan, one KV head: all segments' centroids and their scales, the codes of some.
  static size_t ScanBytes(int n_nibbles, int k_dim, int n_segments, int n_scanned) {
    return n_segments * (k_dim + sizeof(float)) + CodeBytes(n_scanned, n_nibbles);
  }
  // Memory that the index takes.
  size_t bytes() const;
  uint64_t n_trained() const { return n_trained_; }
  uint64_t n_coded() const { return n_coded_; }  // segments, however few of their rows
  size_t n_strands() const { return strands_.size(); }

 private:
  struct Segment {              // 8 bytes beside the 320 of one head's codes and centroid
    int64_t book : 15 = -1;     // -1: not coded
    uint64_t centroid : 1 = 0;  // current
    uint64_t whole : 1 = 0;     // of a strand without `rows`: all rows, else none
    uint64_t stamp : 47 = 0;
  };
  static_assert(sizeof(Segment) == 8);
  struct Strand {
    std::vector<Segment> segments;  // [capacity_]
    std::vector<uint64_t> rows;  // [capacity_], or empty where all segments are whole or not coded
    std::vector<int8_t> centroids;  // [n_kv_heads] CentroidsOfHead()
    std::vector<float> scales;      // [n_kv_heads] ScalesOfHead()
    uint64_t last_used = 0;

    // The rows that a segment's centroid and codes stand for; 0: none.
    uint64_t RowsOf(int segment) const {
      if (!rows.empty()) return rows[segment];
      return segments[segment].whole != 0 ? ~uint64_t{0} : 0;
    }
    void SetRows(int segment, uint64_t now);
  };
  // What a Refresh has to code.
  struct Missing {
    int32_t segment = 0;
    int16_t book = -1;  // the segment's; -1: the request's
    bool anew = true;   // centroid too
    uint64_t rows = 0;  // to be coded
  };
  struct Codebook {
    std::vector<TokenCodebook> heads;                     // [n_kv_heads]; empty: free
    std::vector<bool> knew;                               // by segment: trained on all of its rows
    std::vector<std::pair<int32_t, uint64_t>> knew_rows;  // on these of a segment
    int n_segments = 0;                                   // trained on so many
    bool weighted = false;                                // by queries
    uint64_t last_used = 0;
  };

  void Resize(const KvView& view, const Request& request);
  static bool HasQueries(const Request& request) {
    return request.queries != nullptr && request.queries->n_rows >= kFewQueries;
  }
  bool TrainingIsDue(const Codebook& book, const Request& request) const;
  int NewBook(const Request& request);
  int FreeBook();
  void DropBook(int book);
  void FreeUnused();
  void GrowStrand(Strand& strand, int old_capacity) const;
  size_t FindStrand(const Request& request);
  bool Conflicts(const Strand& strand, const Request& request, int* n_common) const;
  static void Clear(Strand& strand);
  void TakeOver(int segment, uint64_t rows, const Strand* by);
  void TakeFromOthers(int segment, uint64_t rows);
  int FindMissing(const Request& request);
  void MissAll(const Request& request);
  SegmentKeys KeysOf(const KvView& view, int kv_head, int segment, uint64_t rows) const;
  int8_t* TileOf(int kv_head, int segment);  // the current strand's, as ScalesOf
  float* ScalesOf(int kv_head);
  void FindCentroid(const KvView& view, int kv_head, const Missing& missing);
  TrainArgs TrainingOf(const KvView& view, const Request& request, int kv_head, bool weighted);
  void TrainBook(const KvView& view, const Request& request, Codebook& book,
                 CodebookTrainer* trainers);
  void Encode(const KvView& view, int kv_head, int at, const Missing& missing);
  void FillMissing(const KvView& view, const Request& request, int at, bool train);
  size_t CodesOfHead() const { return CodeBytes(capacity_, n_nibbles_); }
  size_t CentroidsOfHead() const { return CentroidBytes(capacity_, k_dim_); }
  size_t ScalesOfHead() const { return CentroidBytes(capacity_, 1); }  // whole tiles too

  int n_kv_heads_ = 0, k_dim_ = 0, n_nibbles_ = 0;
  bool rotate_ = false;
  int capacity_ = 0;                       // segments
  std::vector<uint8_t> codes_;             // [n_kv_heads] CodesOfHead()
  std::vector<Strand> strands_{Strand()};  // at least one
  size_t current_ = 0;                     // the last Refresh's strand
  std::vector<Codebook> books_;
  std::vector<Missing> missing_;   // of the Refresh under way
  std::vector<uint64_t> counted_;  // likewise: rows by requested segment, where it trains
  QueryMoment prompt_;
  uint64_t clock_ = 0, n_trained_ = 0, n_coded_ = 0;
};

}  // namespace condense
