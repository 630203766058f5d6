// One-row steps of a node: which query rows are decode steps of their sequence, and what a step
// reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/layer_attention.h"
#include "attention/visibility.h"

namespace condense {

// Query rows of a tile: 32 rows of a group of 3 fill the registers and keep scores in L2.
inline constexpr int kTileQueries = 96;

// is_decode[r] = 1 where query row r of stream `stream` is a decode step: exactly one of the rows
// just written
// (`written`) is visible to it, its own, and that row to no other query row. Several rows of one
// sequence see each other's: prefill or verification. A lone query row always is one. is_decode:
// [n_rows].
void FindDecodeRows(const AttentionNode& node, const Visibility& visibility, int stream,
                    std::span<const int> written, std::vector<uint8_t>& is_decode);

// Notes the queries of a stream's rows that are no decode steps: its prompt's. Whatever the policy
// in force: another may decode what follows. 240 rows of 9 heads take some 30 microseconds;
// with_products, ten times as long. rows: scratch.
void NotePromptQueries(const AttentionNode& node, int stream, const std::vector<uint8_t>& is_decode,
                       bool with_products, std::vector<int>& rows, CodeIndex& codes);

// Query head `head` of a stream's query row, [k_dim].
void CopyQuery(const AttentionNode& node, int stream, int row, int head, float* to);

// A decode step: query row `row` of stream `stream`. Borrowed for the call.
struct DecodeStep {
  const AttentionNode& node;
  const KvView& view;  // of the stream
  int stream, row;
  std::span<const uint16_t> visible;  // [BlocksFor(view.n_rows)]
  int n_visible;
  bool has_bias;  // of the mask
  int n_threads;
};
// What it reads. `cache`: the stream's; its sequence is found, and summaries and codes that the
// stored rows contradict are forgotten. query: scratch.
void SelectStep(const DecodeStep& step, const Policy& policy, StreamCache& cache,
                std::vector<float>& query, Selection& selection);

// Rows and bytes of a step: a row counts once a KV head, whichever query heads of the group read
// it.
StepCount CountStep(const AttentionNode& node, const Policy& policy, const Selection& selection,
                    size_t n_blocks, int n_visible);

}  // namespace condense
