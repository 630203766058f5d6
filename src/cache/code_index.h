// Codes of one stream's rows in one layer, for policies that scan rows (`condense`; arithmetic:
// kernels/token_codes.h). A segment, 64 aligned rows, is coded lazily, once a query that sees all
// of it asks, and kept until one of its rows is written again. Rows that change unseen are noticed
// by the BlockIndex's fingerprints; whoever is told so calls Forget.
//
// Codebooks are trained on the segments of the query that asks, and each segment remembers which
// codebook its codes are in: sequences that share a stream do not share a codebook unless they
// share rows, so company changes no choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_view.h"
#include "kernels/token_codes.h"

namespace condense {

// Query rows of one node: f32 [row][head][k_dim] by byte strides.
struct QueryRows {
  const std::byte* q = nullptr;
  size_t q_row = 0, q_head = 0;
  std::span<const int> rows;  // which, ascending
  int n_heads = 0, k_dim = 0;
};

// Mean of q² per KV head and channel over its group's queries: what an error in a channel costs.
struct QueryMoment {
  std::vector<float> mean;  // [n_kv_heads, k_dim]
  int n_rows = 0;           // that it stands for

  // Takes in rows; of what was there before, as much stays as makes `most_rows` together.
  void Add(const QueryRows& queries, int n_kv_heads, int most_rows);
};

class CodeIndex {
 public:
  // The prompt's last rows, whose queries weight the channels (TOKEN_CODES: 240 did as well as
  // more).
  static constexpr int kMomentRows = 240;

  // Fewer rows' queries than this weight nothing: one query's channels are no guide to the next's.
  static constexpr int kFewQueries = 64;

  // Rows whose contents were just written: their segment's codes are dropped. A codebook that was
  // trained on the segment is dropped with all that it coded.
  void MarkWritten(int row);
  // Queries of prompt rows, one node's.
  void NoteQueries(const QueryRows& queries, int n_kv_heads);
  const QueryMoment& prompt_queries() const { return prompt_; }

  struct Request {
    std::span<const int32_t> segments;     // ascending, not empty: wholly visible, stored
    int n_nibbles = 8;                     // 8 or 16
    int refresh_segments = 64;             // a codebook is trained anew after so many more
    const QueryMoment* queries = nullptr;  // may have too few rows, or be null
    int n_threads = 1;  // of the host's OpenMP team, for training; changes no bit
  };
  // Makes the codes of the segments asked for current. Trains where there is no codebook yet, where
  // it is due, where it knew rows that the query does not see (rolled back), and where it was
  // trained without queries and enough are there now. Cheap when nothing changed.
  void Refresh(const KvView& view, const Request& request);
  void Forget();

  // Valid until the next Refresh, for segments that it made current.
  CodesView View(int kv_head) const;
  int book_of(int segment) const { return segments_[segment].book; }
  const TokenCodebook& Book(int book, int kv_head) const { return books_[book].heads[kv_head]; }
  // Changes whenever the segment is coded after its rows changed; for what is kept of it elsewhere.
  uint64_t stamp(int segment) const { return segments_[segment].stamp; }

  // Read by one scan of a segment, one KV head: codes, centroid and its scale.
  static size_t BytesPerSegment(int n_nibbles, int k_dim) {
    return CodeBytes(1, n_nibbles) + k_dim + sizeof(float);
  }
  // Memory that the index takes.
  size_t bytes() const;
  uint64_t n_trained() const { return n_trained_; }
  uint64_t n_coded() const { return n_coded_; }

 private:
  struct Segment {              // 8 bytes beside the 320 of one head's codes and centroid
    int64_t book : 15 = -1;     // -1: not coded
    uint64_t centroid : 1 = 0;  // current
    uint64_t stamp : 48 = 0;
  };
  static_assert(sizeof(Segment) == 8);
  struct Codebook {
    std::vector<TokenCodebook> heads;  // [n_kv_heads]; empty: free
    std::vector<bool> knew;            // by segment: trained on it
    int n_segments = 0;                // trained on so many
    bool weighted = false;             // by queries
    uint64_t last_used = 0;
  };

  void Resize(const KvView& view, int n_nibbles);
  static bool HasQueries(const Request& request) {
    return request.queries != nullptr && request.queries->n_rows >= kFewQueries;
  }
  bool TrainingIsDue(const Codebook& book, const Request& request) const;
  int NewBook(const Request& request);
  int FreeBook();
  void DropBook(int book);
  void FreeUnused();
  SegmentKeys KeysOf(const KvView& view, int kv_head, int segment) const;
  void EncodeHead(const KvView& view, const Request& request, int kv_head,
                  std::span<const int32_t> missing, Codebook& book, bool train);
  size_t CodesOfHead() const { return CodeBytes(capacity_, n_nibbles_); }
  size_t CentroidsOfHead() const { return CentroidBytes(capacity_, k_dim_); }
  size_t ScalesOfHead() const { return CentroidBytes(capacity_, 1); }  // whole tiles too

  int n_kv_heads_ = 0, k_dim_ = 0, n_nibbles_ = 0;
  int capacity_ = 0;  // segments
  std::vector<Segment> segments_;
  std::vector<uint8_t> codes_;     // [n_kv_heads] CodesOfHead()
  std::vector<int8_t> centroids_;  // [n_kv_heads] CentroidsOfHead()
  std::vector<float> scales_;      // [n_kv_heads] ScalesOfHead()
  std::vector<Codebook> books_;
  std::vector<int32_t> missing_;  // of the Refresh under way
  QueryMoment prompt_;
  uint64_t clock_ = 0, n_trained_ = 0, n_coded_ = 0;
};

}  // namespace condense
