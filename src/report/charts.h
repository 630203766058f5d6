// The charts of one run: Vega-Lite specs (assets/*.vl.json) filled with a run's figures, each with
// its description and its data as a table. Draws nothing itself.
#pragma once

#include <string>
#include <vector>

#include "report/chart_parts.h"

namespace condense::report {

// Only charts for which the records hold data.
std::vector<Chart> MakeCharts(const RunView& view);

}  // namespace condense::report
