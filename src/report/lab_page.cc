// Links to records are relative to the page, so that a folder with both can be moved.
#include "report/lab_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include "report/html.h"
#include "report/lab_charts.h"
#include "report/lab_findings.h"
#include "report/lab_view.h"
#include "report/tables.h"

namespace condense::report {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLinksInCaption = 3;

// A path as a link may spell it (RFC 3986): bytes that are no unreserved characters as %NN.
std::string LinkTo(const std::string& path) {
  std::string link;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    link += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return link;
}

std::string RecordsLink(const std::string& file, const std::string& out_html) {
  std::error_code error;
  const fs::path from = fs::absolute(out_html).parent_path();
  fs::path path = fs::absolute(file).lexically_relative(from);
  if (path.empty()) path = fs::absolute(file);
  // A first segment with a colon would be read as a scheme.
  const std::string link = (path.is_relative() ? "./" : "") + path.string();
  const fs::path shown = fs::path(file).parent_path().filename() / fs::path(file).filename();
  return fmt::format("<a href=\"{}\"><code>{}</code></a>", LinkTo(link),
                     EscapeHtml(shown.string()));
}

std::string RecordsLinks(const LabRecords& lab, const std::string& out_html) {
  std::string links;
  for (const std::string& file : lab.files)
    links += (links.empty() ? "" : ", ") + RecordsLink(file, out_html);
  return links;
}

const ExperimentNotes* NotesOf(const std::vector<ExperimentNotes>& notes, const std::string& name) {
  const auto it = std::find_if(notes.begin(), notes.end(),
                               [&](const ExperimentNotes& known) { return known.name == name; });
  return it == notes.end() ? nullptr : &*it;
}

std::string Title(const ExperimentNotes* notes, const std::string& name) {
  return EscapeHtml(notes && !notes->title.empty() ? notes->title : name);
}

const char* WordClass(const ReportTable::Column& column) {
  return column.left ? " class=\"word\"" : "";
}

// Its lines, each below the other (the style keeps line ends).
std::string LinesHtml(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (!out.empty()) out += '\n';
    out += EscapeHtml(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string TableOf(const ReportTable& table) {
  std::string out = fmt::format("<table><caption><span>{}</span></caption>\n<thead><tr>",
                                EscapeHtml(table.title));
  for (const ReportTable::Column& column : table.columns)
    out += fmt::format("<th scope=\"col\"{}>{}</th>", WordClass(column), EscapeHtml(column.title));
  out += "</tr></thead>\n<tbody>\n";
  for (const std::vector<std::string>& row : table.rows) {
    CONDENSE_CHECK(row.size() == table.columns.size());
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i)
      out += i == 0 ? fmt::format("<th scope=\"row\">{}</th>", EscapeHtml(row[i]))
                    : fmt::format("<td{}>{}</td>", WordClass(table.columns[i]), EscapeHtml(row[i]));
    out += "</tr>\n";
  }
  out = Scrolled(out + "</tbody></table>\n", table.title);
  return table.notes.empty()
             ? out
             : out + fmt::format("<p class=\"below\">{}</p>\n", LinesHtml(table.notes));
}

// "context 2,048, policy mean:blocks=2"
std::string Where(const Json& at) {
  std::string out;
  if (!at.is_object()) return out;
  for (const auto& [name, value] : at.items())
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", EscapeHtml(name),
                       value.is_string()   ? SpecHtml(value.get<std::string>())
                       : value.is_number() ? FormatNumber(value.get<double>())
                                           : EscapeHtml(value.dump()));
  return out;
}

// Folded away where the experiment's own tables have them beside its figures.
std::string PublishedTable(const LabRecords& lab, bool beside_own) {
  if (lab.published.empty()) return "";
  std::string out =
      "<table class=\"published\"><caption><span>What others published of this, on other models "
      "and "
      "hardware: to stand beside, not to be equalled.</span></caption>\n<thead><tr>"
      "<th scope=\"col\">Figure</th><th scope=\"col\">Of</th><th scope=\"col\">Published</th>"
      "<th scope=\"col\">Model and hardware</th><th "
      "scope=\"col\">Source</th></tr></thead>\n<tbody>\n";
  for (const Json& figure : lab.published)
    out += fmt::format(
        "<tr><th scope=\"row\">{}</th><td class=\"word\">{}</td><td class=\"word\">{}</td><td "
        "class=\"word\">{}</td>"
        "<td class=\"word\">{}</td></tr>\n",
        EscapeHtml(Text(figure, "metric")), Where(figure.value("at", Json())),
        EscapeHtml(Text(figure, "value")), EscapeHtml(Text(figure, "setting")),
        EscapeHtml(Text(figure, "source")));
  out = Scrolled(out + "</tbody></table>\n", "Published figures, table");
  return beside_own ? Folded("Every published figure", out)
                    : "<section><h3>Published beside it</h3>\n" + out + "</section>\n";
}

std::string NotesHtml(const LabRecords& lab) {
  std::vector<std::string> notes;
  const auto n_planned = static_cast<int>(lab.planned.size());
  if (n_planned > lab.n_done)
    notes.push_back(fmt::format("{} of {} planned cells are done.", lab.n_done, n_planned));
  for (const OpenCell& cell : lab.open)
    notes.push_back(
        fmt::format("{} {}: {}", SpecHtml(cell.cell),
                    cell.state == "failed"     ? "failed"
                    : cell.state == "left_out" ? "was left out"
                    : cell.state == "unmet"    ? "was not run"
                                               : EscapeHtml(cell.state),
                    EscapeHtml(cell.reason.empty() ? "no reason is recorded" : cell.reason)));
  for (const std::string& note : lab.records.notes) notes.push_back(EscapeHtml(note));
  return NotesList("Notes on these records", notes);
}

std::string Provenance(const LabView& lab, const std::string& out_html) {
  std::string runs;
  for (const LabRun& run : lab.lab->runs) {
    const RunRecords records{.file = fmt::format("{}", fmt::join(run.files, ", ")), .run = run.run};
    runs += FactsHtml(MakeView(records, 0));
  }
  const int n = lab.lab->n_done;
  return fmt::format(
      "<section id=\"{}-records\"><h3>Records</h3>\n<p>{}; {}.</p>\n{}</section>\n", lab.view.id,
      n == 0 ? "No finished cell" : fmt::format("{} {}", n, n == 1 ? "cell" : "cells"),
      RecordsLinks(*lab.lab, out_html),
      runs.empty() ? "" : Folded("Programs, models and machines", runs));
}

std::string ExperimentHtml(const LabView& lab, const ExperimentNotes* notes,
                           const std::string& out_html, Json& specs) {
  const std::string links =
      lab.lab->files.size() > kLinksInCaption
          ? fmt::format("<a href=\"#{}-records\">{} files</a>", lab.view.id, lab.lab->files.size())
          : RecordsLinks(*lab.lab, out_html);
  std::string charts;
  for (Chart& chart : MakeLabCharts(lab)) {
    chart.caption += fmt::format(" <span class=\"source\">Records: {}.</span>", links);
    charts += ChartHtml(std::move(chart), specs);
  }
  std::string tables;
  if (notes)
    for (const ReportTable& table : notes->tables) tables += TableOf(table);
  return fmt::format(
      "<article class=\"run\" id=\"{}\">\n<h2>{}</h2>\n{}{}{}{}{}{}</article>\n", lab.view.id,
      Title(notes, lab.lab->experiment),
      notes && !notes->repeats.empty() ? fmt::format("<p>{}</p>\n", EscapeHtml(notes->repeats))
                                       : "",
      NotesHtml(*lab.lab), tables, PublishedTable(*lab.lab, !tables.empty()),
      charts.empty() ? ""
                     : fmt::format("<section><h3 class=\"aloud\">Charts</h3>\n{}<div "
                                   "class=\"charts\">{}</div></section>\n",
                                   LegendHtml(lab.view), charts),
      Provenance(lab, out_html));
}

}  // namespace

std::string LabModels(const std::vector<LabRecords>& labs) {
  std::set<std::string> models;
  for (const LabRecords& lab : labs)
    for (const LabRun& run : lab.runs) models.insert(ModelName(run.run));
  std::string names;
  for (const std::string& model : models) names += (names.empty() ? "" : ", ") + model;
  return names.empty() ? "no model yet" : names;
}

std::string LabHtml(const std::vector<LabRecords>& labs, const std::vector<ExperimentNotes>& notes,
                    const std::string& out_html, Json& specs) {
  std::string found = "<section class=\"first\" id=\"found\"><h2>What was found</h2>\n", articles;
  for (const LabRecords& records : labs) {
    const LabView lab = MakeLabView(records);
    const ExperimentNotes* own = NotesOf(notes, records.experiment);
    found += fmt::format("<h3><a href=\"#{}\">{}</a></h3>\n{}", lab.view.id,
                         Title(own, records.experiment), LabFindingsHtml(lab));
    articles += ExperimentHtml(lab, own, out_html, specs);
  }
  return found + "</section>\n" + articles;
}

}  // namespace condense::report
