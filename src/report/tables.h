// A run's facts and its two tables. Every figure stands in <data class="FIELD"
// value="RECORDED">TEXT</data>: the class is the record's field, the value its exact figure, the
// text the rounded one.
#pragma once

#include <string>

#include "report/run_view.h"

namespace condense::report {

using Format = std::string (*)(double);

// A figure of a record; a dash where it is not recorded.
std::string FigureHtml(const Json& record, const char* field, Format format);
// T_div or T_sig: null means that no decision within the horizon differed, absent that it is not
// known.
std::string DivergenceHtml(const Json& record, const char* field);
// "from to" under a figure; nothing where one of them is not recorded.
std::string IntervalHtml(const Json& record, const char* low, const char* high, Format format);

// The letter of a sparse row in its colour; empty for dense and control.
std::string KeyHtml(const PolicyRow& row);
// ΔPPL with its interval.
std::string PplChangeHtml(const Json& record);

// Model, text, sizes, machine and versions as a description list.
std::string FactsHtml(const RunView& view);
// Quality by policy and teacher, with n, intervals and the share of KV bytes read.
std::string DecisionsTable(const RunView& view);
// Rows and bytes asked and read, and speed, by policy.
std::string CostTable(const RunView& view);
// The letters of the policies with their colours, for the charts; of a grid one a name.
std::string LegendHtml(const RunView& view);

}  // namespace condense::report
