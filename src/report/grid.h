// The table of a comparison of many policies at the same budgets: a line a cell, by policy and
// budget, with n and intervals; and what was not run, with the reason.
#pragma once

#include <string>

#include "report/run_view.h"

namespace condense::report {

// HTML of a <table>. Quality is under the view's main teacher.
std::string GridTable(const RunView& view);

// HTML of a <ul> of the policies that were left out; empty where there is none.
std::string LeftOutHtml(const RunView& view);

}  // namespace condense::report
