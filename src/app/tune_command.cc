// `condense tune`: texts to prefixes, the search and its certificate as tables, a policy file.
#include <condense_version.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "app/commands.h"
#include "app/compare_plan.h"
#include "app/exit_code.h"
#include "app/machine.h"
#include "app/output.h"
#include "app/output_file.h"
#include "app/policy_check.h"
#include "app/prefixes.h"
#include "app/run_records.h"
#include "app/session_setup.h"
#include "app/table.h"
#include "base/text.h"
#include "decode/sha256.h"
#include "decode/stop.h"
#include "lab/tune.h"

namespace condense {
namespace {

// Everything that must be right before work begins.
struct Setup : DecodeParts {
  std::vector<SourceText> texts;
  std::string model_sha256;
  std::vector<Prefix> prefixes;
  TuneSpec spec;
};

// A cell a rung, for each policy.
Result<std::vector<std::vector<CompareCell>>> PlanRungs(const Plugin& plugin,
                                                        const TuneFlags& flags,
                                                        double visible_rows) {
  const Result<Json> described = DescribedPolicies(plugin);
  if (!described.ok()) return Error{described.error()};
  const std::vector<double> ladder(std::begin(kTuneLadder), std::end(kTuneLadder));
  std::vector<std::vector<CompareCell>> policies;
  for (size_t i = 0; i < flags.policies.size(); ++i) {
    const std::string& name = flags.policies[i];
    const auto here = flags.policies.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(flags.policies.begin(), here, name) != here) continue;
    if (name == "all")
      return Error{"--policies: name the policies to try: all has some that read everything"};
    Result<CellPlan> plan =
        PlanCells(described.value(), {{name}, ladder, visible_rows},
                  [&](const std::string& spec) { return plugin.SetPolicy(spec); });
    if (!plan.ok()) return Error{"--policies: " + plan.error()};
    if (!plan->left_out.empty()) return Error{"--policies: " + plan->left_out[0].reason};
    if (plan->cells.size() != ladder.size()) {
      return Error{fmt::format(
          "--policies: policy {} takes no budget (key budget, tokens or window): there is nothing "
          "to tune",
          Quote(name))};
    }
    policies.push_back(std::move(plan->cells));
  }
  return policies;
}

Status CheckOutputs(const TuneFlags& flags) {
  const Status output = CheckWritable(flags.output, "policy file");
  if (!output.ok() || flags.records.empty()) return output;
  std::error_code error;
  std::filesystem::create_directories(flags.records, error);
  if (!std::filesystem::is_directory(flags.records))
    return Error{fmt::format("cannot make the folder '{}' for records: {}", flags.records,
                             error ? error.message() : "it is no folder")};
  return Status();
}

Status CutTextsOf(const TuneFlags& flags, Setup& setup) {
  Result<std::vector<Prefix>> prefixes =
      CutTexts(*setup.model, flags.decode, setup.texts,
               {flags.n_prefixes, flags.prompt_tokens, flags.n_generate});
  if (!prefixes.ok()) return Error{prefixes.error()};
  setup.prefixes = std::move(prefixes.value());
  for (size_t i = 0; i < setup.prefixes.size(); ++i) {
    const Prefix& prefix = setup.prefixes[i];
    setup.spec.prefixes.push_back({prefix.prompt, prefix.continuation, IsHeldOut(i)});
  }
  return Status();
}

std::optional<Failure> SetUp(const TuneFlags& flags, Setup& setup) {
  if (flags.n_generate < 3)
    return Failure{kExitUsage, fmt::format("-n {} leaves fewer than two decisions a prefix: give 3 "
                                           "or more",
                                           flags.n_generate)};
  setup.spec.n_generate = flags.n_generate;
  const Result<TuneTarget> target = ParseTarget(flags.target);
  if (!target.ok()) return Failure{kExitUsage, target.error()};
  setup.spec.target = target.value();
  const Result<double> confidence = ReadConfidence(flags.confidence);
  if (!confidence.ok()) return Failure{kExitUsage, confidence.error()};
  setup.spec.confidence = confidence.value();
  Result<std::vector<SourceText>> texts = FindTexts(flags.decode, flags.files);
  if (!texts.ok()) return Failure{kExitUsage, texts.error()};
  setup.texts = std::move(texts.value());
  if (const auto failure = setup.Find(flags.decode)) return failure;
  const Status outputs = CheckOutputs(flags);
  if (!outputs.ok()) return Failure{kExitUsage, outputs.error()};
  if (const auto failure = setup.LoadModel()) return failure;
  const Status cut = CutTextsOf(flags, setup);
  if (!cut.ok()) return Failure{kExitUsage, cut.error()};
  const auto n_prompt = static_cast<int64_t>(setup.prefixes[0].prompt.size());
  auto policies =
      PlanRungs(*setup.plugin, flags, static_cast<double>(n_prompt) + flags.n_generate / 2.0);
  if (!policies.ok()) return Failure{kExitUsage, policies.error()};
  setup.spec.policies = std::move(policies.value());
  const int n_context = ContextFor(flags.decode, n_prompt + flags.n_generate);
  // Dense logits of two teachers.
  const uint64_t logits_bytes = uint64_t{8} * setup.model->n_vocab() * flags.n_generate;
  if (const auto failure = setup.Open(flags.decode, n_context, logits_bytes)) return failure;
  const Result<std::string> sha256 = setup.file.Sha256();
  if (!sha256.ok()) return Failure{kExitFailed, sha256.error()};
  setup.model_sha256 = sha256.value();
  return std::nullopt;
}

void PrintHead(const TuneFlags& flags, const Setup& setup) {
  const auto n = static_cast<int>(setup.prefixes.size());
  const int n_search = CountSearched(n), n_decisions = flags.n_generate - 1;
  fmt::print(
      "{}, target {} on the text's own next tokens, confidence {}\n"
      "{} prefixes of {} tokens and {} decisions each: {} to search on, {} held out (n = {})\n\n",
      setup.file.FileName(), PrintTarget(setup.spec.target), flags.confidence, n,
      FormatCount(static_cast<int64_t>(setup.prefixes[0].prompt.size())), n_decisions, n_search,
      n - n_search, FormatCount(int64_t{n - n_search} * n_decisions));
  std::fflush(stdout);
}

// Keeps a prefix's records, where a folder for them was named.
class Records {
 public:
  Records(const TuneFlags& flags, const std::vector<std::string>& argv, const Setup& setup)
      : flags_(flags), argv_(argv), setup_(setup) {}

