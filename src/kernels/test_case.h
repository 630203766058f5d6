// One table of shapes for the kernels' tests and benchmarks, and the data to go with a shape: rows
// of every KV type with a host's strides, masks, bias. Deterministic in the seed.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/attend.h"
#include "kernels/half.h"
#include "kernels/target.h"

namespace condense {

// Targets with fused multiply-add: one set of bits.
inline std::vector<std::string> ExactTargets() {
  std::vector<std::string> exact;
  for (const std::string& name : AvailableTargets()) {
    if (name.starts_with("AVX") || name == "NEON") exact.push_back(name);
  }
  return exact;
}

enum class MaskKind { kFull, kCausal, kRandom, kRandomBlocks, kOneRow, kEmpty };

struct KernelCase {
  int n_rows = 16, n_queries = 1, k_dim = 64, v_dim = 64;
  KvType k_type = KvType::kF16, v_type = KvType::kF16;
  MaskKind mask = MaskKind::kFull;
  float softcap = 0;
  bool bias = false, v_subset = false, reverse = false;

  std::string Name() const {
    static const char* const masks[] = {"full", "causal", "random", "blocks", "one", "empty"};
    std::string name = std::to_string(n_rows) + " rows, " + std::to_string(n_queries) +
                       " queries, " + std::to_string(k_dim) + "/" + std::to_string(v_dim) + " " +
                       KvTypeName(k_type) + "/" + KvTypeName(v_type) + ", " +
                       masks[static_cast<int>(mask)];
    if (softcap > 0) name += ", softcap";
    if (bias) name += ", bias";
    if (v_subset) name += ", V subset";
    if (reverse) name += ", reverse";
    return name;
  }
};

inline std::vector<KernelCase> KernelCases() {
  std::vector<KernelCase> cases;
  for (int n_rows : {1, 15, 16, 17, 100, 512}) {
    for (int n_queries : {1, 2, 3, 4, 7, 8, 12, 96}) {
      if (n_queries == 96 && n_rows < 100) continue;
      for (MaskKind mask : {MaskKind::kFull, MaskKind::kCausal, MaskKind::kRandom}) {
        cases.push_back({.n_rows = n_rows, .n_queries = n_queries, .mask = mask});
      }
    }
  }
  for (int dim : {64, 80, 96, 128, 256}) {
    for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
      if (type == KvType::kQ8_0 && dim % 32 != 0) continue;
      for (int n_queries : {1, 5, 9}) {
        cases.push_back({.n_rows = 100,
                         .n_queries = n_queries,
                         .k_dim = dim,
                         .v_dim = dim,
                         .k_type = type,
                         .v_type = type,
                         .mask = n_queries == 5 ? MaskKind::kRandom : MaskKind::kFull});
      }
    }
  }
  // Head sizes whose pairs of channels 16 rows do not share out evenly, and the smallest.
  for (int dim : {16, 48, 112, 176, 208, 240}) {
    for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
      for (int n_queries : {1, 9}) {
        cases.push_back({.n_rows = 100,
                         .n_queries = n_queries,
                         .k_dim = dim,
                         .v_dim = dim,
                         .k_type = type,
                         .v_type = type});
      }
    }
  }
  for (int n_queries : {3, 10, 97}) {
    for (MaskKind mask : {MaskKind::kFull, MaskKind::kRandom, MaskKind::kRandomBlocks,
                          MaskKind::kOneRow, MaskKind::kEmpty}) {
      const KernelCase base{.n_rows = 500, .n_queries = n_queries, .mask = mask};
      for (int option = 0; option < 6; ++option) {
        KernelCase one = base;
        if (option == 1 || option == 5) one.softcap = 5;
        if (option == 2 || option == 5) one.bias = true;
        if (option == 3 || option == 5) one.v_subset = true;
        if (option == 4 || option == 5) one.reverse = true;
        if (option == 5)
          one.v_dim = 32, one.k_dim = 96, one.v_type = KvType::kQ8_0, one.k_type = KvType::kBF16;
        cases.push_back(one);
      }
    }
  }
  return cases;
}

