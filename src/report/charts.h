// The charts of one run: Vega-Lite specs (assets/*.vl.json) filled with a run's figures, each with
// its description and its data as a table. Draws nothing itself.
#pragma once

#include <string>
#include <vector>

#include "report/run_view.h"

namespace condense::report {

struct Chart {
  std::string id;
  std::string title;
  std::string caption;        // HTML
  std::string description{};  // plain words, for those who do not see the chart
  Json spec;                  // Vega-Lite, its data inlined as datasets
  std::string table{};        // HTML: the same data
};

// Only charts for which the records hold data.
std::vector<Chart> MakeCharts(const RunView& view);

}  // namespace condense::report
