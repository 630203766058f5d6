// The observer: what a sparse step left out, measured against dense attention over the same rows.
// omitted mass and its identity o_full - o_S = eps (o_D - o_S): arXiv 2602.06317. Where rows U of S
// are read without their values and a value r takes their mass delta, the output is
// o = o_S - delta (o_U - r): output_error is o's, and the identity gains that term on both sides.
// Where a tail with output t takes a share tau of the softmax, o becomes o + tau (t - o), and the
// identity is that of the rows read.
#pragma once

#include <span>

#include "attention/layer_attention.h"

namespace condense {

// Computes dense attention and the attention over the rows left out for every query head of one
// query row, and the logits of all visible rows where `sink` wants them, and reports to it. Sinks
// of the softmax take part in the omitted mass's normaliser, not in the outputs compared.
void ObserveStep(const AttentionNode& node, const KvView& view, int stream, int row,
                 std::span<const uint16_t> visible, const Selection& selection, int n_threads,
                 const AttentionSink& sink);

}  // namespace condense
