// Charts of many policies at the same budgets: Pareto fronts of quality against bytes read, how
// long decisions go on like dense's, recovered mass by layer and head, and which rows were read
// over time.
#pragma once

#include <string>
#include <vector>

#include "report/chart_parts.h"

namespace condense::report {

// What the heads of a layer left out, in means over decisions.
struct HeadMass {
  std::string label;  // of the row
  Json layer;
  std::vector<double> omitted;  // by query head
};
// Recovered mass by layer and head, a label chosen at a time; lines of a label stand together.
// `id`: of the chart.
void AddHeadMass(const std::string& id, const std::vector<HeadMass>& rows,
                 std::vector<Chart>& charts);

void AddGridCharts(const RunView& view, std::vector<Chart>& charts);

}  // namespace condense::report
