// Attention of a prompt's queries by row, and of the last queries of each call of several rows, for
// policies that ask for it (cache/prompt_attention.h, cache/call_attention.h): a second pass over
// the keys once each query's largest logit and sum are known. Per KV head it costs what the logits
// of the first pass did, k_dim multiply-adds a query head and visible row, and one exponential;
// values are not read. Nothing is done for steps and where nobody asks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/layer_attention.h"
#include "attention/visibility.h"
#include "cache/call_attention.h"
#include "cache/prompt_attention.h"

namespace condense {

// What the softmax of each query row and head came to before sinks: max and sum of exp(logit -
// max). [n_streams, n_rows, n_query_heads]
struct SoftmaxStates {
  std::vector<float> max, sum;

  static size_t Index(const AttentionNode& node, int stream, int row, int head) {
    return (static_cast<size_t>(stream) * node.n_rows + row) * node.n_query_heads + head;
  }
  void Resize(const AttentionNode& node) {
    max.resize(Index(node, node.n_streams, 0, 0));
    sum.resize(max.size());
  }
};

// Query rows of a node whose shares are wanted, and of what they are a part.
struct SharedRows {
  int stream = 0;
  std::vector<int> rows;         // of one sequence, ascending
  SeenPrompt* prompt = nullptr;  // one of these
  SeenCall* call = nullptr;
};

// Of one node.
struct CallWork {
  std::vector<SharedRows> shared;       // of all streams
  SoftmaxStates states;                 // to be set where there are any
  std::vector<std::vector<int>> calls;  // scratch

  bool any() const { return !shared.empty(); }
};

// Takes in what the node's wants say of a stream's query rows: those of several rows of one
// sequence as pieces of prompts, but for verifications, queries among them, and as calls, their
// last kMostVerifiedRows queries. Decode steps are noted. It looks at the rows written for this
// node, one a query row: where there are others, who owns which is not known and nothing is taken
// in.
void TakeCalls(const AttentionNode& node, const Visibility& visibility, int stream,
               std::span<const uint8_t> is_decode, StreamCache& cache, CallWork& work);

// Adds the rows' shares to their records' sums: per query head a prompt's, per KV head a call's.
// Each sum takes its queries in ascending order, the heads of a row too, one FP32 multiply-add
// each: the bits depend on neither threads nor how a prompt is cut into nodes.
void AddShares(const AttentionNode& node, const Visibility& visibility, const CallWork& work,
               int n_threads);

}  // namespace condense