// Appends `values` as stored in `type` to `out`.
inline void AppendStored(const std::vector<float>& values, KvType type,
                         std::vector<std::byte>& out) {
  const size_t begin = out.size();
  out.resize(begin + KvBytes(type, values.size()));
  std::byte* to = out.data() + begin;
  if (type == KvType::kQ8_0) {
    for (size_t i = 0; i < values.size(); i += kQ8BlockValues) {
      float largest = 0;
      for (size_t j = 0; j < kQ8BlockValues; ++j)
        largest = std::max(largest, std::fabs(values[i + j]));
      const uint16_t scale = F16FromF32Saturated(largest / 127);
      const float step = F32FromF16(scale);
      std::memcpy(to, &scale, 2);
      for (size_t j = 0; j < kQ8BlockValues; ++j) {
        const float quotient = step > 0 ? std::round(values[i + j] / step) : 0;
        to[2 + j] = static_cast<std::byte>(
            static_cast<int8_t>(std::min(127.0f, std::max(-127.0f, quotient))));
      }
      to += kQ8BlockBytes;
    }
    return;
  }
  for (float value : values) {
    if (type == KvType::kF32) {
      std::memcpy(to, &value, 4);
      to += 4;
    } else {
      const uint16_t half = type == KvType::kF16
                                ? F16FromF32Saturated(value)
                                : static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      std::memcpy(to, &half, 2);
      to += 2;
    }
  }
}

// Owns what a case's AttendArgs points to, outputs included. Rows past n_rows, rows' gaps and
// outputs start as bytes 0xFF, which are NaN in every floating type.
class KernelData {
 public:
  explicit KernelData(const KernelCase& shape, uint32_t seed = 1) : shape_(shape), random_(seed) {
    const int n_blocks = BlocksFor(shape.n_rows);
    args_.n_blocks = n_blocks;
    args_.n_queries = shape.n_queries;
    args_.k_dim = shape.k_dim, args_.v_dim = shape.v_dim;
    args_.k_type = shape.k_type, args_.v_type = shape.v_type;
    args_.scale = 1 / std::sqrt(static_cast<float>(shape.k_dim));
    args_.softcap = shape.softcap;
    args_.reverse = shape.reverse;
    args_.k_stride = MakeRows(shape.k_type, shape.k_dim, k_);
    args_.v_stride = MakeRows(shape.v_type, shape.v_dim, v_);
    args_.k = k_.data(), args_.v = v_.data();
    q_ = Normal(shape.n_queries * shape.k_dim, 2);
    args_.q = q_.data();
    for (int query = 0; query < shape.n_queries; ++query) {
      masks_.push_back(MakeMask(query));
      std::vector<uint16_t> subset = masks_.back();
      for (uint16_t& word : subset) word = static_cast<uint16_t>(word & random_() & 0xFFFF);
      v_masks_.push_back(subset);
      std::vector<uint16_t> bias(n_blocks * kBlockRows, 0xFFFF);
      for (int row = 0; row < shape.n_rows; ++row) {
        if (HasRow(masks_.back(), row)) bias[row] = F16FromF32Saturated(Normal(1, 1)[0]);
      }
      bias_.push_back(bias);
    }
    for (const auto& mask : masks_) mask_pointers_.push_back(mask.data());
    for (const auto& mask : v_masks_) v_mask_pointers_.push_back(mask.data());
    for (const auto& bias : bias_) bias_pointers_.push_back(bias.data());
    args_.masks = mask_pointers_.data();
    if (shape.v_subset) args_.v_masks = v_mask_pointers_.data();
    if (shape.bias) args_.bias = bias_pointers_.data();
    const float nan = std::bit_cast<float>(0xFFFFFFFFu);
    o.assign(static_cast<size_t>(shape.n_queries) * shape.v_dim, nan);
    max.assign(shape.n_queries, nan), sum = sum_v = max;
    args_.o = o.data(), args_.max = max.data(), args_.sum = sum.data(), args_.sum_v = sum_v.data();
  }
  KernelData(const KernelData&) = delete;
  KernelData& operator=(const KernelData&) = delete;

