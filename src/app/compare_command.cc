// `condense compare`: flags to a comparison, its rows to the table, the records and the report.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "app/commands.h"
#include "app/compare_plan.h"
#include "app/exit_code.h"
#include "app/machine.h"
#include "app/output.h"
#include "app/output_file.h"
#include "app/policy_check.h"
#include "app/prompt.h"
#include "app/run_records.h"
#include "app/session_setup.h"
#include "app/table.h"
#include "decode/sha256.h"
#include "decode/stop.h"
#include "lab/compare.h"
#include "lab/kept.h"
#include "report/report.h"

namespace condense {
namespace {

// Where the records go: the file asked for, or a temporary one for the report.
struct RecordsFile {
  std::string path;
  bool temporary = false;
  ~RecordsFile() {
    if (temporary) std::remove(path.c_str());
  }
};

std::string TemporaryPath() {
  std::string path = (std::filesystem::temp_directory_path() / "condense-records-XXXXXX").string();
  const int file = mkstemp(path.data());
  if (file >= 0) close(file);
  return path;
}

std::string Legend(const std::vector<CompareRow>& rows, int n_generate) {
  const PolicyRecord& first = rows[0].teachers[0];
  const bool has_text = rows[0].teachers.size() > 1;
  const bool timed = first.speed.n_pairs > 0;
  const int n = n_generate - 1;
  std::string text = fmt::format(
      "\nread   bytes of K, V and summaries read, of dense's\n"
      "T_div  first of {} sparse decisions whose token differs from dense (>{}: none)\n"
      "T_sig  the same, counting only where dense led by 0.25 logits or more\n"
      "match  same greedy token as dense on dense's own continuation, n = {}\n"
      "KL, ΔPPL, mass   against dense on {}, n = {}; mass: attention left out\n",
      n, n, n, has_text ? "the text's own next tokens" : "its own continuation", n);
  if (timed) {
    text += fmt::format("speed  tokens a second over dense, median of {} interleaved pairs\n",
                        first.speed.n_pairs);
  }
  text += "control is dense attention summed in another order: the noise floor of this model\n";
  for (const CompareRow& row : rows) {
    const PolicyRecord& record = row.teachers[0];
    if (IsBaseline(record.policy)) continue;
    uint64_t n_fallback = 0;
    std::string reasons;
    for (const auto& [reason, count] : record.fallbacks) {
      n_fallback += count;
      reasons += fmt::format("{}{} {}", reasons.empty() ? "" : ", ", FormatCount(count), reason);
    }
    if (n_fallback > 0) {
      text += fmt::format("{}: {} of {} layer steps fell back to dense ({})\n", record.policy,
                          FormatCount(n_fallback), FormatCount(n_fallback + record.sparse_steps),
                          reasons);
    }
  }
  return text;
}

// Everything that must be right before work begins.
struct Setup : DecodeParts {
  SourceText text;
  CellPlan plan;
  KeptRecords kept;  // of --records
  CutText prompt;
  int n_context = 0;
  uint64_t logits_bytes = 0;  // that stay until the end
};

std::optional<Failure> CutPrompt(const CompareFlags& flags, Setup& setup) {
  const Model& model = *setup.model;
  TextCut cut;
  cut.offset = flags.offset;
  cut.prompt_tokens = flags.prompt_tokens;
  cut.n_generate = flags.n_generate;
  cut.n_positions = model.n_positions();
  cut.n_context = flags.decode.n_context;
  cut.add_bos = model.add_bos();
  cut.bos = model.bos();
  Result<CutText> prompt = CutTokens(model.Tokenise(setup.text.bytes), cut);
  if (!prompt.ok()) return Failure{kExitUsage, prompt.error()};
  setup.prompt = std::move(prompt.value());
  setup.n_context =
      ContextFor(flags.decode, static_cast<int64_t>(setup.prompt.prompt.size()) + flags.n_generate);
  // The dense ones of every teacher.
  const uint64_t n_teachers = setup.prompt.continuation.empty() ? 1 : 2;
  setup.logits_bytes = 4 * n_teachers * model.n_vocab() * flags.n_generate;
  const Status fits = CheckMemory(
      setup.file, flags.decode, {.n_context = setup.n_context, .logits_bytes = setup.logits_bytes});
  if (!fits.ok()) return Failure{kExitUsage, fits.error()};
  return std::nullopt;
}

std::optional<Failure> SetUp(const CompareFlags& flags, Setup& setup) {
  if (flags.n_generate < 2) {
    return Failure{kExitUsage, fmt::format("-n {} leaves no decision to compare: the prefill makes "
                                           "the first token, so give 2 or more",
                                           flags.n_generate)};
  }
  Result<SourceText> text = FindText(flags.decode);
  if (!text.ok()) return Failure{kExitUsage, text.error()};
  setup.text = std::move(text.value());
  if (const auto failure = setup.Find(flags.decode)) return failure;
  if (flags.decode.n_context > 0) {
    const Status fits =
        CheckMemory(setup.file, flags.decode, {.n_context = flags.decode.n_context});
    if (!fits.ok()) return Failure{kExitUsage, fits.error()};
  }
  if (const auto failure = setup.LoadModel()) return failure;
  if (const auto failure = CutPrompt(flags, setup)) return failure;
  // The first decision sees the prompt and the token that it is fed.
  const double visible_rows =
      static_cast<double>(setup.prompt.prompt.size()) + flags.n_generate / 2.0;
  Result<CellPlan> plan = PlanComparison(*setup.plugin, flags, visible_rows);
  if (!plan.ok()) return Failure{kExitUsage, plan.error()};
  setup.plan = std::move(plan.value());
  const Status checked = WarnOfOtherModels(flags.policies, setup.file);
  if (!checked.ok()) return Failure{kExitUsage, checked.error()};
  return std::nullopt;
}

RunRecord DescribeRun(const CompareFlags& flags, const std::vector<std::string>& argv,
                      const Setup& setup) {
  RunRecord run = BeginRunRecord(
      "condense compare",
      {flags.decode, setup.file, *setup.model, *setup.plugin, setup.session->n_context()}, argv);
  run.offset = static_cast<int>(flags.offset);
  run.n_generate = flags.n_generate;
  run.speed_pairs = flags.speed_pairs;
  run.text_source = setup.text.source;
  run.text_sha256 = TextSha256(setup.text.bytes);
  run.n_prompt = static_cast<int>(setup.prompt.prompt.size());
  return run;
}

void PrintHead(const CompareFlags& flags, const Setup& setup, const RunRecord& run) {
  fmt::print("{}\n{} tokens of {}{}\n", run.model, FormatCount(run.n_prompt), run.text_source,
             flags.offset > 0 ? fmt::format(" from token {}", flags.offset) : "");
  if (setup.prompt.held_back) {
    fmt::print("its last {} tokens held back: the text's own continuation\n", flags.n_generate);
  }
  fmt::print("{} threads · {} · KV {}/{}, {} a token\n", run.threads, run.instruction_set,
             run.kv_type_k, run.kv_type_v, FormatBytes(run.kv_bytes_per_token));
  std::fflush(stdout);
}

// The prompt's line, and what is left out, as far as they are not there.
Status WritePrompt(RecordWriter& writer, const Setup& setup, const PromptRecord& prompt) {
  Status status = setup.kept.prompt ? Status() : writer.Write(prompt);
  for (const LeftOut& out : setup.plan.left_out) {
    const bool known = std::any_of(setup.kept.left_out.begin(), setup.kept.left_out.end(),
                                   [&](const LeftOut& kept) { return kept.spec == out.spec; });
    if (!status.ok() || known) continue;
    CellRecord cell;
    cell.policy = out.spec;
    cell.name = PolicyName(out.spec);
    cell.state = "left_out";
    cell.reason = out.reason;
    status = writer.Write(cell);
  }
  return status;
}

std::string ProgressText(const CompareProgress& progress) {
  const std::string left =
      std::isnan(progress.seconds_left)
          ? ""
          : fmt::format("about {} left, ", FormatDuration(progress.seconds_left));
  return fmt::format("{} of {} rows done, {}{}", progress.rows_done, progress.n_rows, left,
                     progress.row);
}

// Runs the comparison; `rows` holds what was finished, whatever the status.
Status RunComparison(const CompareFlags& flags, const Setup& setup, const RunRecord& run,
                     RecordWriter* writer, std::vector<CompareRow>& rows) {
  CompareSpec spec;
  spec.prompt = setup.prompt.prompt;
  spec.text_continuation = setup.prompt.continuation;
  spec.n_generate = flags.n_generate;
  spec.cells = setup.plan.cells;
  spec.n_speed_pairs = flags.speed_pairs;
  spec.kept_prompt = setup.kept.prompt;
  for (const CompareRow& row : setup.kept.rows) spec.finished.push_back(row.cell);

  Progress progress;
  CompareEvents events;
  bool stepping = false;
  events.on_prefill = [&](int n_done, int n_total) {
    progress.Update("dense prefill", n_done, n_total);
  };
  events.on_prompt = [&](const PromptRecord& record) {
    progress.Clear();
    fmt::print("dense prefill {:.1f} s, {:.0f} tokens a second\n\n", record.prefill_seconds,
               record.n_prompt / record.prefill_seconds);
    std::fflush(stdout);
    return writer ? WritePrompt(*writer, setup, record) : Status();
  };
  events.on_steps = [&](const CompareProgress& done) {
    if (!stepping) progress.Stage();
    stepping = true;
    progress.Show(ProgressText(done));
  };
  events.on_row = [&](const CompareRow& row) {
    if (!row.warning.empty()) {
      progress.Clear();
      PrintWarning(row.warning);
    }
    rows.push_back(row);
    rows.back().layers.clear();
    rows.back().steps.clear();
    return writer ? WriteRow(*writer, run, row) : Status();
  };
  return Compare(*setup.session, *setup.plugin, spec, events);
}

// Opens the records: anew, or behind what an earlier run of the same comparison finished.
std::optional<Failure> OpenRecords(const RecordsFile& file, const RunRecord& run, Setup& setup,
                                   std::optional<RecordWriter>& writer) {
  if (file.path.empty()) return std::nullopt;
  if (!file.temporary) {
    Result<KeptRecords> kept = ReadKept(file.path);
    if (!kept.ok()) return Failure{kExitUsage, kept.error()};
    setup.kept = std::move(kept.value());
  }
  Result<RecordWriter> opened = OpenRunRecords(file.path, run, setup.kept);
  if (!opened.ok()) return Failure{kExitUsage, opened.error()};
  writer = std::move(opened.value());
  if (setup.kept.n_bytes > 0) {
    PrintNote(fmt::format("'{}' holds {} finished rows of this run: they are not run again",
                          file.path, setup.kept.rows.size()));
    return std::nullopt;
  }
  const Status written = writer->Write(run);
  if (!written.ok()) return Failure{kExitFailed, written.error()};
  return std::nullopt;
}

// Rows of the table in the order in which they were asked for, those of the records' other rows
// after them; rows without figures apart.
struct ShownRows {
  std::vector<CompareRow> measured, unmet;
};

ShownRows RowsToShow(const Setup& setup, const std::vector<CompareRow>& rows) {
  std::vector<const CompareRow*> all;
  for (const CompareRow& row : setup.kept.rows) all.push_back(&row);
  for (const CompareRow& row : rows) all.push_back(&row);
  const auto rank = [&](const CompareRow* row) -> size_t {
    if (row->cell.policy == "dense") return 0;
    if (row->cell.policy == "control") return 1;
    size_t place = 2;
    for (const CompareCell& cell : setup.plan.cells) {
      if (cell.policy == row->cell.policy) return place;
      ++place;
    }
    return place;
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const CompareRow* a, const CompareRow* b) { return rank(a) < rank(b); });
  ShownRows shown;
  for (const CompareRow* row : all)
    (row->teachers.empty() ? shown.unmet : shown.measured).push_back(*row);
  return shown;
}

void PrintResults(const CompareFlags& flags, const Setup& setup, const ShownRows& rows) {
  if (!rows.measured.empty()) {
    fmt::print("{}", CompareTable(rows.measured, flags.n_generate, OutputWidth()));
    fmt::print("{}", Legend(rows.measured, flags.n_generate));
  }
  for (const CompareRow& row : rows.unmet) {
    fmt::print("{}: not run: {}\n", row.cell.policy, row.cell.reason);
  }
  for (const LeftOut& out : setup.plan.left_out) {
    fmt::print("{}: left out: {}\n", out.spec, out.reason);
  }
  std::fflush(stdout);
}

}  // namespace

