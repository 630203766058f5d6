// The policy seam. A policy decides what a decoding query row reads in one layer. Most policies are
// block scorers inside the common frame (anchor, window, budget, sharing, reuse: select/frame.h);
// what is no block scorer derives from Policy itself. A policy is one file in select/policies/ and
// registers itself.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/block_index.h"
#include "cache/call_attention.h"
#include "cache/code_index.h"
#include "cache/kv_view.h"
#include "cache/prompt_attention.h"
#include "cache/row_copies.h"
#include "select/evictions.h"
#include "select/selection.h"

namespace condense {

// What a policy remembers of one sequence in one layer between steps. Keyed by the number of
// visible rows, so that rolling rows back and appending again finds the same state as never having
// appended.
struct SequenceMemory {
  struct Choice {
    int n_visible = 0;              // rows visible when it was chosen
    int n_blocks = 0;               // blocks of each set of k_masks
    std::vector<uint16_t> k_masks;  // distant blocks chosen, whole, sets as in Selection
    std::vector<float> query;       // [n_query_heads, k_dim]: the query then (reuse_cos)
  };
  int first_sparse = -1;        // n_visible at the first sparse decision
  std::vector<Choice> choices;  // ascending n_visible; the newest few are kept
  std::vector<std::byte> own;   // for policies with a state of their own
  // For policies that read V of fewer rows than K: the sum of the values of closed segments.
  struct ValueSum {
    int n_segments = 0;
    uint64_t key = 0;        // of the segments, their order and their contents
    std::vector<float> sum;  // [n_kv_heads, v_dim]: of the values that the sequence sees of them
  } values;
  // Of policies that rank rows: what the last one chosen was worth a step ago, by KV head.
  std::vector<float> least_worth;
  QueryMoment queries;  // of its decode steps, where no prompt was seen
  Evictions evictions;  // of policies whose rows never return
};

// One query row of one layer. Everything is borrowed for the call.
struct LayerQuery {
  int layer = 0;
  const KvView* kv = nullptr;
  BlockIndex* index = nullptr;
  CodeIndex* codes = nullptr;
  RowCopies* copies = nullptr;
  PromptAttention* prompts = nullptr;  // null: no prompt is known
  CallAttention* calls = nullptr;      // null: no call of several rows is known
  std::span<const uint16_t> visible;   // [BlocksFor(kv->n_rows)] row bits
  int n_visible = 0;
  int newest_row = -1;       // the row just written: always read; -1: the highest visible one
  const float* q = nullptr;  // [n_query_heads, k_dim], post-RoPE, contiguous
  int n_query_heads = 0;  // multiple of kv->n_kv_heads; query head h belongs to KV head h / group
  float scale = 1.0f, softcap = 0.0f;
  SequenceMemory* memory = nullptr;
  int n_threads = 1;  // of the host's OpenMP team; the choice does not depend on it

  int group() const { return n_query_heads / kv->n_kv_heads; }
};

class Policy {
 public:
  virtual ~Policy() = default;

  // True for policies that read everything (`dense`): nothing is ever asked of them.
  virtual bool is_dense() const { return false; }
  // Dense attention sums V in descending order (the noise-floor control).
  virtual bool reverse_order() const { return false; }
  // Wants products of the prompt's queries (QueryMoment), which cost memory and time.
  virtual bool wants_query_products() const { return false; }
  // What it wants kept of prompts' attention, which costs memory and time.
  virtual PromptWants prompt_wants() const { return {}; }
  // A row that a step leaves out is left out by every later one: a promise that the conformance
  // tests hold it to.
  virtual bool evicts() const { return false; }
  // With fewer visible rows everything is read, whatever the budget.
  virtual int least_rows() const { return 0; }

  // Chooses. Deterministic: equal input gives an equal selection. The selection lies inside
  // `visible`, holds the newest visible row, and is dense where nothing could be left out. Ties:
  // higher score, then lower index; a NaN score makes the step dense (Fallback::kNan).
  virtual void Select(const LayerQuery& query, Selection& selection) const = 0;
};

}  // namespace condense
