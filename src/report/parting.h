// Where tokens part: per policy the dense and the sparse autonomous text side by side, the first
// difference marked.
#pragma once

#include <string>

#include "report/run_view.h"

namespace condense::report {

// HTML of one <article> per row but dense.
std::string PartingHtml(const RunView& view);

}  // namespace condense::report
