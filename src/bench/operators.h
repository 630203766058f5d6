// `condense bench decode|select|verify|prefill|single`: the whole attention operator as the plug-in
// runs it, on made caches, beside ggml's own and the machine's yardstick.
//
// decode, select: a rolling loop; each step appends a row to every layer and attends, dense and
// each policy in turns over the same memory. verify: several query rows at once against one by one.
// prefill: the last rows of a causal cache at once. single: decode at 131K rows of two published
// shapes (arXiv 2602.06317, table 6).
//
// Rows come from memory: before each timing a pass over the yardstick's buffer takes them out of
// the caches. With layers named that fit the last-level cache they come from there.
#pragma once

#include "bench/options.h"

namespace condense {

enum class OperatorBench { kDecode, kSelect, kVerify, kPrefill };

// What is wrong with the options, before any work: shapes, policies, rows, memory.
Status CheckOptions(OperatorBench bench, const BenchOptions& options);
Result<BenchOutcome> BenchOperator(OperatorBench bench, const BenchOptions& options,
                                   const BenchControl& control);

// Memory of the larger of the two shapes.
Status CheckSingle(const BenchOptions& options);
Result<BenchOutcome> BenchSingle(const BenchOptions& options, const BenchControl& control);

}  // namespace condense
