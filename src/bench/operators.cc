#include "bench/operators.h"

#include "bench/rolling.h"
#include "bench/several_rows.h"

namespace condense {

Result<BenchOutcome> BenchOperator(OperatorBench bench, const BenchOptions& options,
                                   const BenchControl& control) {
  switch (bench) {
    case OperatorBench::kDecode:
    case OperatorBench::kSelect:
      return BenchRolling(bench, options, control);
    case OperatorBench::kVerify:
      return BenchVerify(options, control);
    case OperatorBench::kPrefill:
      return BenchPrefill(options, control);
  }
  return Error{"no such benchmark"};
}

}  // namespace condense