  // Whether what is there already is of this very run, told before work begins.
  Status Check() const {
    if (flags_.records.empty()) return Status();
    for (size_t i = 0; i < setup_.prefixes.size(); ++i) {
      const std::string path = PathOf(static_cast<int>(i));
      const Result<KeptRecords> kept = ReadKept(path);
      if (!kept.ok()) return Error{kept.error()};
      if (kept->n_bytes == 0) continue;
      const Status same = CheckSameRun(kept.value(), Describe(setup_.prefixes[i]), path);
      if (!same.ok()) return same;
    }
    return Status();
  }

  Result<KeptRecords> Open(int index) {
    writer_.reset();
    kept_ = KeptRecords();
    if (flags_.records.empty()) return KeptRecords();
    const std::string path = PathOf(index);
    Result<KeptRecords> kept = ReadKept(path);
    if (!kept.ok()) return Error{kept.error()};
    kept_ = std::move(kept.value());
    run_ = Describe(setup_.prefixes[index]);
    Result<RecordWriter> writer = OpenRunRecords(path, run_, kept_);
    if (!writer.ok()) return Error{writer.error()};
    writer_ = std::move(writer.value());
    const Status status = kept_.n_bytes == 0 ? writer_->Write(run_) : Status();
    if (!status.ok()) return Error{status.error()};
    return kept_;
  }

