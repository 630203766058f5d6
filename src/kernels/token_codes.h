// Token codes: every cached key as 4 or 8 bytes, from which a scan estimates its logit for each
// query head. A product quantisation (Jegou et al. 2011; tables in registers as in faiss' fast
// scan, PQ for KV caches as in PQCache 2407.12820) of the keys' residuals from a coarse centroid,
// in channels weighted by the queries' second moments. One KV head at a time, raw pointers and
// views; knows no policy, cache or ggml.
//
//   segment    64 aligned rows; c_s: mean of its keys, int8 with one scale
//   y_i        w_i (k_i - c_si), where w_i² is the queries' second moment of channel i; rotated:
//              k - c_s along axis i of kernels/key_axes.h, and q along its counterpart for q/w
//   nibble     a choice among 16 entries in 1 to 4 channels of y; 8 (16) nibbles are a row's code
//   estimate   scale (q·c_s) + the sum over the nibbles of scale (q/w)·entry, the latter in 8 bits
//
// Estimates and their exponentials are integer arithmetic, exact; everything after them is FP32
// with fused multiply-adds in a fixed order, per row and per segment: the same bits on every target
// that has them, and for every split of the segments among threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/kv_type.h"
#include "kernels/half.h"

namespace condense {

inline constexpr int kSegmentRows = 64;
inline constexpr int kTileSegments = 16;  // centroids are kept in tiles of 16 segments
inline constexpr int kNibbleEntries = 16;
inline constexpr int kNibbleChannels = 4;  // at most
inline constexpr int kMostNibbles = 16;    // 64 bits a row

constexpr int SegmentTiles(int n_segments) {
  return (n_segments + kTileSegments - 1) / kTileSegments;
}
// Bytes of n segments' codes: [n_segments][n_nibbles / 2][64]. Nibbles 2 p (low) and 2 p + 1 (high)
// of a row are a byte of plane p: byte 4 j + b of a plane is row 16 b + j of the segment.
constexpr size_t CodeBytes(int n_segments, int n_nibbles) {
  return static_cast<size_t>(n_segments) * n_nibbles / 2 * kSegmentRows;
}
// Bytes of n segments' centroids, whole tiles: int8 [tile][dim][16 segments]. Their scales are one
// float a segment, [16 SegmentTiles(n)] as well.
constexpr size_t CentroidBytes(int n_segments, int dim) {
  return static_cast<size_t>(SegmentTiles(n_segments)) * kTileSegments * dim;
}

// What the nibbles of one KV head's codes mean. Channels that no nibble holds are coded by the
// centroid alone. An unused nibble (keys that hardly vary) has no channels; its code is 0.
struct TokenCodebook {
  int dim = 0;        // channels of the head, 16 … 256
  int n_nibbles = 0;  // 8 (32 bits a row) or 16 (64 bits)
  // Nibble n codes channel[first[n]] … channel[first[n + 1] - 1], 0 to 4 of them: [n_nibbles + 1].
  std::vector<uint8_t> first;
  // Per coded channel, [first.back()]:
  std::vector<uint8_t> channel;  // no channel twice
  std::vector<float> weight;     // w > 0, finite
  // [16 each], bf16: the entries' coordinate in this channel of y, finite.
  std::vector<uint16_t> entries;
  // Rotated: channels are axes, all of weight 1; per coded axis [dim], what gives y of a residual
  // and q' of a query. Else empty.
  std::vector<float> to_code, to_query;

