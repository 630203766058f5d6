// `condense report`: records that are there already as one page.
#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "app/commands.h"
#include "app/exit_code.h"
#include "app/output.h"
#include "base/text.h"
#include "lab/experiment.h"
#include "lab/lab_folder.h"
#include "report/report.h"

namespace condense {
namespace {

namespace fs = std::filesystem;

// What can be told before anything is read.
Status CheckPaths(const ReportFlags& flags) {
  std::error_code error;
  for (const std::string& path : flags.paths)
    if (!fs::exists(path, error))
      return Error{Quote(path) +
                   " is neither a file of records nor a folder of `condense lab run`"};
  if (fs::is_directory(flags.out, error))
    return Error{fmt::format("--output {} is a folder: name a file, as in -o {}", Quote(flags.out),
                             (fs::path(flags.out) / "report.html").string())};
  if (Status status = CheckReportPlace(flags.paths, flags.out); !status.ok())
    return Error{"--output: " + status.error()};
  const fs::path folder = fs::path(flags.out).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, error))
    return Error{fmt::format("--output {}: there is no folder {}", Quote(flags.out),
                             Quote(folder.string()))};
  return {};
}

ReportTable ToReport(const LabTable& table) {
  ReportTable out{.title = table.title, .columns = {}, .rows = table.rows, .notes = table.notes};
  for (const LabTable::Column& column : table.columns)
    out.columns.push_back({column.title, column.left});
  return out;
}

// Title and tables of every experiment that the folders hold and this program knows. A cell of
// several folders counts as the last of them has it, as in the page's charts.
Result<std::vector<ExperimentNotes>> NotesOf(const std::vector<std::string>& paths) {
  std::map<std::string, std::vector<FinishedCell>> cells;
  std::map<std::pair<std::string, std::string>, size_t> places;  // experiment, cell
  for (const std::string& path : paths) {
    if (std::error_code error; !fs::is_directory(path, error)) continue;
    const Result<LabFolder> folder = ReadLabFolder(path);
    if (!folder.ok()) return Error{folder.error()};
    for (const ExperimentInfo* info : Experiments()) {
      for (FinishedCell& cell : folder->Done(info->name)) {
        std::vector<FinishedCell>& known = cells[info->name];
        const auto [place, is_new] = places.try_emplace({info->name, cell.id}, known.size());
        if (is_new)
          known.push_back(std::move(cell));
        else
          known[place->second] = std::move(cell);
      }
    }
  }
  std::vector<ExperimentNotes> notes;
  for (const ExperimentInfo* info : Experiments()) {
    if (!cells.contains(info->name)) continue;
    notes.push_back({info->name, info->title, info->repeats});
    for (const LabTable& table : info->tables(cells[info->name]))
      notes.back().tables.push_back(ToReport(table));
  }
  return notes;
}

}  // namespace

int ReportCommand(const ReportFlags& flags) {
  if (const Status status = CheckPaths(flags); !status.ok())
    return Fail(kExitUsage, status.error());
  const Result<std::vector<ExperimentNotes>> notes = NotesOf(flags.paths);
  if (!notes.ok()) return Fail(kExitFailed, notes.error());
  if (const Status status = WriteReport(flags.paths, flags.out, notes.value()); !status.ok())
    return Fail(kExitFailed, status.error());
  fmt::print("report: {}\n", flags.out);
  return kExitOk;
}

}  // namespace condense
