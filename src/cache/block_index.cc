#include "cache/block_index.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/result.h"
#include "kernels/summary.h"

namespace condense {
namespace {

constexpr int kMaxDim = 256;

constexpr SummarySet kSummaryOf[] = {kMeanKey,   kKeyMinMax, kKeyMinMax,    kKeyVariance,
                                     kMeanValue, kKeyStd,    kVarianceMean, kGroupVariances};
constexpr SummarySet kVariances = kKeyVariance | kKeyStd | kVarianceMean | kGroupVariances;

// means[g] = the mean over the g-th of n_groups runs of channels.
void GroupMeans(const float* values, int dim, int n_groups, float* means) {
  const int n = dim / n_groups;
  for (int g = 0; g < n_groups; ++g) {
    float sum = 0;
    for (int c = g * n; c < (g + 1) * n; ++c) sum += values[c];
    means[g] = sum / static_cast<float>(n);
  }
}

}  // namespace

int BlockIndex::Dim(Column column, int k_dim, int v_dim) {
  switch (column) {
    case Column::kMeanValue:
      return v_dim;
    case Column::kVarianceMean:
      return 1;
    case Column::kGroupVariances:
      return kVarianceGroups;
    default:
      return k_dim;
  }
}

size_t BlockIndex::HeadLines(Column column) const {
  constexpr size_t kLine = std::size(Line().values);
  return (static_cast<size_t>(n_tiles_) * kTileBlocks * Dim(column) + kLine - 1) / kLine;
}

size_t BlockIndex::BytesPerBlock(SummarySet needs, int k_dim, int v_dim) {
  size_t values = 0;
  for (size_t c = 0; c < std::size(kSummaryOf); ++c) {
    if (needs & kSummaryOf[c]) values += Dim(static_cast<Column>(c), k_dim, v_dim);
  }
  return values * sizeof(uint16_t);
}

size_t BlockIndex::bytes() const {
  size_t n = sizeof(SummarySet) * have_.capacity() +
             sizeof(uint64_t) * (fingerprint_.capacity() + last_rows_.capacity());
  for (const std::vector<Line>& column : columns_) n += sizeof(Line) * column.capacity();
  return n + clusters_.bytes() + gates_.bytes();
}

void BlockIndex::MarkWritten(int row) {
  const size_t block = row / kBlockRows;
  if (block < have_.size()) have_[block] = 0;
  clusters_.MarkWritten(row);
  gates_.MarkWritten(row);
}

bool BlockIndex::has_summaries() const {
  return std::any_of(have_.begin(), have_.end(), [](SummarySet have) { return have != 0; });
}

void BlockIndex::Forget() {
  std::fill(have_.begin(), have_.end(), 0);
  clusters_.Forget();
  gates_.Forget();
}

// Grows to the view's rows. A view of another shape starts the index anew. Tiles keep their place
// within a head, so growth moves each head's values.
void BlockIndex::Resize(const KvView& view) {
  const bool same_shape =
      n_kv_heads_ == view.n_kv_heads && k_dim_ == view.k_dim && v_dim_ == view.v_dim;
  if (!same_shape) {
    *this = BlockIndex();
    n_kv_heads_ = view.n_kv_heads;
    k_dim_ = view.k_dim;
    v_dim_ = view.v_dim;
  }
  const int n_blocks = BlocksFor(view.n_rows);
  if (n_blocks <= static_cast<int>(have_.size())) return;
  const int needed = (n_blocks + kTileBlocks - 1) / kTileBlocks;
  if (needed > n_tiles_) {
    size_t old_lines[static_cast<size_t>(Column::kCount)];
    for (size_t c = 0; c < std::size(old_lines); ++c)
      old_lines[c] = HeadLines(static_cast<Column>(c));
    n_tiles_ = std::max(needed, n_tiles_ + n_tiles_ / 2);
    for (size_t c = 0; c < static_cast<size_t>(Column::kCount); ++c) {
      if (columns_[c].empty()) continue;
      const size_t old_head = old_lines[c], new_head = HeadLines(static_cast<Column>(c));
      std::vector<Line> grown(new_head * n_kv_heads_);
      for (int h = 0; h < n_kv_heads_; ++h) {
        std::copy_n(columns_[c].begin() + h * old_head, old_head, grown.begin() + h * new_head);
      }
      columns_[c] = std::move(grown);
    }
  }
  have_.resize(n_blocks, 0);
  fingerprint_.resize(n_blocks, 0);
  last_rows_.resize(n_blocks, 0);
}

uint64_t BlockIndex::Fingerprint(const KvView& view, int block) const {
  uint64_t hash = 0x9E3779B97F4A7C15ull;
  const int head = WatchedHead(view, block);
  for (int r = 0; r < kBlockRows; ++r) {
    hash = (hash ^ KeyWord(view, head, block * kBlockRows + r)) * 0xD6E8FEB86659FD93ull;
    hash ^= hash >> 32;
  }
  return hash;
}

uint64_t BlockIndex::LastRows(const KvView& view, int block) {
  const int head = WatchedHead(view, block), last = (block + 1) * kBlockRows - 1;
  return KeyWord(view, head, last) ^ KeyWord(view, head, last - 1) * 0xD6E8FEB86659FD93ull;
}

void BlockIndex::Store(Column column, int head, int block, const float* values) {
  uint16_t* tiles = columns_[static_cast<size_t>(column)][head * HeadLines(column)].values;
  const int dim = Dim(column);
  const size_t tile = block / kTileBlocks;
  StoreInTile(values, dim, tiles + tile * kTileBlocks * dim, block % kTileBlocks);
}

void BlockIndex::Summarize(const KvView& view, int head, int block, SummarySet missing) {
  if (missing & (kMeanKey | kKeyMinMax | kVariances)) SummarizeKeys(view, head, block, missing);
  if (missing & kMeanValue) {
    alignas(64) std::array<float, kMaxDim> mean;
    BlockStats stats;
    stats.mean = mean.data();
    SummarizeRows(view.ValueRow(head, block * kBlockRows), view.v_row, view.v_type, kBlockRows,
                  v_dim_, stats);
    Store(Column::kMeanValue, head, block, mean.data());
  }
}

void BlockIndex::SummarizeKeys(const KvView& view, int head, int block, SummarySet missing) {
  alignas(64) std::array<float, kMaxDim> mean, min, max, var;
  BlockStats stats;
  if (missing & kMeanKey) stats.mean = mean.data();
  if (missing & kKeyMinMax) {
    stats.min = min.data();
    stats.max = max.data();
  }
  if (missing & kVariances) stats.var = var.data();
  SummarizeRows(view.KeyRow(head, block * kBlockRows), view.k_row, view.k_type, kBlockRows, k_dim_,
                stats);
  if (stats.mean) Store(Column::kMeanKey, head, block, mean.data());
  if (stats.min) {
    Store(Column::kMinKey, head, block, min.data());
    Store(Column::kMaxKey, head, block, max.data());
  }
  if (missing & kKeyVariance) Store(Column::kVarKey, head, block, var.data());
  float means[kVarianceGroups];
  if (missing & kVarianceMean) {
    GroupMeans(var.data(), k_dim_, 1, means);
    Store(Column::kVarianceMean, head, block, means);
  }
  if (missing & kGroupVariances) {
    GroupMeans(var.data(), k_dim_, kVarianceGroups, means);
    Store(Column::kGroupVariances, head, block, means);
  }
  if (missing & kKeyStd) {  // last: takes var's place
    for (int c = 0; c < k_dim_; ++c) var[c] = std::sqrt(var[c]);
    Store(Column::kStdKey, head, block, var.data());
  }
}

void BlockIndex::Refresh(const KvView& view, SummarySet needs, std::span<const uint16_t> blocks) {
  if (needs == 0) return;
  CONDENSE_CHECK(view.k_dim <= kMaxDim && view.v_dim <= kMaxDim);
  Resize(view);
  for (size_t c = 0; c < static_cast<size_t>(Column::kCount); ++c) {
    if ((needs & kSummaryOf[c]) && columns_[c].empty()) {
      columns_[c].assign(HeadLines(static_cast<Column>(c)) * n_kv_heads_, Line());
    }
  }
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b] != 0xFFFF || (have_[b] & needs) == needs) continue;
    for (int h = 0; h < n_kv_heads_; ++h)
      Summarize(view, h, static_cast<int>(b), needs & ~have_[b]);
    if (have_[b] == 0) {
      fingerprint_[b] = Fingerprint(view, static_cast<int>(b));
      last_rows_[b] = LastRows(view, static_cast<int>(b));
    }
    have_[b] |= needs;
  }
}

bool BlockIndex::SpotCheck(const KvView& view, int n) {
  const int n_blocks = std::min(static_cast<int>(have_.size()), view.n_rows / kBlockRows);
  if (n_blocks == 0) return true;
  bool same = true;
  const int limit = n < 0 ? n_blocks : std::min(n_blocks, 64);
  int checked = 0;
  for (int i = 0; same && i < limit && (n < 0 || checked < n); ++i) {
    next_check_ = (next_check_ + 1) % n_blocks;
    if (have_[next_check_] == 0) continue;
    ++checked;
    same = Fingerprint(view, next_check_) == fingerprint_[next_check_];
  }
  return ForgetUnless(same);
}

bool BlockIndex::CheckLastRows(const KvView& view) {
  const int n_blocks = std::min(static_cast<int>(have_.size()), view.n_rows / kBlockRows);
  bool same = true;
  // Without a branch on the outcome, so that the misses overlap.
  for (int b = 0; b < n_blocks; ++b) same &= have_[b] == 0 || LastRows(view, b) == last_rows_[b];
  return ForgetUnless(same);
}

bool BlockIndex::ForgetUnless(bool same) {
  if (same) return true;
  Forget();
  ++rebuilds_;
  return false;
}

}  // namespace condense
