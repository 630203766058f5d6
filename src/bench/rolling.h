// The rolling loop under decode, select and single.
#pragma once

#include <map>
#include <string>

#include "bench/operators.h"
#include "bench/record.h"

namespace condense {

// `preset` names the shape in records; `published`: by canonical spec, printed beside.
Result<BenchOutcome> BenchRolling(OperatorBench bench, const BenchOptions& options,
                                  const BenchControl& control, const std::string& preset = "",
                                  const std::map<std::string, Published>& published = {});

}  // namespace condense
