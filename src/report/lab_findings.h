// What an experiment found, in plain words: from its records alone, with n and intervals, the
// control beside the policies.
#pragma once

#include <string>

#include "report/lab_view.h"

namespace condense::report {

// What each run under `teacher` kept and lost.
struct RunsLost {
  int n = 0;            // runs of sparse policies with both figures
  int n_match = 0;      // below kLostMatch
  int n_both = 0;       // and above kLostPplRatio
  int n_ppl_alone = 0;  // above kLostPplRatio alone
};
RunsLost CountLost(const LabView& lab, const std::string& teacher);

// Paragraphs. Says so where nothing is finished.
std::string LabFindingsHtml(const LabView& lab);

}  // namespace condense::report
