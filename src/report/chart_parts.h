// What charts are put together from: specs, datasets, options, the data as a table.
#pragma once

#include <string>
#include <vector>

#include "report/run_view.h"

namespace condense::report {

// One of several small charts of the same axes side by side.
struct Panel {
  std::string title;  // HTML
  Json spec;
};

struct Chart {
  std::string id;
  std::string title;
  std::string caption;          // HTML
  std::string description{};    // plain words, for those who do not see the chart
  Json spec{};                  // Vega-Lite, its data inlined as datasets
  std::vector<Panel> panels{};  // in place of one spec
  std::string table{};          // HTML: the same data
};

// One column of a chart's table: head, field of its data, how it is written.
struct Column {
  const char* head;
  const char* field;
  std::string (*format)(double);
};

std::string TableHtml(const std::string& caption, const std::vector<Column>& columns,
                      const Json& rows);

// The asset NAME.vl.json.
Json Spec(const char* name);

Json OrNull(std::optional<double> value);

// What every chart says of a row.
Json Point(const PolicyRow& row);

// A line across the chart for what is no point in it: the dense ceiling or the control.
Json Rule(const std::string& label, double value);

// The control's values of `field`, one rule per teacher; the lowest bears one label for all.
Json ControlRules(const RunView& view, const char* field, std::string (*format)(double));

// Puts the data under their names; a layer without data goes, since its scales would have no
// extent.
void SetData(Json& spec, Json::object_t datasets);

// The same scale and axis in every layer, nested ones too, that has this channel in a field.
void SetAxis(Json& spec, const char* channel, const Json& scale, const Json& axis);
// A logarithmic axis with lines at powers of ten alone.
Json LogAxis(const char* title, const char* format);
void SetLogAxis(Json& spec, const char* channel, double low, double high, const char* title,
                const char* format);

// So many pixels for each value of `field`.
void SetHeight(Json& spec, const Json& points, const char* field, int step);

// Says in plain words what each chart is of, to those who do not see it; panels say it themselves.
void Describe(std::vector<Chart>& charts, const RunView& view);

// The chart as a figure with its data as a table below; its specs go to the end of `specs`, each
// under the id of its place.
std::string ChartHtml(Chart chart, Json& specs);
// A wide table scrolls by itself, by keyboard too.
std::string Scrolled(const std::string& table, const std::string& label);

// Offers the values of `field` that the points hold as the options of parameter `name`.
void SetOptions(Json& spec, const char* name, const char* field, const Json& points);

}  // namespace condense::report
