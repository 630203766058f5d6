// Token codes of one KV head: centroids, codes, query tables and the scan.
#include "kernels/token_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/result.h"
#include "kernels/codebook_rows.h"
#include "kernels/half.h"

namespace condense {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Byte of a plane that holds a row.
constexpr int PlaneByte(int row) { return row % 16 * 4 + row / 16; }

int Nearest(const TokenCodebook& book, int nibble, const float* y) {
  int best = 0;
  float least = kInf;
  for (int e = 0; e < kNibbleEntries; ++e) {
    float distance = 0;
    for (int i = book.first[nibble]; i < book.first[nibble + 1]; ++i) {
      const float off = y[i] - book.entries[i * kNibbleEntries + e];
      distance = std::fma(off, off, distance);
    }
    if (distance < least) least = distance, best = e;
  }
  return best;
}

}  // namespace

size_t TokenCodebook::bytes() const {
  return sizeof(*this) + first.size() + channel.size() +
         sizeof(float) * (weight.size() + entries.size());
}

void LoadKeyRow(const std::byte* row, KvType type, int dim, float* out) {
  for (int c = 0; c < dim; ++c) {
    uint16_t half;
    switch (type) {
      case KvType::kF32:
        std::memcpy(out + c, row + 4 * c, 4);
        break;
      case KvType::kF16:
        std::memcpy(&half, row + 2 * c, 2);
        out[c] = F32FromF16(half);
        break;
      case KvType::kBF16:
        std::memcpy(&half, row + 2 * c, 2);
        out[c] = F32FromBF16(half);
        break;
      case KvType::kQ8_0: {
        const std::byte* block = row + c / kQ8BlockValues * kQ8BlockBytes;
        std::memcpy(&half, block, 2);
        out[c] = F32FromF16(half) * static_cast<int8_t>(block[2 + c % kQ8BlockValues]);
        break;
      }
    }
  }
}

void EncodeCentroid(const SegmentKeys& keys, int8_t* tile, int lane, float* scale) {
  float mean[256] = {}, row[256];
  for (int r = 0; r < kSegmentRows; ++r) {
    LoadKeyRow(keys.k + r * keys.k_stride, keys.k_type, keys.dim, row);
    for (int c = 0; c < keys.dim; ++c) mean[c] += row[c];
  }
  float largest = 0;
  bool finite = true;
  for (int c = 0; c < keys.dim; ++c) {
    mean[c] *= 1.0f / kSegmentRows;
    finite = finite && std::isfinite(mean[c]);
    largest = std::max(largest, std::fabs(mean[c]));
  }
  *scale = finite ? largest / 127 : kNan;
  const float inverse = finite && *scale > 0 ? 1 / *scale : 0;
  for (int c = 0; c < keys.dim; ++c) {
    const float steps = finite && std::isfinite(inverse) ? mean[c] * inverse : 0.0f;
    tile[c * kTileSegments + lane] =
        static_cast<int8_t>(std::nearbyint(std::clamp(steps, -127.0f, 127.0f)));
  }
}

void EncodeSegment(const TokenCodebook& book, const SegmentKeys& keys, const int8_t* tile, int lane,
                   float scale, uint8_t* codes) {
  std::memset(codes, 0, CodeBytes(1, book.n_nibbles));
  float row[256], y[kMostNibbles * kNibbleChannels];
  for (int r = 0; r < kSegmentRows; ++r) {
    LoadKeyRow(keys.k + r * keys.k_stride, keys.k_type, keys.dim, row);
    for (size_t i = 0; i < book.channel.size(); ++i) {
      const int c = book.channel[i];
      y[i] = book.weight[i] *
             std::fma(-scale, static_cast<float>(tile[c * kTileSegments + lane]), row[c]);
    }
    for (int n = 0; n < book.n_nibbles; ++n) {
      const int code = book.first[n] == book.first[n + 1] ? 0 : Nearest(book, n, y);
      uint8_t& byte = codes[n / 2 * kSegmentRows + PlaneByte(r)];
      byte = static_cast<uint8_t>(byte | code << (n % 2 * 4));
    }
  }
}

