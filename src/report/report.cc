// The page from its pieces: assets/page.html with its {{names}} filled, written beside its place
// and then moved there.
#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "report/assets.h"
#include "report/charts.h"
#include "report/findings.h"
#include "report/grid.h"
#include "report/html.h"
#include "report/lab_page.h"
#include "report/lab_records.h"
#include "report/parting.h"
#include "report/records.h"
#include "report/run_view.h"
#include "report/tables.h"

namespace condense {
namespace report {
namespace {

// Fills each {{name}}; what is filled in is not searched again.
std::string Fill(std::string_view page, const std::map<std::string_view, std::string>& parts) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t open = page.find("{{", at);
    if (open == page.npos) return out.append(page.substr(at));
    const size_t close = page.find("}}", open);
    CONDENSE_CHECK(close != page.npos);
    const auto part = parts.find(page.substr(open + 2, close - open - 2));
    CONDENSE_CHECK(part != parts.end());
    out.append(page.substr(at, open - at)).append(part->second);
    at = close + 2;
  }
}

std::string NotesHtml(const RunView& view) {
  std::vector<std::string> notes;
  for (const std::string& note : view.records->notes) notes.push_back(EscapeHtml(note));
  std::string no_text;
  for (const PolicyRow& row : view.rows)
    if (!row.Line("text"))
      no_text += fmt::format("{}{}", no_text.empty() ? "" : ", ", SpecHtml(row.policy));
  const bool none_has = std::none_of(view.rows.begin(), view.rows.end(),
                                     [](const PolicyRow& row) { return row.Line("text"); });
  if (none_has && view.is_grid()) no_text = "any row";
  if (!no_text.empty())
    notes.push_back(
        fmt::format("No run on the file’s own next tokens (teacher “text”) is recorded for {}: the "
                    "file ended at the prompt, or the run was interrupted.",
                    no_text));
  return NotesList("Notes on these records", notes);
}

// A handful of policies: every figure and every text in sight.
std::string RowSections(const RunView& view, const std::string& charts) {
  return fmt::format(
      "<section><h2>Decisions</h2>\n{}</section>\n<section><h2>Bytes and "
      "speed</h2>\n{}</section>\n"
      "<section><h2>Charts</h2>\n{}<div class=\"charts\">{}</div></section>\n"
      "<section><h2>Where tokens part</h2>\n{}</section>\n",
      Scrolled(DecisionsTable(view), "Decisions, table"),
      Scrolled(CostTable(view), "Bytes and speed, table"), LegendHtml(view), charts,
      PartingHtml(view));
}

// Many policies at the same budgets: charts first, then a line a cell; the rest folded away.
std::string GridSections(const RunView& view, const std::string& charts) {
  return fmt::format(
      "<section><h2>Quality against bytes</h2>\n{}<div class=\"charts\">{}</div></section>\n"
      "<section><h2>Every policy at every budget</h2>\n{}{}</section>\n"
      "<section><h2>More</h2>\n{}{}{}</section>\n",
      LegendHtml(view), charts, LeftOutHtml(view),
      Scrolled(GridTable(view), "Every policy at every budget, table"),
      Folded("Decisions under both teachers", Scrolled(DecisionsTable(view), "Decisions, table")),
      Folded("Rows, bytes and fallbacks", Scrolled(CostTable(view), "Bytes and speed, table")),
      Folded("Where tokens part", PartingHtml(view)));
}

std::string RunHtml(const RunView& view, size_t n_runs, Json& specs) {
  std::string charts;
  for (Chart& chart : MakeCharts(view)) charts += ChartHtml(std::move(chart), specs);
  const std::string heading =
      n_runs > 1 ? fmt::format("<h2 class=\"run\">{}: <code>{}</code>, from token {}</h2>\n",
                               view.id, EscapeHtml(Text(view.run(), "text_source")),
                               FormatCount(Number(view.run(), "offset").value_or(0)))
                 : "";
  if (charts.empty()) charts = "<p>These records hold nothing to draw.</p>";
  return fmt::format(
      "<article class=\"run\" id=\"{0}\">\n{1}<section aria-label=\"What was "
      "found\">{2}{3}</section>\n{4}<section><h2>This run</h2>\n{5}</section>\n</article>\n",
      view.id, heading, FindingsHtml(view), NotesHtml(view),
      view.is_grid() ? GridSections(view, charts) : RowSections(view, charts), FactsHtml(view));
}

Status WriteFile(const std::string& path, const std::string& bytes) {
  const std::string partial = path + ".partial";
  std::ofstream out(partial, std::ios::binary | std::ios::trunc);
  out << bytes;
  out.close();
  if (!out || std::rename(partial.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    std::remove(partial.c_str());
    return Error{fmt::format("cannot write report '{}': {}", path, std::strerror(reason))};
  }
  return {};
}

}  // namespace
}  // namespace report

Status CheckReportPlace(const std::vector<std::string>& paths, const std::string& out_html) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::path(out_html).parent_path();
  for (const std::string& path : paths) {
    if (fs::is_directory(path, error) &&
        report::IsRecordsFileName(fs::path(out_html).filename().string()) &&
        fs::equivalent(path, folder.empty() ? "." : folder, error))
      return Error{fmt::format(
          "the report '{}' would lie among the records of '{}', by such a name", out_html, path)};
    if (fs::equivalent(path, out_html, error))
      return Error{fmt::format("the report '{}' would be written over the records", out_html)};
  }
  if (report::IsRecordsFile(out_html))
    return Error{
        fmt::format("the report '{}' would be written over the records that lie there", out_html)};
  return {};
}

Status WriteReport(const std::vector<std::string>& paths, const std::string& out_html,
                   const std::vector<ExperimentNotes>& notes) {
  using namespace report;
  if (paths.empty())
    return Error{"no records to report: name at least one file or folder of `condense lab run`"};
  if (Status status = CheckReportPlace(paths, out_html); !status.ok()) return status;
  std::vector<RunRecords> runs;
  std::vector<std::string> folders;
  for (const std::string& path : paths) {
    if (std::error_code error; std::filesystem::is_directory(path, error))
      folders.push_back(path);
    else if (Status status = ReadRecords(path, runs); !status.ok())
      return status;
  }
  const Result<std::vector<LabRecords>> labs = ReadLabFolders(folders);
  if (!labs.ok()) return Error{labs.error()};

  Json specs = Json::array();
  std::string body = labs->empty() ? "" : LabHtml(labs.value(), notes, out_html, specs);
  for (size_t i = 0; i < runs.size(); ++i)
    body += RunHtml(MakeView(runs[i], static_cast<int>(i)), runs.size() + labs->size(), specs);

  const std::string of = labs->empty() ? Text(runs.front().run, "model") : LabModels(labs.value());
  const char* heading = labs->empty() ? "Dense and sparse, side by side" : "Experiments of the lab";
  const std::map<std::string_view, std::string> parts = {
      {"title", EscapeHtml(fmt::format("Condense: {}, {}", of, heading))},
      {"heading", fmt::format("{}: <code>{}</code>", heading, EscapeHtml(of))},
      {"css", std::string(Asset("report.css"))},
      {"body", body},
      {"specs", EscapeJsonInScript(specs.dump(-1, ' ', false, Json::error_handler_t::replace))},
      {"vega", EscapeScript(Asset("vega_bundle.js"))},
      {"js", EscapeScript(Asset("report.js"))},
  };
  return WriteFile(out_html, Fill(Asset("page.html"), parts));
}

}  // namespace condense