  float Entry(size_t i) const { return F32FromBF16(entries[i]); }
  bool rotated() const { return !to_code.empty(); }
  bool empty() const { return dim == 0; }
  size_t bytes() const;  // memory it takes, for accounting
};

// 64 stored keys of one KV head: row 0 of the segment, bytes from row to row.
struct SegmentKeys {
  const std::byte* k = nullptr;
  size_t k_stride = 0;
  KvType k_type = KvType::kF16;
  int dim = 0;  // a multiple of 16 (of 32 for kQ8_0), 16 … 256
  // Bit r: row r counts. Not 0. Other rows may hold anything, and change, without a trace.
  uint64_t counted = ~uint64_t{0};
};

// Writes the mean of the rows that count, rounded to int8 steps of *scale, into its tile: tile[c *
// 16 + lane]. Where the mean is not finite (such a row holds NaN or infinity, or sums overflow),
// the centroid is 0 and *scale is NaN: then every estimate for the segment is NaN, as its logits
// might be.
void EncodeCentroid(const SegmentKeys& keys, int8_t* tile, int lane, float* scale);

// Writes the codes of the rows that count, [n_nibbles / 2][64], as laid out for CodeBytes: per
// nibble the entry nearest to y, ties to the lower index. Other rows' codes stay. 1.5 µs with the
// centroid for 64 channels; rotated, 64 rows times n_axes · dim multiply-adds more. `tile`, `lane`,
// `scale`: the segment's own, from EncodeCentroid. Rows with NaN or infinity get some valid code.
void EncodeSegment(const TokenCodebook& book, const SegmentKeys& keys, const int8_t* tile, int lane,
                   float scale, uint8_t* codes);

// One query head's side of the estimates: 16 products a nibble in steps common to the head, so wide
// that the two nibbles of a byte add up to 255 at most. The softmax scale is in them.
struct alignas(64) QueryTable {
  uint8_t products[kMostNibbles][kNibbleEntries];
  float step = 0, offset = 0;  // logits; see ScanCodes
  // exp(step · sum - reference) in the upper 16 bits of a float, as the scan computes it:
  // constant + ((min(sum - lowest, most) << shift) · factor >> 16), the difference not below 0.
  uint16_t lowest = 0, most = 0, factor = 0, constant = 0;
  int shift = 0;
  bool bounded = false;  // some sums are below the lowest or too far above it
  float reference = 0;
};
// A float's bits as a number are its logarithm in steps of 2^-23 (here, of its upper half, 2^-7) of
// a power of two, but for a bow of up to 6.1 % in the float, of which half is taken off.
inline constexpr float kStepsOfLogit = 128 * 1.44269504f;
inline constexpr float kStepsOfOne = 127 * 128 - 5.5f;  // log2(1.0615) / 2 is .043
inline constexpr int kLeastSteps = 128;                 // 2^-126

// Of q [dim], softmax scale included. A q that is not finite gives offset NaN, so that every
// estimate is NaN.
void MakeQueryTable(const TokenCodebook& book, const float* q, float scale, QueryTable* table);

// The coded segments of one KV head.
struct CodesView {
  int dim = 0, n_nibbles = 0, n_segments = 0;
  const uint8_t* codes = nullptr;          // CodeBytes(n_segments, n_nibbles)
  const int8_t* centroids = nullptr;       // CentroidBytes(n_segments, dim)
  const float* centroid_scales = nullptr;  // [16 SegmentTiles(n_segments)]
};

// bases[h * stride + s] = scale (q_h·c_s) for segments s in [first, last), h < n_heads. q:
// [n_heads, dim]. Only [first, last) is written.
void CentroidLogits(const CodesView& view, const float* q, int n_heads, float scale, int first,
                    int last, float* bases, size_t stride);

struct ScanArgs {
  CodesView view;
  int n_heads = 0;                     // of the group, any number
  const QueryTable* tables = nullptr;  // [n_heads]
  const float* bases = nullptr;        // [n_heads][segment_stride], from CentroidLogits
  size_t segment_stride = 0;           // of `references` and `sums` too
  float softcap = 0;                   // as in AttendArgs
  // Null: every row counts. Else [4 n_segments], bit i of word b is row 16 b + i. Segments without
  // a bit cost next to nothing.
  const uint16_t* visible = nullptr;
  // Out: [n_heads][p_stride], a segment's rows from 64 s on, in the order of PlaceOfRow; 0 where
  // the row's bit is 0. With a stride that is no multiple of 2,048 (160 more, say) the heads' rows
  // do not meet in the cache.
  uint16_t* p = nullptr;
  size_t p_stride = 0;
  // Out: [n_heads][segment_stride]. reference: -inf without a row that counts, NaN or infinite
  // where an estimate may be; sum: of the segment's p.
  float* references = nullptr;
  float* sums = nullptr;
};
// Among a segment's p: word j holds rows j and 32 + j, word 16 + j rows 16 + j and 48 + j.
constexpr int PlaceOfRow(int row) { return row % 32 / 16 * 32 + row % 16 * 2 + row / 32; }
// p = exp(estimate - the segment's reference) for the rows of segments [first, last), as the upper
// 16 bits of a float, with estimate = base + offset + step · (sum of the row's products),
// soft-capped. The estimate is off by at most n_nibbles · step / 2, besides FP32 rounding, from the
// sum of products not rounded. p, read off the exponent's bits (Schraudolph 1999), is off by at
// most 4.3 %: .043 in the logit, where codes of 32 bits are off by some tenths. At least 2^-126, at
// most 2^91: what is further from the largest estimate to be expected is taken for 87 below or 62
// above it.
void ScanCodes(const ScanArgs& args, int first, int last);

// factors[s] = exp(references[s] - max) for segments s in [first, last); returns the sum of sums[s]
// · factors[s] in a fixed order. max: not below any of the references; they are finite or -inf.
float SegmentMass(const float* references, const float* sums, float max, int first, int last,
                  float* factors);

// The larger of two; NaN where one is NaN.
inline float LargerOrNan(float a, float b) { return a != a || a > b ? a : b; }

// The largest of n values; NaN where one is NaN, -inf of none.
float LargestOf(const float* values, int n);

// p[i] = exp(logits[i] - max), 0 at -inf, relative error at most 2^-13; returns their sum in a
// fixed order. n: a multiple of 16. No logit is NaN or above max.
float ExpOf(const float* logits, int n, float max, float* p);

// worth[i] = the sum over heads of p[h * stride + i] · share[h], heads ascending. n: a multiple
// of 16.
void WorthOf(const float* p, size_t stride, int n_heads, const float* share, int n, float* worth);

struct CollectArgs {
  // As ScanCodes made them.
  const uint16_t* p = nullptr;
  size_t p_stride = 0;
  int n_heads = 0;
  const uint16_t* visible = nullptr;
  const float* factors = nullptr;  // [n_heads][segment_stride]
  size_t segment_stride = 0;
  const float* share = nullptr;  // [n_heads]
};
// A row's worth is the sum over heads of p · (factor · share), heads ascending. Writes the rows of
// segments [first, last) that count and are worth `least` or more, ascending, with their worths,
// and returns how many. Room for 64 (last - first) + 16 of each.
int CollectRows(const CollectArgs& args, int first, int last, float least, float* worths,
                int32_t* rows);

}  // namespace condense
