// `condense calibrate`: texts to prefixes, what the search and the trials found as tables, a
// calibration file for --mode guard.
#include <condense_version.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "app/calibrate_records.h"
#include "app/commands.h"
#include "app/exit_code.h"
#include "app/machine.h"
#include "app/output.h"
#include "app/output_file.h"
#include "app/policy_check.h"
#include "app/session_setup.h"
#include "app/table.h"
#include "base/text.h"
#include "decode/sha256.h"
#include "decode/stop.h"
#include "lab/calibrate.h"
#include "lab/cells.h"
#include "lab/guard_file.h"

namespace condense {
namespace {

constexpr double kFallbackRates[] = {0.02, 0.05, 0.10, 0.20};

struct CalibratedPrefix {
  GuardPrefix tokens;
  bool held_out = false;
};

// Everything that must be right before work begins.
struct Setup : DecodeParts {
  std::vector<SourceText> texts;
  std::vector<CalibratedPrefix> prefixes;
  CalibrateSpec spec;
  GuardSetting setting;
  int64_t n_held_out = 0;  // decisions a teacher
};

// Prompts of each part in even steps from --from to --prompt-tokens: their beginnings are cut off.
Status SpreadLengths(int64_t from, bool add_bos, Setup& setup) {
  const auto longest = static_cast<int64_t>(setup.prefixes[0].tokens.prompt.size());
  if (from == 0) from = longest;
  if (from > longest) {
    return Error{fmt::format("--from {}: the prompts have {} tokens: give fewer", from, longest)};
  }
  for (const bool held_out : {false, true}) {
    std::vector<GuardPrefix*> part;
    for (CalibratedPrefix& prefix : setup.prefixes) {
      if (prefix.held_out == held_out) part.push_back(&prefix.tokens);
    }
    const auto n = static_cast<int64_t>(part.size());
    if (held_out && n < 2 && from < longest)
      return Error{"--from needs two prefixes held out at least: give more --prefixes"};
    for (int64_t i = 0; i < n; ++i) {
      const int64_t length = n == 1 ? longest : from + (longest - from) * i / (n - 1);
      std::vector<Token>& prompt = part[i]->prompt;
      prompt.erase(prompt.begin() + add_bos, prompt.begin() + add_bos + (longest - length));
    }
  }
  setup.setting.from = static_cast<int>(from);
  setup.setting.to = static_cast<int>(longest) + setup.spec.n_generate;
  return Status();
}

Status CutIntoPrefixes(const CalibrateFlags& flags, Setup& setup) {
  const Result<std::vector<Prefix>> prefixes =
      CutTexts(*setup.model, flags.decode, setup.texts,
               {flags.n_prefixes, flags.prompt_tokens, flags.n_generate});
  if (!prefixes.ok()) return Error{prefixes.error()};
  for (size_t i = 0; i < prefixes->size(); ++i) {
    const Prefix& prefix = prefixes.value()[i];
    setup.prefixes.push_back({{prefix.prompt, prefix.continuation}, IsHeldOut(i)});
  }
  setup.n_held_out = HeldOutDecisions(prefixes->size(), flags.n_generate);
  if (MostThatMayDiffer(setup.spec.risk, setup.n_held_out, setup.spec.confidence) < 0) {
    return Error{fmt::format(
        "{} decisions held out cannot certify a risk of {} with confidence {}: without a single "
        "difference it takes {}: give more --prefixes or a larger -n",
        FormatCount(setup.n_held_out), flags.risk, flags.confidence,
        FormatCount(LeastDecisions(setup.spec.risk, setup.spec.confidence)))};
  }
  return SpreadLengths(flags.from, setup.model->add_bos(), setup);
}

Status ReadFlags(const CalibrateFlags& flags, Setup& setup) {
  if (flags.n_generate < 3)
    return Error{fmt::format("-n {} leaves fewer than two decisions a prefix: give 3 or more",
                             flags.n_generate)};
  const Result<double> risk = ParseShare(flags.risk, 0.01, 50);
  if (!risk.ok()) return Error{"--risk " + risk.error()};
  const Result<double> confidence = ReadConfidence(flags.confidence);
  if (!confidence.ok()) return Error{confidence.error()};
  setup.spec.n_generate = flags.n_generate;
  setup.spec.risk = risk.value();
  setup.spec.confidence = confidence.value();
  setup.spec.rewrite = flags.rewrite == "on";
  setup.spec.on_greedy = flags.on != "text";
  setup.spec.on_text = flags.on != "greedy";
  return CheckWritable(flags.output, "calibration file");
}

std::optional<Failure> SetUp(const CalibrateFlags& flags, Setup& setup) {
  const Status read = ReadFlags(flags, setup);
  if (!read.ok()) return Failure{kExitUsage, read.error()};
  Result<std::vector<SourceText>> texts = FindTexts(flags.decode, flags.files);
  if (!texts.ok()) return Failure{kExitUsage, texts.error()};
  setup.texts = std::move(texts.value());
  if (const auto failure = setup.Find(flags.decode)) return failure;
  const Result<std::string> policy = flags.policy.empty()
                                         ? Result<std::string>(setup.plugin->Policy())
                                         : setup.plugin->SetPolicy(flags.policy);
  if (!policy.ok()) return Failure{kExitUsage, policy.error()};
  if (IsDense(policy.value()))
    return Failure{kExitUsage, "policy dense reads everything: there is nothing to guard"};
  setup.spec.policy = policy.value();
  const std::string asked = AskedForPolicy(flags.policy);
  const Status checked = WarnOfOtherModels({&asked, 1}, setup.file);
  if (!checked.ok()) return Failure{kExitUsage, checked.error()};
  if (const auto failure = setup.LoadModel()) return failure;
  Status status = CheckRowsCanBeRemoved(*setup.model);
  if (status.ok()) status = CutIntoPrefixes(flags, setup);
  if (!status.ok()) return Failure{kExitUsage, status.error()};
  const int n_context = ContextFor(flags.decode, setup.setting.to);
  if (const auto failure = setup.Open(flags.decode, n_context, 0)) return failure;
  const Result<std::string> sha256 = setup.file.Sha256();
  if (!sha256.ok()) return Failure{kExitFailed, sha256.error()};
  GuardSetting& setting = setup.setting;
  setting.model = setup.file.FileName();
  setting.model_sha256 = sha256.value();
  setting.policy = setup.spec.policy;
  setting.k_type = flags.decode.k_type;
  setting.v_type = flags.decode.v_type;
  setting.rewrite = setup.spec.rewrite;
  return std::nullopt;
}

void PrintHead(const CalibrateFlags& flags, const Setup& setup) {
  const auto n = static_cast<int>(setup.prefixes.size());
  const int n_search = CountSearched(n);
  fmt::print(
      "{}, policy {}, risk {}, confidence {}\n{} prefixes, contexts of {} to {} tokens, {} "
      "decisions each on {}: {} to search on, {} held out (n = {} each)\n\n",
      setup.setting.model, setup.spec.policy, flags.risk, flags.confidence, n,
      FormatCount(setup.setting.from), FormatCount(setup.setting.to), flags.n_generate - 1,
      flags.on == "both"   ? "the text and on dense's own continuation"
      : flags.on == "text" ? "the text"
                           : "dense's own continuation",
      n_search, n - n_search, FormatCount(setup.n_held_out));
  std::fflush(stdout);
}

// How the records of this very run begin.
Json Identity(const CalibrateFlags& flags, const Setup& setup) {
  Json texts = Json::array();
  for (const SourceText& text : setup.texts) texts.push_back(TextSha256(text.bytes));
  const GuardSetting& s = setup.setting;
  return {{"record", "calibrate"},
          {"version", CONDENSE_VERSION},
          {"commit", CONDENSE_COMMIT},
          {"model_sha256", s.model_sha256},
          {"policy", s.policy},
          {"k_type", s.k_type},
          {"v_type", s.v_type},
          {"rewrite", s.rewrite},
          {"from", s.from},
          {"to", s.to},
          {"n_generate", flags.n_generate},
          {"prefixes", flags.n_prefixes},
          {"risk", flags.risk},
          {"confidence", flags.confidence},
          {"on", flags.on},
          {"texts_sha256", texts}};
}

// The work, prefix by prefix.
class Calibration {
 public:
  Calibration(const Setup& setup, CalibrateRecords& records) : setup_(setup), records_(records) {
    events_.on_prefill = [&](int n_done, int n_total) {
      Show("dense prefill", n_done, n_total, 0);
    };
    events_.on_steps = [&](const std::string& what, int n_done, int n_total) {
      Show(what, n_done, n_total, kPrefillShare);
    };
  }

