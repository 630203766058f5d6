// A policy's budgets stand under each other; a budget that was not run has its reason instead of
// figures.
#include "report/grid.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/html.h"
#include "report/tables.h"

namespace condense::report {
namespace {

constexpr const char* kHead =
    "<thead><tr><th scope=\"col\">Policy</th><th scope=\"col\">Budget</th>"
    "<th scope=\"col\">KV bytes read</th><th scope=\"col\">n</th>"
    "<th scope=\"col\" title=\"share of decisions, Wilson’s 95 % interval\">Same decision</th>"
    "<th scope=\"col\" title=\"mean, 1.96 standard errors\">KL, nats</th>"
    "<th scope=\"col\" title=\"95 % interval from paired differences\">ΔPPL</th>"
    "<th scope=\"col\">Omitted mass</th><th scope=\"col\">T_div</th><th scope=\"col\">T_sig</th>"
    "<th scope=\"col\" title=\"time to choose, of choosing and attending\">Choosing</th>"
    "<th scope=\"col\">Speed, sparse to dense</th></tr></thead>\n";
constexpr int kFigures = 10;  // columns behind policy and budget

std::string BudgetText(std::optional<double> budget) {
  return budget ? fmt::format("{:g} %", 100 * *budget) : kNoFigure;
}

std::string Head(const RunView& view, const std::string& name, int n_rows) {
  std::string swatch;
  for (const PolicyRow& row : view.rows)
    if (row.is_sparse() && row.name == name) swatch = KeyHtml(row) + " ";
  return fmt::format("<th scope=\"rowgroup\"{}>{}{}</th>",
                     n_rows > 1 ? fmt::format(" rowspan=\"{}\"", n_rows) : "", swatch,
                     SpecHtml(name));
}

std::string PlusMinus(const Json& line) {
  const auto error = Number(line, "kl_stderr");
  return error ? fmt::format("<span class=\"interval\">± {}</span>", FormatNumber(1.96 * *error))
               : "";
}

// Steps that ran dense make a row read more than was asked for.
std::string DenseSteps(const Json& line) {
  const auto sparse = Number(line, "sparse_steps");
  double dense = 0;
  if (const auto it = line.find("fallbacks"); it != line.end() && it->is_object())
    for (const auto& [reason, count] : it->items()) dense += count.get<double>();
  if (!sparse || dense == 0) return "";
  return fmt::format("<span class=\"interval\">{} of steps dense</span>",
                     FormatPercent(dense / (dense + *sparse)));
}

std::string Figures(const RunView& view, const PolicyRow& row) {
  const Json* of_teacher = row.Line(view.MainTeacher());
  const Json& line = of_teacher ? *of_teacher : row.Main();
  std::string out;
  for (const std::string& cell : {
           FigureHtml(line, "kv_read_share", FormatPercent) + DenseSteps(line),
           FigureHtml(line, "n_decisions", FormatCount),
           FigureHtml(line, "tf_match", FormatPercent) +
               IntervalHtml(line, "tf_match_low", "tf_match_high", FormatPercent),
           FigureHtml(line, "kl_mean", FormatNumber) + PlusMinus(line),
           PplChangeHtml(line),
           FigureHtml(line, "omitted_mass_mean", FormatPercent),
           DivergenceHtml(row.Main(), "t_div"),
           DivergenceHtml(row.Main(), "t_sig"),
           FigureHtml(row.Main(), "select_share", FormatPercent),
           FigureHtml(row.Main(), "speed_ratio_median", FormatTimes) +
               IntervalHtml(row.Main(), "speed_ratio_low", "speed_ratio_high", FormatTimes),
       })
    out += "<td>" + cell + "</td>";
  return out;
}

// One line of the table, in the order of its budget.
struct GridLine {
  std::optional<double> budget;
  std::string html;  // from the budget's cell on
};

std::vector<GridLine> LinesOf(const RunView& view, const std::string& name) {
  std::vector<GridLine> lines;
  for (const PolicyRow& row : view.rows) {
    if (row.name != name) continue;
    const bool own_spec = !row.budget && row.is_sparse();
    lines.push_back(
        {row.budget, fmt::format("<td class=\"word\">{}</td>{}",
                                 own_spec ? SpecHtml(row.policy) : BudgetText(row.budget),
                                 Figures(view, row))});
  }
  for (const Json& cell : view.records->cells) {
    if (Text(cell, "name") != name || Text(cell, "state") != "unmet") continue;
    const auto budget = Number(cell, "budget");
    lines.push_back(
        {budget, fmt::format("<td class=\"word\">{}</td><td class=\"unmet\" "
                             "colspan=\"{}\">not run: {}</td>",
                             BudgetText(budget), kFigures, EscapeHtml(Text(cell, "reason")))});
  }
  std::stable_sort(lines.begin(), lines.end(), [](const GridLine& a, const GridLine& b) {
    return a.budget.value_or(2) < b.budget.value_or(2);
  });
  return lines;
}

// dense, control, then by name.
std::vector<std::string> Names(const RunView& view) {
  std::vector<std::string> names;
  for (const PolicyRow& row : view.rows) names.push_back(row.name);
  for (const Json& cell : view.records->cells)
    if (Text(cell, "state") == "unmet") names.push_back(Text(cell, "name"));
  const auto rank = [](const std::string& name) {
    return name == "dense" ? 0 : name == "control" ? 1 : 2;
  };
  std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return std::pair(rank(a), a) < std::pair(rank(b), b);
  });
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

std::string GridTable(const RunView& view) {
  std::string out = fmt::format(
      "<table class=\"grid\"><caption><span>Every policy at every budget, fed {}. “KV bytes read” "
      "is counted, summaries included; one text, so n counts decisions.</span></caption>\n{}",
      view.MainTeacher() == "text" ? "the file’s own next tokens" : "dense’s own tokens", kHead);
  for (const std::string& name : Names(view)) {
    const std::vector<GridLine> lines = LinesOf(view, name);
    out += fmt::format("<tbody{}>\n",
                       name == "dense" || name == "control" ? " class=\"reference\"" : "");
    for (size_t i = 0; i < lines.size(); ++i) {
      out += fmt::format("<tr data-cell=\"{}\">", EscapeHtml(name));
      if (i == 0) out += Head(view, name, static_cast<int>(lines.size()));
      out += lines[i].html + "</tr>\n";
    }
    out += "</tbody>\n";
  }
  return out + "</table>\n";
}

std::string LeftOutHtml(const RunView& view) {
  std::vector<std::string> notes;
  for (const Json& cell : view.records->cells)
    if (Text(cell, "state") == "left_out")
      notes.push_back(fmt::format("{} was left out: {}", SpecHtml(Text(cell, "policy")),
                                  EscapeHtml(Text(cell, "reason"))));
  return NotesList("Left out", notes);
}

}  // namespace condense::report