  Status TakePrompt(const PromptRecord& prompt) {
    return writer_ && !kept_.prompt ? writer_->Write(prompt) : Status();
  }
  Status TakeRow(const CompareRow& row) {
    return writer_ ? WriteRow(*writer_, run_, row) : Status();
  }

 private:
  std::string PathOf(int index) const {
    return fmt::format("{}/prefix-{}.jsonl", flags_.records, index + 1);
  }

  RunRecord Describe(const Prefix& prefix) const {
    const SourceText& text = setup_.texts[prefix.text];
    RunRecord run = BeginRunRecord(
        "condense tune",
        {flags_.decode, setup_.file, *setup_.model, *setup_.plugin, setup_.session->n_context()},
        argv_);
    run.model_sha256 = setup_.model_sha256;
    run.offset = static_cast<int>(prefix.offset);
    run.n_generate = flags_.n_generate;
    run.text_source = text.source;
    run.text_sha256 = TextSha256(text.bytes);
    run.n_prompt = static_cast<int>(prefix.prompt.size());
    return run;
  }

  const TuneFlags& flags_;
  const std::vector<std::string>& argv_;
  const Setup& setup_;
  KeptRecords kept_;
  RunRecord run_;
  std::optional<RecordWriter> writer_;
};

std::string TrialLine(const TuneTarget& target, const TuneTrial& trial) {
  std::string line = fmt::format("prefix {}: {}: ", trial.prefix + 1, trial.policy);
  if (trial.sample.n > 0) {
    line += fmt::format("{}, read {:.1f} %", PrintFigure(target, FigureOf(target, trial.sample)),
                        100 * trial.sample.read_share);
  }
  if (!trial.reason.empty())
    return line + (trial.sample.n > 0 ? "; not met: " : "not run: ") + trial.reason + "\n";
  return line + (trial.meets ? ", goes on\n" : ", too little\n");
}

Result<TuneOutcome> RunTune(const Setup& setup, Records& records) {
  Progress progress;
  int prefix = 0;
  const size_t n = setup.prefixes.size();
  TuneEvents events;
  events.open = [&](int index) {
    prefix = index;
    return records.Open(index);
  };
  events.compare.on_prefill = [&](int n_done, int n_total) {
    progress.Update(fmt::format("dense prefill of prefix {} of {}", prefix + 1, n), n_done,
                    n_total);
  };
  events.compare.on_prompt = [&](const PromptRecord& prompt) {
    progress.Stage();
    return records.TakePrompt(prompt);
  };
  events.compare.on_steps = [&](const CompareProgress& done) {
    const std::string left =
        std::isnan(done.seconds_left)
            ? ""
            : fmt::format(", about {} left of it", FormatDuration(done.seconds_left));
    progress.Show(fmt::format("prefix {} of {}, {}{}", prefix + 1, n, done.row, left));
  };
  events.compare.on_row = [&](const CompareRow& row) {
    if (!row.warning.empty()) {
      progress.Clear();
      PrintWarning(row.warning);
    }
    return records.TakeRow(row);
  };
  events.on_trial = [&](const TuneTrial& trial) {
    progress.Clear();
    fmt::print("{}", TrialLine(setup.spec.target, trial));
    std::fflush(stdout);
  };
  return Tune(*setup.session, *setup.plugin, setup.spec, events);
}

std::string CandidateTable(const TuneTarget& target, const TuneOutcome& outcome) {
  TableColumn policy{.title = "held out", .left = true, .cells = {}},
      read{.title = "read", .cells = {}}, figure{.title = "figure", .cells = {}},
      bound{.title = "bound", .cells = {}}, meets{.title = "meets", .left = true, .cells = {}};
  for (const TuneCandidate& candidate : outcome.candidates) {
    const bool measured = candidate.sample.n > 0;
    policy.cells.push_back(candidate.policy);
    read.cells.push_back(measured ? fmt::format("{:.1f} %", 100 * candidate.sample.read_share)
                                  : "-");
    figure.cells.push_back(measured ? PrintFigure(target, FigureOf(target, candidate.sample))
                                    : "-");
    bound.cells.push_back(measured ? PrintFigure(target, candidate.bound) : "-");
    meets.cells.push_back(!candidate.reason.empty() ? "no: " + candidate.reason
                          : candidate.meets         ? "yes"
                                                    : "no");
  }
  return RenderTable({policy, read, figure, bound, meets}, OutputWidth());
}

std::string BoundWords(const TuneFlags& flags, const TuneOutcome& outcome) {
  return fmt::format(
      "bound: one-sided, {:.4g} % each, so that all {} candidates' bounds hold together with {}, "
      "if decisions were drawn from this text one by one; those of one prefix hang together, so "
      "the confidence is of this text, roughly, and of no other\n",
      100 * outcome.each_confidence, outcome.candidates.size(), flags.confidence);
}

// What dense attention in another order of summation reaches: no policy is asked for more.
std::string FloorWords(const TuneTarget& target, const TuneOutcome& outcome) {
  if (outcome.control.n == 0) return "";
  return fmt::format("noise floor: dense summed in another order is at {}\n",
                     PrintFigure(target, FigureOf(target, outcome.control)));
}

Status WriteFile(const TuneFlags& flags, const Setup& setup, const TuneOutcome& outcome) {
  const TuneCandidate& best = outcome.candidates[*outcome.best];
  const TuneTarget& target = setup.spec.target;
  PolicyProvenance made;
  made.program = "condense tune " CONDENSE_VERSION;
  made.model = setup.file.FileName();
  made.model_sha256 = setup.model_sha256;
  for (const SourceText& text : setup.texts) {
    made.text.push_back(text.source);
    made.text_sha256.push_back(TextSha256(text.bytes));
  }
  made.target = PrintTarget(target);
  made.confidence = flags.confidence;
  made.measured = fmt::format(
      "{} on {} decisions held out, bound {}; read {:.1f} % of dense's bytes at {} tokens",
      PrintFigure(target, FigureOf(target, best.sample)), best.sample.n,
      PrintFigure(target, best.bound), 100 * best.sample.read_share,
      setup.prefixes[0].prompt.size());
  return WritePolicyFile(flags.output, best.policy, made);
}

}  // namespace