  Result<std::vector<GuardSample>> Search() {
    const Work<SearchedPrefix> work = {
        [&](int index) { return records_.Searched(index); }, SearchedFromJson,
        [&](const GuardPrefix& tokens) {
          return SearchPrefix(*setup_.session, *setup_.plugin, setup_.spec, tokens, events_);
        },
        [&](int index, Json found) { return records_.WriteSearched(index, std::move(found)); }};
    const Result<std::vector<SearchedPrefix>> searched = ForEach(false, work);
    if (!searched.ok()) return Error{searched.error()};
    return SamplesTogether(searched.value());
  }

  Result<std::vector<TriedPrefix>> Try(const std::vector<double>& thresholds) {
    const Work<TriedPrefix> work = {
        [&](int index) { return records_.Tried(index, thresholds); }, TriedFromJson,
        [&](const GuardPrefix& tokens) {
          return TryPrefix(*setup_.session, *setup_.plugin, setup_.spec, tokens, thresholds,
                           events_);
        },
        [&](int index, Json found) {
          return records_.WriteTried(index, thresholds, std::move(found));
        }};
    return ForEach(true, work);
  }

 private:
  // Of a prefix's time the prefill takes about so much.
  static constexpr double kPrefillShare = 0.6;

  // What is done with the prefixes of one part.
  template <typename Found>
  struct Work {
    std::function<const Json*(int index)> kept;  // null: nothing
    std::function<Result<Found>(const Json&)> read;
    std::function<Result<Found>(const GuardPrefix&)> measure;
    std::function<Status(int index, Json)> write;
  };