int CompareCommand(const CompareFlags& flags, const std::vector<std::string>& argv) {
  Setup setup;
  if (const auto failure = SetUp(flags, setup)) return Fail(*failure);
  RecordsFile records_file{flags.records, false};
  Status writable;
  if (!flags.report.empty()) writable = CheckWritable(flags.report, "report");
  if (writable.ok() && !flags.report.empty()) writable = CheckReportPlace({}, flags.report);
  if (records_file.path.empty() && !flags.report.empty()) records_file = {TemporaryPath(), true};
  if (writable.ok() && !records_file.path.empty())
    writable = CheckWritable(records_file.path, "records");
  if (!writable.ok()) return Fail(kExitUsage, writable.error());
  if (const auto failure = setup.Open(flags.decode, setup.n_context, setup.logits_bytes))
    return Fail(*failure);

  RunRecord run = DescribeRun(flags, argv, setup);
  std::optional<RecordWriter> writer;
  if (!records_file.path.empty()) {
    const Result<std::string> sha256 = setup.file.Sha256();
    if (!sha256.ok()) return Fail(kExitFailed, sha256.error());
    run.model_sha256 = sha256.value();
  }
  if (const auto failure = OpenRecords(records_file, run, setup, writer)) return Fail(*failure);
  PrintHead(flags, setup, run);

  std::vector<CompareRow> rows;
  const Status status = RunComparison(flags, setup, run, writer ? &*writer : nullptr, rows);
  const ShownRows shown = RowsToShow(setup, rows);
  PrintResults(flags, setup, shown);
  int code = kExitOk;
  if (!status.ok()) {
    code = Fail(kExitFailed,
                StopRequested()
                    ? fmt::format("stopped; {} finished rows kept{}",
                                  shown.measured.size() + shown.unmet.size(),
                                  flags.records.empty() ? "" : ": the same command goes on")
                    : status.error());
  }
  if (!flags.records.empty()) fmt::print("records: {}\n", flags.records);
  if (!flags.report.empty() && !shown.measured.empty()) {
    const Status written = WriteReport({records_file.path}, flags.report);
    if (!written.ok()) return Fail(kExitFailed, written.error());
    fmt::print("report: {}\n", flags.report);
  }
  return code;
}

}  // namespace condense