int TuneCommand(const TuneFlags& flags, const std::vector<std::string>& argv) {
  Setup setup;
  if (const auto failure = SetUp(flags, setup)) return Fail(*failure);
  Records records(flags, argv, setup);
  const Status same = records.Check();
  if (!same.ok()) return Fail(kExitUsage, same.error());
  PrintHead(flags, setup);
  const Result<TuneOutcome> outcome = RunTune(setup, records);
  if (!outcome.ok()) {
    return Fail(kExitFailed, !StopRequested() ? outcome.error()
                             : flags.records.empty()
                                 ? "stopped: nothing was found"
                                 : "stopped; finished rows kept: the same command goes on");
  }
  const TuneTarget& target = setup.spec.target;
  if (outcome->candidates.empty()) {
    return Fail(
        kExitUnmet,
        fmt::format("no setting of {} up to {} of dense's bytes met {} on the part that "
                    "was searched: no policy file was written",
                    JoinNames(flags.policies), PrintPercent(kTuneLadder[7]), PrintTarget(target)));
  }
  fmt::print("\n{}{}{}", CandidateTable(target, outcome.value()),
             BoundWords(flags, outcome.value()), FloorWords(target, outcome.value()));
  if (!outcome->best) {
    return Fail(kExitUnmet, fmt::format("no candidate's bound meets {}: no policy file was written "
                                        "(more --prefixes or a larger -n narrow the bound)",
                                        PrintTarget(target)));
  }
  const Status written = WriteFile(flags, setup, outcome.value());
  if (!written.ok()) return Fail(kExitFailed, written.error());
  fmt::print("policy file: {}: {}\n", flags.output, outcome->candidates[*outcome->best].policy);
  return kExitOk;
}

}  // namespace condense