  template <typename Found>
  Result<std::vector<Found>> ForEach(bool held_out, const Work<Found>& work) {
    std::vector<Found> all;
    for (size_t i = 0; i < setup_.prefixes.size(); ++i) {
      if (setup_.prefixes[i].held_out != held_out) continue;
      at_ = static_cast<int>(i);
      const Json* kept = work.kept(at_);
      Result<Found> found = kept ? work.read(*kept) : work.measure(setup_.prefixes[i].tokens);
      if (!found.ok()) return Error{(kept ? records_.path() + ": " : "") + found.error()};
      const Status written = kept ? Status() : work.write(at_, ToJson(found.value()));
      if (!written.ok()) return Error{written.error()};
      all.push_back(std::move(found.value()));
      n_kept_ += kept != nullptr;
      ++n_finished_;
    }
    progress_.Clear();
    return all;
  }

  // In thousandths of a prefix; what an earlier run measured took no time.
  void Show(const std::string& what, int n_done, int n_total, double share_before) {
    const double part = static_cast<double>(n_done) / n_total;
    const double of_prefix =
        share_before + part * (share_before > 0 ? 1 - share_before : kPrefillShare);
    const auto n = static_cast<int64_t>(setup_.prefixes.size());
    progress_.Update(fmt::format("prefix {} of {}, {}", at_ + 1, n, what),
                     static_cast<int64_t>(1000 * (n_finished_ - n_kept_ + of_prefix)) + 1,
                     1000 * (n - n_kept_) + 1);
  }

