// Specs come from assets/, figures from records; nothing here knows what a chart is of.
#include "report/chart_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "report/assets.h"
#include "report/html.h"

namespace condense::report {

std::string TableHtml(const std::string& caption, const std::vector<Column>& columns,
                      const Json& rows) {
  std::string out =
      fmt::format("<table><caption><span>{}</span></caption><thead><tr>", EscapeHtml(caption));
  for (const Column& column : columns) out += fmt::format("<th scope=\"col\">{}</th>", column.head);
  out += "</tr></thead><tbody>\n";
  for (const Json& row : rows) {
    out += "<tr>";
    for (const Column& column : columns) {
      const auto it = row.find(column.field);
      if (it == row.end() || it->is_null()) {
        out += fmt::format("<td>{}</td>", kNoFigure);
      } else if (it->is_string()) {
        out += fmt::format("<td class=\"word\">{}</td>", EscapeHtml(it->get<std::string>()));
      } else {
        out += fmt::format("<td>{}</td>", column.format(it->get<double>()));
      }
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table>\n";
}

Json Spec(const char* name) {
  Json spec =
      Json::parse(Asset(name), nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/true);
  CONDENSE_CHECK(!spec.is_discarded());
  return spec;
}

Json OrNull(std::optional<double> value) { return value ? Json(*value) : Json(nullptr); }

Json Point(const PolicyRow& row) {
  return {{"key", row.key}, {"policy", row.policy}, {"label", row.Label()}, {"colour", row.colour}};
}

Json Rule(const std::string& label, double value) { return {{"label", label}, {"value", value}}; }

Json ControlRules(const RunView& view, const char* field, std::string (*format)(double)) {
  Json rules = Json::array();
  std::string label;
  const PolicyRow* control = view.Row("control");
  if (!control) return rules;
  for (const Json* line : control->lines) {
    const auto value = Number(*line, field);
    if (!value) continue;
    label += fmt::format("{}{}", label.empty() ? "control: " : ", ", format(*value));
    if (control->lines.size() > 1) label += fmt::format(" {}", Text(*line, "teacher"));
    rules.push_back(Rule("", *value));
  }
  const auto lowest =
      std::min_element(rules.begin(), rules.end(),
                       [](const Json& a, const Json& b) { return a["value"] < b["value"]; });
  if (lowest != rules.end()) (*lowest)["label"] = label;
  return rules;
}

void SetData(Json& spec, Json::object_t datasets) {
  if (spec.contains("layer"))
    std::erase_if(spec["layer"].get_ref<Json::array_t&>(), [&](const Json& layer) {
      return layer.contains("data") && datasets.at(layer["data"]["name"]).empty();
    });
  spec["datasets"] = std::move(datasets);
}

void SetAxis(Json& spec, const char* channel, const Json& scale, const Json& axis) {
  for (Json& layer : spec["layer"]) {
    if (layer.contains("layer")) SetAxis(layer, channel, scale, axis);
    if (!layer.contains("encoding") || !layer["encoding"].contains(channel)) continue;
    Json& encoded = layer["encoding"][channel];
    if (!encoded.contains("field")) continue;
    encoded["scale"] = scale;
    encoded["axis"] = axis;
  }
}

Json LogAxis(const char* title, const char* format) {
  return {{"title", title},
          {"format", format},
          {"tickCount", 5},
          {"gridOpacity",
           {{"condition",
             {{"test", "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 1e-6"},
              {"value", 1}}},
            {"value", 0}}}};
}

void SetLogAxis(Json& spec, const char* channel, double low, double high, const char* title,
                const char* format) {
  SetAxis(spec, channel, {{"type", "log"}, {"nice", false}, {"domain", {low, high}}},
          LogAxis(title, format));
}

void SetHeight(Json& spec, const Json& points, const char* field, int step) {
  std::set<Json> values;
  for (const Json& point : points) values.insert(point[field]);
  spec["height"] = step * values.size();
}

void Describe(std::vector<Chart>& charts, const RunView& view) {
  for (Chart& chart : charts) {
    chart.description = fmt::format("{}, {}. The figures are in the table below the chart.",
                                    chart.title, CountRows(view, view.SparseRows().size()));
    if (chart.panels.empty()) chart.spec["description"] = chart.description;
  }
}

std::string Scrolled(const std::string& table, const std::string& label) {
  return fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">{}</div>\n",
      EscapeHtml(label), table);
}

std::string ChartHtml(Chart chart, Json& specs) {
  std::string plots;
  if (chart.panels.empty()) {
    plots = fmt::format("<div class=\"chart\" id=\"{}\"></div>\n", chart.id);
    specs.push_back({{"id", chart.id}, {"spec", std::move(chart.spec)}});
  } else {
    plots = "<div class=\"panels\">\n";
    for (size_t i = 0; i < chart.panels.size(); ++i) {
      const std::string id = fmt::format("{}-{}", chart.id, i + 1);
      plots += fmt::format(
          "<div class=\"panel\"><h4>{}</h4><div class=\"chart\" id=\"{}\"></div></div>\n",
          chart.panels[i].title, id);
      specs.push_back({{"id", id}, {"spec", std::move(chart.panels[i].spec)}});
    }
    plots += "</div>\n";
  }
  return fmt::format(
      "<figure{0}><h3>{1}</h3>\n{2}<figcaption>{3}</figcaption>\n"
      "<details><summary>The data of this chart as a table</summary>{4}</details></figure>\n",
      chart.panels.empty() ? "" : " class=\"wide\"", EscapeHtml(chart.title), plots, chart.caption,
      Scrolled(chart.table, chart.title + ", data"));
}

void SetOptions(Json& spec, const char* name, const char* field, const Json& points) {
  Json options = Json::array();
  for (const Json& point : points)
    if (std::find(options.begin(), options.end(), point[field]) == options.end())
      options.push_back(point[field]);
  for (Json& param : spec["params"]) {
    if (param["name"] != name) continue;
    param["value"] = options.front();
    param["bind"]["options"] = std::move(options);
    return;
  }
}

}  // namespace condense::report
