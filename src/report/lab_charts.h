// The charts of one experiment, each from whatever of its records hold the data, with intervals
// over prefixes or items: score against bytes read, match against perplexity, survival of whole
// runs, recovered mass. Of items by depth, of speed and of cost: lab_cost_charts.h.
#pragma once

#include <vector>

#include "report/chart_parts.h"
#include "report/lab_view.h"

namespace condense::report {

// Where the original found that runs are lost: arXiv 2602.06317 v3.
inline constexpr double kLostMatch = 0.7, kLostPplRatio = 2;

std::vector<Chart> MakeLabCharts(const LabView& lab);

}  // namespace condense::report
