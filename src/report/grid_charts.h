// Charts of many policies at the same budgets: Pareto fronts of quality against bytes read, how
// long decisions go on like dense's, recovered mass by layer and head, and which rows were read
// over time.
#pragma once

#include <vector>

#include "report/chart_parts.h"

namespace condense::report {

void AddGridCharts(const RunView& view, std::vector<Chart>& charts);

}  // namespace condense::report
