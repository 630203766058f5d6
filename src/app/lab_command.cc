// `condense lab`: flags to a run of experiments, its progress, closing words and tables.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "app/commands.h"
#include "app/exit_code.h"
#include "app/machine.h"
#include "app/output.h"
#include "app/run_records.h"
#include "app/session_setup.h"
#include "app/table.h"
#include "base/text.h"
#include "decode/stop.h"
#include "lab/lab_export.h"
#include "lab/lab_folder.h"
#include "lab/lab_run.h"
#include "lab/ranks/open_share.h"

namespace condense {
namespace {

constexpr int kReasonsShown = 10;

int List(const std::string& name) {
  if (!name.empty()) {
    const Result<const ExperimentInfo*> info = FindExperiment(name);
    if (!info.ok()) return Fail(kExitUsage, info.error());
    fmt::print("{}", info.value()->default_spec);
    return kExitOk;
  }
  for (const ExperimentInfo* info : Experiments())
    fmt::print("{}: {}\n    {}\n", info->name, info->title, info->repeats);
  fmt::print(
      "\n`condense lab list --spec NAME` prints a spec, `condense lab run NAME|SPEC.toml` runs "
      "it\n");
  return kExitOk;
}

void PrintTable(const LabTable& table) {
  std::vector<TableColumn> columns;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const LabTable::Column& from = table.columns[i];
    TableColumn column{from.title, from.priority, from.left, {}};
    for (const auto& row : table.rows) column.cells.push_back(row[i]);
    columns.push_back(std::move(column));
  }
  fmt::print("\n{}\n{}{}", table.title, RenderTable(columns, OutputWidth()), table.notes);
}

// The tables of what the folder holds.
void PrintTables(const LabFolder& kept, const std::set<std::string>& names) {
  for (const ExperimentInfo* info : Experiments()) {
    if (!names.contains(info->name)) continue;
    for (const LabTable& table : info->tables(kept.Done(info->name))) PrintTable(table);
  }
  std::fflush(stdout);
}

int ShowStatus(const std::string& folder) {
  const Result<LabFolder> kept = ReadLabFolder(folder);
  if (!kept.ok()) return Fail(kExitUsage, kept.error());
  if (kept->runs.empty()) {
    return Fail(kExitUsage,
                fmt::format("{} holds no records of the lab: name what `condense lab run` wrote",
                            Quote(folder)));
  }
  std::map<std::string, std::set<std::string>> planned;
  for (const Json& plan : kept->plans) {
    for (const Json& id : plan.value("cells", Json::array()))
      planned[plan.value("experiment", "")].insert(id.get<std::string>());
  }
  std::set<std::string> names;
  for (const auto& [name, ids] : planned) {
    int n_done = 0, n_unmet = 0, n_failed = 0;
    for (const std::string& id : ids) {
      const FinishedCell* cell = kept->Find(name, id);
      const std::string state = cell ? cell->end.value("state", "") : "";
      (state == "failed" ? n_failed : state == "unmet" ? n_unmet : n_done) += cell ? 1 : 0;
    }
    fmt::print(
        "{}: {} of {} cells done{}{}\n", name, n_done + n_unmet, ids.size(),
        n_unmet > 0 ? fmt::format(", {} of them with a budget that cannot be met", n_unmet) : "",
        n_failed > 0 ? fmt::format(", {} failed", n_failed) : "");
    names.insert(name);
  }
  int n_shown = 0;
  for (const FinishedCell& cell : kept->cells) {
    if (!cell.failed() || ++n_shown > kReasonsShown) continue;
    fmt::print("failed: {} {}: {}\n", cell.experiment, cell.id, cell.end.value("reason", ""));
  }
  if (n_shown > kReasonsShown) fmt::print("… and {} more\n", n_shown - kReasonsShown);
  PrintTables(kept.value(), names);
  return kExitOk;
}

int Export(const std::string& folder) {
  const Result<std::vector<std::string>> files = ExportCsv(folder);
  if (!files.ok()) return Fail(kExitFailed, files.error());
  for (const std::string& path : files.value()) fmt::print("{}\n", path);
  return kExitOk;
}

std::string ProgressText(const LabProgress& progress) {
  return fmt::format("{} of {} cells done{}{}, {}", progress.n_done, progress.n_cells,
                     progress.n_failed > 0 ? fmt::format(", {} failed", progress.n_failed) : "",
                     std::isnan(progress.seconds_left)
                         ? ""
                         : fmt::format(", about {} left", FormatDuration(progress.seconds_left)),
                     progress.doing);
}

void PrintSpent(const LabOutcome& outcome, int n_ranks) {
  fmt::print("\nwhere {}{} went:", n_ranks > 1 ? fmt::format("{} × ", n_ranks) : "",
             FormatDuration(outcome.seconds));
  double rest = outcome.seconds * n_ranks;
  std::vector<LabSpent> spent = outcome.spent;
  std::stable_sort(spent.begin(), spent.end(),
                   [](const LabSpent& a, const LabSpent& b) { return a.seconds > b.seconds; });
  for (const LabSpent& part : spent) {
    rest -= part.seconds;
    fmt::print(" {} {} ({});", part.part, FormatDuration(part.seconds), part.n);
  }
  fmt::print(" the rest, with cells that were not finished, {}\n",
             FormatDuration(std::max(0.0, rest)));
}

// Where records lie that rank 0 cannot read, and how they come together.
void PrintElsewhere(const std::vector<RecordsElsewhere>& elsewhere, const std::string& folder) {
  if (elsewhere.empty()) return;
  fmt::print("\nrecords of other machines, which {} does not hold; to bring them together:\n",
             folder);
  for (const RecordsElsewhere& records : elsewhere) {
    fmt::print("  scp {}:{} {}/records-{}-{}.jsonl\n", records.host, records.path, folder,
               records.host, records.rank);
  }
}

int Finish(const LabFlags& flags, const LabOptions& options, const LabOutcome& outcome,
           const WorkShare& share) {
  Result<LabFolder> kept = ReadLabFolder(flags.folder);
  if (kept.ok()) {
    for (FinishedCell& cell : share.CellsElsewhere()) kept->Add(std::move(cell));
    std::set<std::string> names;
    for (const LabSpec& spec : options.specs) names.insert(spec.info->name);
    PrintTables(kept.value(), names);
  }
  if (outcome.n_done + outcome.n_failed > 0) PrintSpent(outcome, share.n_ranks());
  PrintElsewhere(share.Elsewhere(), flags.folder);
  fmt::print("{} of {} cells done{}: {}\n", outcome.n_kept + outcome.n_done, outcome.n_cells,
             outcome.n_failed > 0 ? fmt::format(", {} failed", outcome.n_failed) : "",
             flags.folder);
  std::fflush(stdout);
  if (!outcome.error.empty()) {
    return Fail(kExitFailed,
                outcome.error + "; what is done is kept: the same command goes on from there");
  }
  if (outcome.stopped)
    return Fail(kExitFailed, "stopped; what is done is kept: the same command goes on from there");
  if (outcome.n_failed > 0) {
    return Fail(kExitFailed, fmt::format("{} cells failed: `condense lab status {}` says why; the "
                                         "same command tries them again",
                                         outcome.n_failed, flags.folder));
  }
  return kExitOk;
}

// As Fail; a rank that is not rank 0 says it through that one, whose exit code is the run's.
int FailRank(WorkShare& share, ExitCode code, const std::string& message) {
  if (share.rank() == 0) return Fail(code, message);
  share.Fail(message);
  return kExitOk;
}

int RunShare(const LabFlags& flags, const std::vector<std::string>& argv, WorkShare& share) {
  LabOptions options;
  for (const std::string& named : flags.specs) {
    Result<LabSpec> spec = ReadLabSpec(named);
    if (!spec.ok()) return FailRank(share, kExitUsage, spec.error());
    options.specs.push_back(std::move(spec.value()));
  }
  for (const std::string& type : {flags.k_type, flags.v_type}) {
    const Status known = CheckCacheType(type);
    if (!known.ok()) return FailRank(share, kExitUsage, known.error());
  }
  const Result<Plugin> plugin = LoadPlugin();
  if (!plugin.ok()) return FailRank(share, kExitFailed, plugin.error());
  DecodeFlags decode;
  decode.n_threads = flags.n_threads;
  decode.k_type = flags.k_type;
  decode.v_type = flags.v_type;
  options.folder = flags.folder;
  options.models = flags.models;
  options.default_model = DefaultModelPath();
  options.texts = flags.texts;
  options.n_threads = ThreadsOf(decode);
  options.k_type = flags.k_type;
  options.v_type = flags.v_type;
  options.describe = [&](const LabModel& model) {
    RunRecord run = BeginRunRecord("condense lab",
                                   {decode, model.file(), model.model(), plugin.value(), 0}, argv);
    run.model_sha256 = model.sha256();
    return run;
  };
  options.check_memory = [&](const ModelFile& file, const LabMemory& need) {
    return CheckMemory(
        file, decode,
        {.n_context = need.n_rows,
         .n_caches = need.n_caches,
         .logits_bytes = need.logits_bytes,
         .other_bytes = need.other_bytes,
         .way_out = "give smaller contexts in the spec, or pass -ctk q8_0 -ctv q8_0"});
  };

  Progress progress;
  LabEvents events;
  events.on_plan = [&](const LabProgress& plan) {
    fmt::print("{} cells, {} of them done before: {}\n", plan.n_cells, plan.n_done, flags.folder);
    if (share.n_ranks() > 1) {
      fmt::print("{}; {} {} each\n", share.Describe(), options.n_threads,
                 options.n_threads == 1 ? "thread" : "threads");
    }
    std::fflush(stdout);
    progress.Stage();
  };
  events.on_progress = [&](const LabProgress& now) { progress.Show(ProgressText(now)); };
  events.on_cell = [&](const Cell& cell, const CellRecord& end) {
    if (end.state != "failed") return;
    progress.Clear();
    PrintWarning(fmt::format("{} failed: {}", CellLabel(cell), end.reason));
  };
  events.on_warning = [&](const std::string& text) {
    progress.Clear();
    PrintWarning(text);
  };
  if (share.rank() > 0) events = {};
  const Result<LabOutcome> outcome = RunLab(plugin.value(), options, events, share);
  progress.Clear();
  if (!outcome.ok()) {
    return StopRequested() ? FailRank(share, kExitFailed, "stopped before the first cell")
                           : FailRank(share, kExitUsage, outcome.error());
  }
  return share.rank() > 0 ? kExitOk : Finish(flags, options, outcome.value(), share);
}

int Run(const LabFlags& flags, const std::vector<std::string>& argv) {
  const Result<std::unique_ptr<WorkShare>> share = OpenWorkShare(flags.lost_after);
  if (!share.ok()) return Fail(kExitUsage, share.error());
  return share.value()->Close(RunShare(flags, argv, *share.value()));
}

}  // namespace

int LabCommand(const LabFlags& flags, const std::vector<std::string>& argv) {
  switch (flags.what) {
    case LabFlags::What::kList:
      return List(flags.spec);
    case LabFlags::What::kRun:
      return Run(flags, argv);
    case LabFlags::What::kStatus:
      return ShowStatus(flags.folder);
    case LabFlags::What::kExport:
      return Export(flags.folder);
  }
  return kExitUsage;
}

}  // namespace condense