void MakeQueryTable(const TokenCodebook& book, const float* q, float scale, QueryTable* table) {
  float products[kMostNibbles][kNibbleEntries] = {};
  float widest = 0, offset = 0, least[kMostNibbles];
  for (int n = 0; n < book.n_nibbles; ++n) {
    for (int i = book.first[n]; i < book.first[n + 1]; ++i) {
      const float factor = scale * q[book.channel[i]] / book.weight[i];
      for (int e = 0; e < kNibbleEntries; ++e) {
        products[n][e] = std::fma(factor, book.entries[i * kNibbleEntries + e], products[n][e]);
      }
    }
    least[n] = *std::min_element(products[n], products[n] + kNibbleEntries);
    const float most = *std::max_element(products[n], products[n] + kNibbleEntries);
    widest = std::max(widest, most - least[n]);
    offset += least[n];
  }
  std::memset(table->products, 0, sizeof(table->products));
  float check = 0;
  for (int c = 0; c < book.dim; ++c) check += 0 * q[c];
  table->step = widest / 255;
  table->offset = offset;
  if (!std::isfinite(widest) || !std::isfinite(offset) || check != 0) {
    table->step = 0;
    table->offset = kNan;
    return;
  }
  const float inverse = table->step > 0 ? 1 / table->step : 0;
  if (!std::isfinite(inverse)) return;
  for (int n = 0; n < book.n_nibbles; ++n) {
    for (int e = 0; e < kNibbleEntries; ++e) {
      const float steps = std::nearbyint((products[n][e] - least[n]) * inverse);
      table->products[n][e] = static_cast<uint8_t>(std::clamp(steps, 0.0f, 255.0f));
    }
  }
}

void CentroidLogits(const CodesView& view, const float* q, int n_heads, float scale, int first,
                    int last, float* bases, size_t stride) {
  for (int s = first; s < last; ++s) {
    const int8_t* tile = view.centroids +
                         static_cast<size_t>(s / kTileSegments) * kTileSegments * view.dim +
                         s % kTileSegments;
    for (int h = 0; h < n_heads; ++h) {
      float even = 0, odd = 0;
      for (int c = 0; c < view.dim; c += 2) {
        even = std::fma(q[h * view.dim + c], static_cast<float>(tile[c * kTileSegments]), even);
        odd = std::fma(q[h * view.dim + c + 1], static_cast<float>(tile[(c + 1) * kTileSegments]),
                       odd);
      }
      bases[h * stride + s] = (even + odd) * (scale * view.centroid_scales[s]);
    }
  }
}

void ScanCodes(const ScanArgs& args, int first, int last, float* max) {
  const int planes = args.view.n_nibbles / 2;
  for (int h = 0; h < args.n_heads; ++h) {
    const QueryTable& table = args.tables[h];
    float largest = -kInf;
    bool nan = false;
    for (int s = first; s < last; ++s) {
      const float base = args.bases[h * args.bases_stride + s] + table.offset;
      const uint8_t* codes = args.view.codes + CodeBytes(s, args.view.n_nibbles);
      for (int r = 0; r < kSegmentRows; ++r) {
        float& out = args.estimates[h * args.estimates_stride + s * kSegmentRows + r];
        if (args.visible != nullptr && !((args.visible[4 * s + r / 16] >> (r % 16)) & 1)) {
          out = -kInf;
          continue;
        }
        int sum = 0;
        for (int p = 0; p < planes; ++p) {
          const uint8_t byte = codes[p * kSegmentRows + PlaneByte(r)];
          sum += table.products[2 * p][byte & 15] + table.products[2 * p + 1][byte >> 4];
        }
        out = std::fma(static_cast<float>(sum), table.step, base);
        if (args.softcap > 0) out = args.softcap * std::tanh(out / args.softcap);
        nan = nan || out != out;
        largest = std::max(largest, out);
      }
    }
    max[h] = nan ? kNan : largest;
  }
}

void ExpEstimates(float* estimates, size_t stride, int n_heads, const float* max, int first,
                  int last, float* sums, size_t sums_stride) {
  for (int h = 0; h < n_heads; ++h) {
    const float shift = max[h] == -kInf ? 0 : max[h];
    for (int s = first; s < last; ++s) {
      float* row = estimates + h * stride + static_cast<size_t>(s) * kSegmentRows;
      float sum = 0;
      for (int r = 0; r < kSegmentRows; ++r) sum += row[r] = std::exp(row[r] - shift);
      sums[h * sums_stride + s] = sum;
    }
  }
}

float SumInOrder(const float* values, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += values[i];
  return sum;
}

void WorthOfRows(const float* p, size_t stride, int n_heads, const float* share, int first,
                 int last, float* worth) {
  for (size_t r = static_cast<size_t>(first) * kSegmentRows;
       r < static_cast<size_t>(last) * kSegmentRows; ++r) {
    worth[r] = 0;
    for (int h = 0; h < n_heads; ++h) worth[r] = std::fma(p[h * stride + r], share[h], worth[r]);
  }
}

}  // namespace condense
