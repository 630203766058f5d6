// What an experiment found, in plain words: from its records alone, with n and intervals, the
// control beside the policies.
#pragma once

#include <string>

#include "report/lab_view.h"

namespace condense::report {

// Paragraphs. Says so where nothing is finished.
std::string LabFindingsHtml(const LabView& lab);

}  // namespace condense::report
