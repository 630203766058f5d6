// Charts of the experiments that decode with some steps dense: acceptance and speed of drafts from
// `exact` lines, the risk seen beside the promised one from `guard` lines.
#pragma once

#include <vector>

#include "report/chart_parts.h"
#include "report/lab_view.h"

namespace condense::report {

// By place in the draft: the share of drafts confirmed as far. Of each source its longest drafts.
void AddDraftPlaces(const LabView& lab, std::vector<Chart>& charts);
// Tokens a second over dense, by length of the draft.
void AddDraftSpeeds(const LabView& lab, std::vector<Chart>& charts);
// By policy and promise: taken tokens that are not dense's, of all decisions, on each text.
void AddGuardRisks(const LabView& lab, std::vector<Chart>& charts);

}  // namespace condense::report
