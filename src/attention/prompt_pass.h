// Attention of a prompt's queries by row, for policies that ask for it (cache/prompt_attention.h):
// a second pass over the keys once each query's largest logit and sum are known. Per KV head it
// costs what the logits of the first pass did, k_dim multiply-adds a query head and visible row,
// and one exponential; values are not read. Nothing is done for steps and where nobody asks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/layer_attention.h"
#include "attention/visibility.h"
#include "cache/prompt_attention.h"

namespace condense {

// A query row of a prompt.
struct PromptRow {
  int stream = 0, row = 0;
  SeenPrompt* record = nullptr;
};

// Takes in a stream's query rows that are no decode steps, their queries among them, and lists
// them. `written`: the rows written for this node, one a query row; where there are others, who
// owns which is not known and nothing is taken in.
void TakePromptRows(const AttentionNode& node, const Visibility& visibility, int stream,
                    std::span<const uint8_t> is_decode, std::span<const int> written,
                    PromptAttention& prompts, std::vector<PromptRow>& rows);

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

// Adds the rows' shares to their records' sums. Each sum takes its queries in ascending order, one
// FP32 multiply-add each: the bits depend on neither threads nor how a prompt is cut into nodes.
void AddColumnSums(const AttentionNode& node, const Visibility& visibility,
                   std::span<const PromptRow> rows, const SoftmaxStates& states, int n_threads);

}  // namespace condense