  const Setup& setup_;
  CalibrateRecords& records_;
  CalibrateEvents events_;
  Progress progress_;
  int at_ = 0, n_finished_ = 0, n_kept_ = 0;
};

std::string Percent(double share) { return fmt::format("{:.2f} %", 100 * share); }

// Whether omitted mass would tell better than the margin which steps to redo.
std::string FeatureTable(const std::vector<GuardSample>& samples) {
  TableColumn name{.title = "redo by", .left = true, .cells = {}};
  for (GuardFeature feature : kGuardFeatures) name.cells.emplace_back(FeatureName(feature));
  std::vector<TableColumn> columns = {name};
  for (double rate : kFallbackRates) {
    TableColumn column{.title = fmt::format("{:.0f} % redone", 100 * rate), .cells = {}};
    for (GuardFeature feature : kGuardFeatures)
      column.cells.push_back(Percent(RiskAtFallbackRate(samples, feature, rate)));
    columns.push_back(column);
  }
  size_t n = 0, n_differ = 0;
  for (const GuardSample& sample : samples) {
    n += sample.decisions.size();
    for (const GuardDecision& decision : sample.decisions) n_differ += !decision.equal;
  }
  return fmt::format(
      "searched: of {} sparse decisions {} differ; risk left where the worst are redone, with "
      "hindsight\n{}the margin comes with a sparse step; omitted mass takes attention to every "
      "row, as a dense step does\n\n",
      n, n_differ, RenderTable(columns, OutputWidth()));
}

double SpeedOverDense(const std::vector<TriedPrefix>& tried, size_t candidate) {
  double dense = 0, guard = 0;
  for (const TriedPrefix& prefix : tried) {
    dense += prefix.dense_seconds;
    guard += prefix.seconds[candidate];
  }
  return guard > 0 ? dense / guard : 0;
}

std::string TrialTable(const std::vector<double>& thresholds,
                       const std::vector<std::vector<GuardTally>>& tallies,
                       const std::vector<TriedPrefix>& tried, double risk) {
  TableColumn threshold{.title = "threshold", .cells = {}},
      teacher{.title = "on", .left = true, .cells = {}}, redone{.title = "redone", .cells = {}},
      differ{.title = "differ", .cells = {}}, bound{.title = "bound", .cells = {}},
      speed{.title = "over dense", .cells = {}}, meets{.title = "meets", .left = true, .cells = {}};
  for (size_t i = 0; i < thresholds.size(); ++i) {
    for (const GuardTally& tally : tallies[i]) {
      threshold.cells.push_back(PrintNumber(thresholds[i]));
      teacher.cells.push_back(tally.teacher);
      redone.cells.push_back(
          Percent(static_cast<double>(tally.n_fallbacks) / static_cast<double>(tally.n)));
      differ.cells.push_back(fmt::format("{} of {}", tally.n_differ, tally.n));
      bound.cells.push_back(Percent(tally.bound));
      speed.cells.push_back(fmt::format("{:.2f}", SpeedOverDense(tried, i)));
      meets.cells.push_back(tally.bound <= risk ? "yes" : "no");
    }
  }
  return RenderTable({threshold, teacher, redone, differ, bound, speed, meets}, OutputWidth());
}

GuardCalibration Describe(const Setup& setup, double threshold,
                          const std::vector<GuardTally>& tallies, double speed) {
  GuardCalibration made;
  made.program = "condense calibrate " CONDENSE_VERSION;
  made.setting = setup.setting;
  made.threshold = threshold;
  made.risk = setup.spec.risk;
  made.confidence = setup.spec.confidence;
  made.certified = tallies;
  made.speed_over_dense = std::round(100 * speed) / 100;
  for (const SourceText& text : setup.texts) {
    made.text.push_back(text.source);
    made.text_sha256.push_back(TextSha256(text.bytes));
  }
  return made;
}

int Stopped(const CalibrateFlags& flags, const std::string& error) {
  return Fail(kExitFailed, !StopRequested() ? error
                           : flags.records.empty()
                               ? "stopped: nothing was written"
                               : "stopped; finished prefixes kept: the same command goes on");
}

}  // namespace

int CalibrateCommand(const CalibrateFlags& flags) {
  Setup setup;
  if (const auto failure = SetUp(flags, setup)) return Fail(*failure);
  Result<CalibrateRecords> records = CalibrateRecords::Open(flags.records, Identity(flags, setup));
  if (!records.ok()) return Fail(kExitUsage, records.error());
  PrintHead(flags, setup);
  Calibration calibration(setup, records.value());
  const Result<std::vector<GuardSample>> samples = calibration.Search();
  if (!samples.ok()) return Stopped(flags, samples.error());
  fmt::print("{}", FeatureTable(samples.value()));
  std::fflush(stdout);
  const std::vector<double> thresholds =
      ChooseCandidates(samples.value(), setup.spec.risk, setup.n_held_out, setup.spec.confidence);
  const Result<std::vector<TriedPrefix>> tried = calibration.Try(thresholds);
  if (!tried.ok()) return Stopped(flags, tried.error());
  const auto tallies = TalliesTogether(tried.value(), setup.spec.confidence);
  fmt::print(
      "held out, the guard at each threshold (logits), from the largest down until one fails:\n"
      "{}differ: taken though dense decides otherwise; bound: one-sided, Clopper-Pearson, {} "
      "if decisions were drawn one by one; those of one prefix hang together\n",
      TrialTable(thresholds, tallies, tried.value(), setup.spec.risk), flags.confidence);
  const std::optional<size_t> best = Certified(tallies, setup.spec.risk);
  if (!best) {
    return Fail(kExitUnmet,
                fmt::format("no threshold certifies a risk of {} with {}: no calibration file was "
                            "written (more --prefixes or a larger -n narrow the bound)",
                            flags.risk, setup.spec.policy));
  }
  const GuardCalibration made =
      Describe(setup, thresholds[*best], tallies[*best], SpeedOverDense(tried.value(), *best));
  const Status written = WriteWholeFile(flags.output, "calibration file", PrintCalibration(made));
  if (!written.ok()) return Fail(kExitFailed, written.error());
  fmt::print("calibration file: {}: threshold {} logits, bound {}, {} redone\n", flags.output,
             PrintNumber(made.threshold), Percent(made.bound()), Percent(made.fallback_rate()));
  return kExitOk;
}

}  // namespace condense
