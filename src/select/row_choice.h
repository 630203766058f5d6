// One KV head's choice of rows by their codes, for one query row (TOKEN_CODES; docs/POLICIES.md,
// `condense`): estimated logits of every coded row, exact ones of the rows always read; the rows
// with the most estimated mass over the group get exact logits; of those, the rows with the most
// exact mass are also worth their values.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/code_index.h"
#include "select/policy.h"
#include "select/row_parts.h"

namespace condense {

// How many rows of one KV head a step may read besides those that it reads always.
struct RowBudget {
  int n_keys = 0;    // coded rows whose K is read
  int n_values = 0;  // of those and the loose ones: V too
};

// Working memory of one thread, for the KV head that it chooses for. Grows to the cache's size.
struct RowScratch {
  std::vector<QueryTable> tables;  // [group]
  std::vector<float> bases;        // [group, n_segments]
  std::vector<float> estimates;    // [group, 64 n_segments], then shares of mass
  std::vector<float> sums;         // [group, n_segments]
  std::vector<float> max, share;   // [group]
  std::vector<float> worth;        // [64 n_segments]
  std::vector<uint16_t> chosen;    // [n_blocks] A
  std::vector<int32_t> keys;       // for TopScores
  std::vector<int> best;           // positions, ascending
  // Rows with exact logits: those read always, loose ones, then A.
  std::vector<int32_t> rows;                // [n]
  std::vector<float> logits;                // [group, n rounded up to segments]
  std::vector<float> exact;                 // the same: their exponentials
  std::vector<float> exact_sums;            // [group, segments of 64 of them]
  std::vector<int32_t> blocks;              // of one call
  std::vector<uint16_t> masks;              // their rows
  std::vector<float> block_logits;          // [group, 16 blocks]
  std::vector<const uint16_t*> head_masks;  // [group]
};

// Fills k_mask and v_mask [n_blocks] for KV head `kv_head`; false where a logit or an estimate is
// not finite. The codes of parts.segments are current. budget: n_keys below parts.n_coded or, with
// all of them read, equal.
bool ChooseRows(const LayerQuery& query, const RowParts& parts, int kv_head,
                const RowBudget& budget, RowScratch& scratch, uint16_t* k_mask, uint16_t* v_mask);

}  // namespace condense
