// Keys with their centroids, codebook and codes, and a step's results: for the tests of the token
// codes and the comparison of bits between targets. Deterministic in the seed.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "kernels/codebook.h"
#include "kernels/test_case.h"
#include "kernels/token_codes.h"
#include "kernels/top.h"

namespace condense {

struct CodesCase {
  int n_segments = 20, dim = 64, n_heads = 3, n_nibbles = 8;
  KvType type = KvType::kF16;
  // Deviation of channel c: 2^-(c % spread); 1: all alike.
  int spread = 5;
};

// Roughly normal, deviation 1, from IEEE operations alone: the same on every machine.
inline float RoughNormal(std::mt19937& random) {
  const uint32_t bytes = static_cast<uint32_t>(random());
  const uint32_t total =
      (bytes & 0xFF) + ((bytes >> 8) & 0xFF) + ((bytes >> 16) & 0xFF) + (bytes >> 24);
  return (static_cast<float>(total) - 510.0f + static_cast<float>(random() >> 8) * 0x1p-24f) *
         (1 / 147.8f);
}

class CodedKeys {
 public:
  explicit CodedKeys(const CodesCase& shape_in, uint32_t seed = 1)
      : shape(shape_in), random_(seed) {
    const size_t dim = static_cast<size_t>(shape.dim);
    std::vector<float> row(dim), drift(dim);
    for (int r = 0; r < shape.n_segments * kSegmentRows; ++r) {
      for (size_t c = 0; c < dim; ++c) {
        // Offsets that move slowly, as channels of low frequency do after RoPE.
        drift[c] += 0.05f * RoughNormal(random_);
        row[c] = drift[c] + std::ldexp(RoughNormal(random_), -static_cast<int>(c) % shape.spread);
      }
      AppendStored(row, shape.type, rows);
      rows.insert(rows.end(), kGap, std::byte{0xFF});
    }
    keys = {rows.data(), KvBytes(shape.type, dim) + kGap, shape.type, shape.dim};
    moment.resize(dim);
    for (float& value : moment) value = 0.1f + std::fabs(RoughNormal(random_));
    q.resize(dim * static_cast<size_t>(shape.n_heads));
    for (float& value : q) value = RoughNormal(random_);
  }
  CodedKeys(const CodedKeys&) = delete;
  CodedKeys& operator=(const CodedKeys&) = delete;

  SegmentKeys Segment(int s) const {
    SegmentKeys at = keys;
    at.k += static_cast<size_t>(s) * kSegmentRows * keys.k_stride;
    return at;
  }
  std::byte* Row(int r) { return rows.data() + static_cast<size_t>(r) * keys.k_stride; }
  int8_t* Tile(int s) {
    return centroids.data() +
           static_cast<size_t>(s / kTileSegments) * kTileSegments * static_cast<size_t>(shape.dim);
  }
  float CentroidValue(int s, int c) {
    return scales[static_cast<size_t>(s)] * static_cast<float>(Tile(s)[c * 16 + s % 16]);
  }
  int Code(int row, int nibble) const {
    const int r = row % kSegmentRows;
    const uint8_t byte =
        codes[CodeBytes(row / kSegmentRows, shape.n_nibbles) +
              static_cast<size_t>(nibble / 2 * kSegmentRows + r % 16 * 4 + r / 16)];
    return nibble % 2 == 0 ? byte & 15 : byte >> 4;
  }

  // Centroids, codebook, codes.
  void Encode() {
    centroids.assign(CentroidBytes(shape.n_segments, shape.dim), 0);
    scales.assign(static_cast<size_t>(SegmentTiles(shape.n_segments) * kTileSegments), 0);
    segments_.clear();
    for (int s = 0; s < shape.n_segments; ++s) {
      EncodeCentroid(Segment(s), Tile(s), s % kTileSegments, &scales[static_cast<size_t>(s)]);
      segments_.push_back(s);
    }
    train.keys = keys;
    train.segments = segments_.data(), train.n_segments = shape.n_segments;
    train.centroids = centroids.data(), train.centroid_scales = scales.data();
    train.query_moment = moment.data(), train.n_nibbles = shape.n_nibbles;
    book = TrainCodebook(train);
    codes.assign(CodeBytes(shape.n_segments, shape.n_nibbles), 0xFF);
    for (int s = 0; s < shape.n_segments; ++s) EncodeCodes(s);
  }
  void EncodeCodes(int s) {
    EncodeSegment(book, Segment(s), Tile(s), s % kTileSegments, scales[static_cast<size_t>(s)],
                  codes.data() + CodeBytes(s, shape.n_nibbles));
  }

