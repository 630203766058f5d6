// verify and prefill: several query rows of one sequence in one call.
#pragma once

#include "bench/operators.h"

namespace condense {

Result<BenchOutcome> BenchVerify(const BenchOptions& options, const BenchControl& control);
Result<BenchOutcome> BenchPrefill(const BenchOptions& options, const BenchControl& control);

}  // namespace condense
