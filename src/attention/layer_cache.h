// What Condense keeps beside one layer's KV cache: per stream, the block index, the codes of its
// rows, the rows that were written since the last attention node, and what the policy remembers of
// each sequence.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "base/row_mask.h"
#include "cache/block_index.h"
#include "cache/call_attention.h"
#include "cache/code_index.h"
#include "cache/prompt_attention.h"
#include "cache/row_copies.h"
#include "select/policy.h"

namespace condense {

// A sequence is known by the rows it saw at its last step: the next step sees them all and one
// more. Rows that are written again later are taken out of `visible`.
struct SequenceState {
  SequenceMemory memory;
  RowMask visible;
  int n_visible = 0;  // rows in `visible`
  RowMask written;    // rows written since its last step
  uint64_t last_used = 0;
};

struct StreamCache {
  BlockIndex index;
  CodeIndex codes;
  RowCopies copies;
  PromptAttention prompts;
  CallAttention calls;
  std::vector<int> written;  // rows written since the last attention node, in order
  bool writes_seen = false;  // this cache's writes come to us; without them nothing can be trusted
  std::list<SequenceState> sequences;
  uint64_t clock = 0;

  void MarkWritten(int row);
  void ForgetChoices();
  // The state of the sequence that sees `visible` now, found or made, with `visible` noted in it.
  // Choices that rolled-back rows took part in are gone. `continued`: the rows of its last step,
  // and otherwise only such as were written since, by however many nodes.
  SequenceState& Sequence(std::span<const uint16_t> visible, int n_visible, bool* continued);
};

struct LayerCache {
  std::vector<StreamCache> streams;

  StreamCache& Stream(int stream);
  void MarkWritten(int stream, int row);
  void Forget();
  bool has_summaries() const;
  uint64_t rebuilds() const;
  // Memory beside the host's cache: codes, centroids, codebooks and
  // copies of rows; everything.
  size_t code_bytes() const;
  size_t bytes() const;
};

}  // namespace condense