  // Room for a step's results, all NaN; Encode() comes first.
  void Prepare(const uint16_t* visible = nullptr, float softcap = 0) {
    const size_t n_heads = static_cast<size_t>(shape.n_heads);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    tables.resize(n_heads);
    bases.assign(n_heads * scales.size(), nan);
    references = sums = factors = bases;
    p.assign(n_heads * n_rows(), 0xFFFF);
    worths.assign(n_rows() + kSpare, nan), rows_found.assign(worths.size(), -1);
    max.assign(n_heads, 0), share.assign(n_heads, 0);
    scan.view = {shape.dim,    shape.n_nibbles,  shape.n_segments,
                 codes.data(), centroids.data(), scales.data()};
    scan.n_heads = shape.n_heads, scan.tables = tables.data();
    scan.bases = bases.data(), scan.segment_stride = scales.size();
    scan.softcap = softcap, scan.visible = visible;
    scan.p = p.data(), scan.p_stride = n_rows();
    scan.references = references.data(), scan.sums = sums.data();
    collect.p = p.data(), collect.p_stride = n_rows(), collect.n_heads = shape.n_heads;
    collect.visible = visible, collect.factors = factors.data();
    collect.segment_stride = scales.size(), collect.share = share.data();
  }
  // The passes of a step, over a range of segments.
  void Tables() {
    for (size_t h = 0; h < tables.size(); ++h)
      MakeQueryTable(book, q.data() + h * static_cast<size_t>(shape.dim), kScale, &tables[h]);
  }
  void Scan(int first, int last) {
    CentroidLogits(scan.view, q.data(), shape.n_heads, kScale, first, last, bases.data(),
                   scales.size());
    ScanCodes(scan, first, last);
  }
  // False where a reference is NaN or infinite.
  bool Shares() {
    bool finite = true;
    for (size_t h = 0; h < share.size(); ++h) {
      const size_t at = h * scales.size();
      max[h] = LargestOf(&references[at], shape.n_segments);
      finite = finite && (std::isfinite(max[h]) || max[h] == -kInf);
      const float mass = SegmentMass(&references[at], &sums[at], max[h] == -kInf ? 0 : max[h], 0,
                                     shape.n_segments, &factors[at]);
      share[h] = mass > 0 ? 1 / mass : 0;
    }
    return finite;
  }
  int Collect(int first, int last, float least, int at = 0) {
    return CollectRows(collect, first, last, least, worths.data() + at, rows_found.data() + at);
  }

  // After a step that found every row: what twice `percent` of them are worth or more.
  float WorthOfTwice(int percent) const {
    std::vector<float> sorted(worths.begin(), worths.begin() + n_found);
    const int at = n_found * 2 * percent / 100;
    std::nth_element(sorted.begin(), sorted.begin() + at, sorted.end(), std::greater<>());
    return sorted[static_cast<size_t>(at)];
  }
  // The best `percent` of all rows among those collected, as a step ranks them; ids: [rows + 16].
  void Top(int percent, float guess, int32_t* ids) const {
    const ScoreList list{worths.data(), rows_found.data(), n_found};
    int n_taken;
    const int n_best = static_cast<int>(n_rows()) * percent / 100;
    const TopCut cut = TopOfLists(&list, 1, n_best, guess, &n_taken);
    TakeTop(list, cut, n_taken, ids);
  }

  // All passes, each cut into ranges of `step` segments as threads would; worths of all rows that
  // count. Without worths where something is not finite: a policy would go dense.
  void Step(int step, const uint16_t* visible = nullptr, float softcap = 0) {
    Prepare(visible, softcap);
    Tables();
    n_found = 0;
    const auto for_ranges = [&](const auto& pass) {
      for (int s = 0; s < shape.n_segments; s += step)
        pass(s, std::min(shape.n_segments, s + step));
    };
    for_ranges([&](int first, int last) { Scan(first, last); });
    if (!Shares()) return;
    for_ranges([&](int first, int last) { n_found += Collect(first, last, 0, n_found); });
  }
  float P(int row, int head) const {
    const size_t first = static_cast<size_t>(row - row % kSegmentRows);
    return std::bit_cast<float>(uint32_t{p[static_cast<size_t>(head) * n_rows() + first +
                                           static_cast<size_t>(PlaceOfRow(row % kSegmentRows))]}
                                << 16);
  }
  // What a row's exponential says of its estimate, after a step: within 4.3 %.
  double Estimate(int row, int head) const {
    return std::log(static_cast<double>(P(row, head))) +
           references[static_cast<size_t>(head) * scales.size() +
                      static_cast<size_t>(row / kSegmentRows)];
  }

  size_t n_rows() const { return static_cast<size_t>(shape.n_segments) * kSegmentRows; }

  static constexpr float kScale = 0.125f;
  static constexpr size_t kGap = 96, kSpare = 16;
  static constexpr float kInf = std::numeric_limits<float>::infinity();

  CodesCase shape;
  SegmentKeys keys;
  std::vector<std::byte> rows;
  std::vector<float> moment, q;
  std::vector<int8_t> centroids;
  std::vector<float> scales;
  TokenCodebook book;
  std::vector<uint8_t> codes;
  std::vector<QueryTable> tables;
  // By head and segment (16 a tile), head and row, head, and as found.
  std::vector<float> bases, references, sums, factors, max, share, worths;
  std::vector<uint16_t> p;
  std::vector<int32_t> rows_found;
  int n_found = 0;
  ScanArgs scan;
  CollectArgs collect;
  TrainArgs train;

 private:
  std::vector<int32_t> segments_;
  std::mt19937 random_;
};

}  // namespace condense
