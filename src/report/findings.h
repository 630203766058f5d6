// What was found, in plain words and from the records alone: the page's first paragraph.
#pragma once

#include <string>

#include "report/run_view.h"

namespace condense::report {

// HTML of one or more <p>. Says which policy kept most decisions at which bytes, where the first
// differences are, and the noise floor under both; says so where one of these is not known.
std::string FindingsHtml(const RunView& view);

}  // namespace condense::report
