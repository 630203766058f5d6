// A run's facts and its two tables. Every figure stands in <data class="FIELD"
// value="RECORDED">TEXT</data>: the class is the record's field, the value its exact figure, the
// text the rounded one.
#pragma once

#include <string>

#include "report/run_view.h"

namespace condense::report {

// Model, text, sizes, machine and versions as a description list.
std::string FactsHtml(const RunView& view);
// Quality by policy and teacher, with n, intervals and the share of KV bytes read.
std::string DecisionsTable(const RunView& view);
// Rows and bytes asked and read, and speed, by policy.
std::string CostTable(const RunView& view);
// The letters of the policies with their colours, for the charts.
std::string LegendHtml(const RunView& view);

}  // namespace condense::report
