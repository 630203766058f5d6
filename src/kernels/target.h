// Which instruction set the kernels run on: chosen at run time among those compiled in and
// supported.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace condense {

// Names, best first, as Highway spells them: "AVX3", "AVX2", "SSE4", "EMU128", "NEON", …
std::vector<std::string> AvailableTargets();
// The one in use.
std::string CurrentTarget();
// Forces one by name (tests, benchmarks, comparison); "" gives the choice back to the machine.
// Unknown or unsupported names are errors that list the available ones.
Status ForceTarget(const std::string& name);

}  // namespace condense
