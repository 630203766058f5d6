// The tail: blocks that a choice leaves out take part in the softmax as one pseudo-row each, with
// logit log n_b + scale q·µ_b and the block's mean value, n_b the rows of it that are not read. So
// the omitted mass is estimated, not dropped. exp is convex: the estimate is low; Tail::kVar adds
// half the variance of the block's logits (select/block_mass.h).
#pragma once

#include <cstdint>
#include <span>

#include "select/policy.h"

namespace condense {

enum class Tail : uint8_t { kOff, kOn, kVar };

// Summaries that a tail reads.
SummarySet TailNeeds(Tail tail);
// Their bytes for one block and KV head that is left out, where `read` have been read to choose.
size_t TailBytes(Tail tail, SummarySet read, const KvView& kv);

// Fills selection.tail for what the selection leaves out of the blocks `whole` ([n_blocks], 0xFFFF
// for the blocks that a choice was made of, at least one) and counts the bytes. False where a logit
// is not a number or infinite. Bits do not depend on the number of threads.
bool AddTail(const LayerQuery& query, Tail tail, std::span<const uint16_t> whole, SummarySet read,
             Selection& selection);

}  // namespace condense
