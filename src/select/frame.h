// The frame that every block-scoring policy shares: which rows are always read, which blocks are
// candidates, how many of them a budget buys, how query heads share one choice, and for how long a
// choice stays. The scorer only says what a block is worth to a query. Rules: docs/POLICIES.md; the
// support of anchor, window and r blocks follows arXiv 2602.06317.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "select/key_reader.h"
#include "select/policy.h"
#include "select/scorer.h"
#include "select/tail.h"

namespace condense {

enum class Share : uint8_t { kShared, kKvGroup, kHeadUnion, kRerank, kPerHead };

struct LayerFrame;

struct FrameOptions {
  int anchor = 1, window = 64;  // rows
  // Distant blocks per KV head (per query head for Share::kPerHead), unless byte_share is set.
  int blocks = 8;
  std::optional<double> byte_share;  // (0, 1] of the bytes that dense attention reads
  Share share = Share::kKvGroup;
  int shortlist = 4;  // kRerank: times `blocks`
  int reuse = 1;      // steps a choice stays; 0: until reuse_cos ends it
  std::optional<double> reuse_cos;
  LayerRange dense_layers;
  int least_rows = 0;  // with fewer visible ones every layer reads all
  Tail tail = Tail::kOff;
  std::vector<LayerFrame> by_layer;  // disjoint: what holds there instead
};

struct LayerFrame {
  LayerRange layers;
  FrameOptions options;
};

struct FrameDefaults {
  int anchor = 1, window = 64, blocks = 8;
  std::string share = "kv_group", tail = "off";
};

// The frame's keys, then the policy's own. Budget keys (blocks, tokens, budget, anchor, window) may
// differ by layer; of a layer's own budget and everybody's, the layer's holds.
std::vector<PolicyKey> FrameKeys(const FrameDefaults& defaults = {},
                                 std::vector<PolicyKey> own = {});
FrameOptions ReadFrame(KeyReader& reader);

// For policies without distant blocks: `window`, the anchor under the name `anchor_key`,
// `dense_layers`.
std::vector<PolicyKey> FixedRowsKeys(const std::string& anchor_key, int anchor, int window = 64);
FrameOptions ReadFixedRows(KeyReader& reader, const std::string& anchor_key);

class FramePolicy final : public Policy {
 public:
  // Without a scorer there are no distant blocks (`blocks` must be 0).
  FramePolicy(const FrameOptions& options, std::unique_ptr<const BlockScorer> scorer);

  int least_rows() const override { return options_.least_rows; }

  // Allocates nothing once its buffers have grown to the cache's size. Buffers are per thread.
  void Select(const LayerQuery& query, Selection& selection) const override;

 private:
  const FrameOptions& OptionsFor(int layer) const;

  FrameOptions options_;
  std::unique_ptr<const BlockScorer> scorer_;
};

}  // namespace condense
