// Charts of one experiment: what was found by context and depth, how fast a policy decodes at each
// depth, and where the time goes.
#pragma once

#include <vector>

#include "report/chart_parts.h"
#include "report/lab_view.h"

namespace condense::report {

// A panel for each policy, context × depth.
void AddHeatMaps(const LabView& lab, std::vector<Chart>& charts);
// Tokens a second against depth, with where a policy is faster than dense.
void AddSpeedByDepth(const LabView& lab, std::vector<Chart>& charts);
// Attention mass by layer that is always read, that the policy's blocks and the heaviest add.
void AddLayerMass(const LabView& lab, std::vector<Chart>& charts);
// Shares of choosing, gathering, attending and upkeep, as far as they are recorded.
void AddCostSplit(const LabView& lab, std::vector<Chart>& charts);

// The colours of the policies by label, as in the legend above the charts; a legend of the chart's
// own where the policies are few. `leave_out`: the row that the chart does not draw.
void SetLabels(Json& spec, const RunView& view, const std::string& leave_out);

}  // namespace condense::report
