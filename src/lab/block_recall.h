// Attention mass that blocks of any size hold, computed from a layer's logits: base, the truly
// heaviest blocks, and blocks by their mean key (arXiv 2602.06317 v3, table 3). The plug-in's
// blocks are 16 rows; this is how larger ones are measured. Rules are those of the policies' frame
// (docs/POLICIES.md): one choice a KV group. Pure.
#pragma once

#include <span>
#include <vector>

#include "lab/mass_probe.h"

namespace condense {

struct BlockFrame {
  int anchor = 1, window = 64;  // rows that are always read
  int block_rows = 16;
  int n_blocks = 2;  // distant blocks a KV head
};

// `logits`: by query head, [n_visible or more] of the rows of one sequence in order, as the softmax
// takes them. A block's score is the mean of its rows' logits over the group: scale · q̄·µ of the
// group's mean query and the block's mean key, exactly where the model has no logit soft-cap and in
// double where the plug-in keeps means as f16.
LayerMass MassOfBlocks(int layer, std::span<const std::vector<float>> logits, int n_kv_heads,
                       int n_visible, const BlockFrame& frame);

}  // namespace condense
