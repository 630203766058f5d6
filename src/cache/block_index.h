// The block index of one stream of one layer: summaries of aligned 16-row blocks, computed lazily
// from the stored (already quantised) rows and kept until one of their rows is written again. Holds
// only the columns that a policy asked for. Notices rows that changed without a MarkWritten (a
// state load, a context shift, a copied sequence) by fingerprints of the stored keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/row_mask.h"
#include "cache/cluster_index.h"
#include "cache/gate_index.h"
#include "cache/kv_view.h"

namespace condense {

enum Summary : uint32_t {
  kMeanKey = 1,
  kKeyMinMax = 2,
  kKeyVariance = 4,
  kMeanValue = 8,
  kFingerprint = 16,  // no column: only notices that rows changed unseen
  kKeyStd = 32,
  kVarianceMean = 64,     // of all channels: one value
  kGroupVariances = 128,  // means over kVarianceGroups runs of channels of equal length
};
using SummarySet = uint32_t;
inline constexpr int kVarianceGroups = 4;

// Columns of f16 tiles, laid out as kernels/summary.h says: [kv_head][tile][channel][16 blocks].
enum class Column : uint8_t {
  kMeanKey,
  kMinKey,
  kMaxKey,
  kVarKey,
  kMeanValue,
  kStdKey,
  kVarianceMean,    // one channel
  kGroupVariances,  // kVarianceGroups channels
  kCount
};

class BlockIndex {
 public:
  // Rows whose contents were just written by the host's graph: their blocks' summaries are dropped.
  void MarkWritten(int row);

  // Makes the summaries `needs` current for every block set in `blocks` ([BlocksFor(n_rows)] words;
  // a block counts when its word is 0xFFFF). Cheap when nothing changed. The view may grow or
  // shrink between calls.
  void Refresh(const KvView& view, SummarySet needs, std::span<const uint16_t> blocks);

  // Compares the fingerprints of `n` summarised blocks, in rotation, with the stored rows (all of
  // them when n < 0). On a difference everything is forgotten; returns false then.
  bool SpotCheck(const KvView& view, int n);
  // The same by the last two rows of every summarised block: a host that writes another sequence
  // over a cache changes all rows from some place on, in every layer. Each block costs a cache and
  // a TLB miss (measured: 16 % of a sparse step when done in all 30 layers), so ask it of one layer
  // a step.
  bool CheckLastRows(const KvView& view);

  void Forget();

  // Clusters of rows, dropped with the summaries; their rows' blocks are summarised (kFingerprint
  // at least) by whoever asks for them.
  ClusterIndex& clusters() { return clusters_; }
  // Keys of trained gates, on the same terms.
  GateIndex& gates() { return gates_; }

  // One KV head's tiles from that of block `first_block` (a multiple of 16) on; valid after Refresh
  // asked for the column. Scores of blocks that were not asked for are meaningless.
  const uint16_t* Tiles(Column column, int kv_head, int first_block = 0) const {
    return HeadTiles(column, kv_head) + static_cast<size_t>(first_block) * Dim(column);
  }
  int n_tiles() const { return n_tiles_; }
  bool has_summaries() const;
  int n_blocks() const { return static_cast<int>(have_.size()); }
  // Bytes of one block's summaries `needs`, one KV head.
  static size_t BytesPerBlock(SummarySet needs, int k_dim, int v_dim);
  // Memory that the index takes.
  size_t bytes() const;
  // Summaries dropped because the cache had changed behind the graph's back.
  uint64_t rebuilds() const { return rebuilds_; }

 private:
  struct alignas(64) Line {  // so that no load of a tile's 16 blocks crosses a cache line
    uint16_t values[32];
  };

  int Dim(Column column) const { return Dim(column, k_dim_, v_dim_); }
  static int Dim(Column column, int k_dim, int v_dim);
  // Lines of one KV head.
  size_t HeadLines(Column column) const;
  const uint16_t* HeadTiles(Column column, int kv_head) const {
    return columns_[static_cast<size_t>(column)].data()[kv_head * HeadLines(column)].values;
  }
  // Where `same` is false: forgets, counts. Returns it.
  bool ForgetUnless(bool same);
  void Resize(const KvView& view);
  // Of one KV head's block.
  void Summarize(const KvView& view, int head, int block, SummarySet missing);
  void SummarizeKeys(const KvView& view, int head, int block, SummarySet missing);
  void Store(Column column, int head, int block, const float* values);
  uint64_t Fingerprint(const KvView& view, int block) const;
  // Eight bytes of each of the block's last two rows, of a KV head that rotates with the block.
  static uint64_t LastRows(const KvView& view, int block);

  int n_kv_heads_ = 0, k_dim_ = 0, v_dim_ = 0;
  int n_tiles_ = 0;                    // capacity
  std::vector<SummarySet> have_;       // per block: columns that are current
  std::vector<uint64_t> fingerprint_;  // per block, set when have_ becomes non-zero
  std::vector<uint64_t> last_rows_;    // likewise
  std::vector<Line> columns_[static_cast<size_t>(Column::kCount)];
  ClusterIndex clusters_;
  GateIndex gates_;
  int next_check_ = 0;
  uint64_t rebuilds_ = 0;
};

}  // namespace condense