  const AttendArgs& args() const { return args_; }
  const KernelCase& shape() const { return shape_; }
  // Writes NaN into the row, of K or V.
  void SpoilKey(int row) {
    std::memset(k_.data() + row * args_.k_stride, 0xFF, KvBytes(args_.k_type, args_.k_dim));
  }
  void SpoilValue(int row) {
    std::memset(v_.data() + row * args_.v_stride, 0xFF, KvBytes(args_.v_type, args_.v_dim));
  }
  std::vector<float>& q() { return q_; }

  std::vector<float> o, max, sum, sum_v;

 private:
  // Nearly normal: the sum of four bytes and a fraction. IEEE operations alone, unlike
  // std::normal_distribution, whose logarithm differs between machines in the last place.
  std::vector<float> Normal(int n, float deviation) {
    constexpr float kDeviation = 147.8019f;  // of four bytes
    std::vector<float> values(n);
    for (float& value : values) {
      const uint32_t bytes = static_cast<uint32_t>(random_());
      const uint32_t total =
          (bytes & 0xFF) + ((bytes >> 8) & 0xFF) + ((bytes >> 16) & 0xFF) + (bytes >> 24);
      const float fraction = static_cast<float>(random_() >> 8) * 0x1p-24f;
      value = (static_cast<float>(total) - 510.5f + fraction) * (deviation / kDeviation);
    }
    return values;
  }

  // Rows behind each other with a gap, as another head's values would leave it. Returns the stride.
  size_t MakeRows(KvType type, int dim, std::vector<std::byte>& rows) {
    const size_t gap = 2 * KvBytes(type, 32);
    for (int row = 0; row < shape_.n_rows; ++row) {
      AppendStored(Normal(dim, 1), type, rows);
      rows.insert(rows.end(), gap, std::byte{0xFF});
    }
    const size_t stride = KvBytes(type, dim) + gap;
    rows.resize(stride * BlocksFor(shape_.n_rows) * kBlockRows, std::byte{0xFF});
    return stride;
  }

  RowMask MakeMask(int query) {
    const int n_rows = shape_.n_rows;
    RowMask mask(BlocksFor(n_rows));
    switch (shape_.mask) {
      case MaskKind::kFull:
        AddRange(mask, {0, n_rows});
        break;
      case MaskKind::kCausal:
        AddRange(mask, {0, std::max(1, n_rows - shape_.n_queries / 3 + query / 3)});
        break;
      case MaskKind::kRandom:
        for (int row = 0; row < n_rows; ++row) {
          if (random_() & 1) AddRow(mask, row);
        }
        break;
      case MaskKind::kRandomBlocks:
        for (int b = 0; b < n_rows / kBlockRows; ++b) {
          if (random_() % 4 == 0) AddRange(mask, {b * kBlockRows, (b + 1) * kBlockRows});
        }
        break;
      case MaskKind::kOneRow:
        AddRow(mask, static_cast<int>(random_() % n_rows));
        break;
      case MaskKind::kEmpty:
        break;
    }
    return mask;
  }

  KernelCase shape_;
  std::mt19937 random_;
  std::vector<std::byte> k_, v_;
  std::vector<float> q_;
  std::vector<RowMask> masks_, v_masks_;
  std::vector<std::vector<uint16_t>> bias_;
  std::vector<const uint16_t*> mask_pointers_, v_mask_pointers_, bias_pointers_;
  AttendArgs args_;
};

}  // namespace condense
