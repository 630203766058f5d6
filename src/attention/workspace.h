// Working memory of ComputeAttention, kept by the calling thread: a warm call allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/prompt_pass.h"
#include "attention/visibility.h"
#include "select/selection.h"

namespace condense {

// A query row that is a decode step of its sequence.
struct SingleRow {
  int stream, row;
};

// Rows of one stream that share their pass over K and V.
struct RowTile {
  int stream = 0;
  int row_begin = 0, row_end = 0;
  const Selection* selection = nullptr;  // null: everything visible is read
  bool reverse = false;                  // chunks, and rows within them, in descending order

  int n_rows() const { return row_end - row_begin; }
};

// What one thread does at a time: a tile's queries of one KV head over some blocks.
struct WorkUnit {
  int tile, kv_head;
  int begin, n_blocks;  // blocks of the cache, or entries of the head's list
};

// What a sparse row reads of one KV head, as a list of what the kernel takes 16 lanes at a time:
// blocks of the cache, or, where its rows lie scattered, the rows themselves.
struct BlockChoice {
  int n_blocks = 0;             // entries of the list
  std::vector<int32_t> blocks;  // [n_blocks], or none
  // Or [16 n_blocks]: ascending, the last one repeated to the end; of a policy that knows their
  // logits, in its order.
  std::vector<int32_t> rows;
  // Per query head of the group, or (one_mask) once for all: [n_masks][n_blocks].
  std::vector<uint16_t> k_masks, v_masks;
  bool one_mask = true;
  // The rows' logits, of the selection: [group][logits_stride]. Null: not known.
  const float* logits = nullptr;
  size_t logits_stride = 0;

  // Of KV head `kv_head`, whose query heads are `group`. The form depends on the selection alone.
  void List(const Selection& selection, int kv_head, int group);

  const uint16_t* KMask(int head) const { return Mask(k_masks, head); }
  const uint16_t* VMask(int head) const { return Mask(v_masks, head); }

 private:
  const uint16_t* Mask(const std::vector<uint16_t>& masks, int head) const {
    return masks.data() + (one_mask ? 0 : static_cast<size_t>(head) * n_blocks);
  }
  void TakeRows(const Selection& selection, int kv_head);
  void ListRows(const Selection& selection, int first_set, int n_sets, int n_rows);

  std::vector<uint16_t> any_;  // scratch; [blocks.size()]: rows that some query head reads
};

struct Workspace {
  Visibility visibility;
  std::vector<uint8_t> is_single;  // [n_rows]
  std::vector<int> prompt_rows;    // of one stream
  CallWork calls;                  // rows whose attention is wanted
  std::vector<SingleRow> singles;
  std::vector<Selection> selections;  // at least one a single
  std::vector<RowTile> tiles;
  std::vector<float> query;          // [n_query_heads, k_dim]
  std::vector<BlockChoice> choices;  // at least [n_tiles, n_kv_heads], of sparse tiles
  std::vector<WorkUnit> units;
  // Per (tile, KV head): its units are first_unit + i * unit_step for i < n_units, in the order in
  // which their states are merged.
  struct UnitRun {
    int first_unit, step, n_units;
  };
  std::vector<UnitRun> runs;
  std::vector<float> partials;  // [n_units][queries of the largest tile, v_dim + 3]
};

// One thread's arguments for a call of the kernel.
struct QueryScratch {
  std::vector<float> q, o, max, sum, sum_v;
  std::vector<const uint16_t*> masks, v_masks, bias;

  void Resize(int n_queries, int k_dim, int v_dim) {
    q.resize(static_cast<size_t>(n_queries) * k_dim);
    o.resize(static_cast<size_t>(n_queries) * v_dim);
    max.resize(n_queries);
    sum.resize(n_queries);
    sum_v.resize(n_queries);
    masks.resize(n_queries);
    v_masks.resize(n_queries);
    bias.resize(n_queries);
  }
};

}  // namespace condense
