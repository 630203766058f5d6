// What `exact` and `guard` lines say, in sentences.
#pragma once

#include <string>

#include "report/lab_view.h"

namespace condense::report {

// Whether texts from drafts are dense's, and the fastest draft of each kind of text; "" without
// such lines.
std::string DraftsSaid(const LabView& lab);
// How many guards kept what they promised on texts that they were not calibrated on; likewise.
std::string GuardsSaid(const LabView& lab);

}  // namespace condense::report
