// Block scorers: a score for every block, for one query. Sharing across heads, budget and reuse are
// the frame's business (select/frame.h).
#pragma once

#include <span>

#include "select/policy.h"

namespace condense {

// How scores of several heads combine (POLICIES.md, sharing).
enum class ScoreKind : uint8_t {
  kLinear,  // linear in the query: score the mean query
  kBound,   // an upper bound: maximum over heads
  kMass,    // a log-mass per block: sum over heads of each head's softmax over the candidate blocks
};

struct ScoreQuery {
  const LayerQuery* layer = nullptr;
  const float* q = nullptr;  // [k_dim]: one query head's, or a mean over several
  int kv_head = 0;
  int query_head = -1;  // -1: a mean over several heads
  // Per block: the visible rows that choosing it adds, that is, those not read always. Zero for
  // blocks that are no candidates. [layer->visible.size()]
  std::span<const uint16_t> rows;
  int first_block = 0;  // the block of per_block[0], a multiple of kTileBlocks
};

class BlockScorer {
 public:
  virtual ~BlockScorer() = default;
  virtual ScoreKind kind() const = 0;
  // Summaries that Score reads: current for wholly visible blocks when Score is called.
  virtual SummarySet needs() const { return 0; }
  // True where Score reads every visible K row itself (oracles): counted as bytes read to choose,
  // but not against a byte budget, which then buys rows alone.
  virtual bool reads_keys() const { return false; }
  // True where it reads every visible V row besides.
  virtual bool reads_values() const { return false; }
  // kMass: scores are logarithms of shares already (of all visible rows, say), so no softmax is
  // taken.
  virtual bool normalised() const { return false; }
  // True where a block's score depends on nothing but the block: then several threads score runs
  // of blocks of one query, and first_block may be any tile's. Else it is 0.
  virtual bool by_block() const { return false; }
  // per_block: whole tiles of 16 blocks from first_block on; over all calls for one query, the last
  // candidate is included. Blocks that are no candidates may get any value.
  virtual void Score(const ScoreQuery& query, std::span<float> per_block) const = 0;
};

}  // namespace condense
