// Guarded and refreshed decoding in the lab: thresholds are calibrated on some texts as `condense
// calibrate` does it (lab/guard_trial.h), and the guard then decodes others: what it
// redoes, how often a token that it takes is not dense's, beside what was promised; where its text
// parts from dense's, its speed. Refreshed and plain sparse decoding stand beside it.
#include "decode/guard.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/text.h"
#include "lab/cells.h"
#include "lab/compare.h"
#include "lab/experiment.h"
#include "lab/guard_table.h"
#include "lab/guard_trial.h"
#include "lab/guarded_run.h"
#include "lab/lab_records.h"
#include "lab/prefix_spec.h"

namespace condense {
namespace {

constexpr const char* kDefaultSpec =
    R"(# Guarded decoding on texts that it was not calibrated on; refreshed decoding beside it.
experiment = "guard"

# GGUF files. -m on the command line takes their place; none: the default model.
models = []

# What thresholds are calibrated on: files of plain text (paths, or names within --texts or beside
# this spec), and tokens of a text before each prefix. The first of every four prefixes is searched
# on, the others are held out; certifying 1 % takes 299 decisions held out.
calibrate_texts = ["wikitext-2-raw-test.txt"]
calibrate_offsets = [0, 12000, 24000, 36000, 48000, 60000, 72000, 84000]

# What is decoded then, likewise. No prefix may be one that was calibrated on.
texts = ["wikitext-2-raw-test.txt", "war-and-peace.txt"]
offsets = [100000, 200000]

# Tokens of a prefix, of both kinds.
contexts = [2000]

# Tokens after a prefix: the first by the dense prefill, the others decisions.
tokens = 128

# Policies to guard. Dense and the control (dense in another summation order) are always there, and
# each policy as it is.
policies = ["condense:budget=5%", "mean:budget=8%"]

# Promised shares of decisions whose token is taken and is not dense's, and with what confidence.
risks = [0.01, 0.05]
confidence = 0.95

# What the promise is of: "greedy", dense's continuation; "text", the text's own next tokens, which
# are harder; "both".
on = "greedy"

# Whether a redone step also rewrites the rows of the sparse steps before it.
rewrite = false

# R of refreshed decoding: every R-th step is dense and rewrites the rows before it. None: [].
refresh = [4, 8, 16, 32]

# Pairs of a dense and another run of all decisions, in turns, a cell; 0: no timing.
speed_pairs = 1
)";

constexpr const char* kName = "guard";
constexpr const char* kDense = "dense";

class Guard : public Experiment {
 public:
  void Read(SpecReader& spec) override {
    prefixes_ = ReadPrefixSpec(spec);
    calibrate_ = prefixes_;
    calibrate_.texts = spec.Texts("calibrate_texts");
    calibrate_.offsets = spec.Ints("calibrate_offsets", 0, int64_t{1} << 30);
    policies_ = spec.Policies("policies");
    risks_ = spec.Numbers("risks", 0.0001, 0.5);
    confidence_ = spec.Number("confidence", 0.5, 0.9999);
    on_ = spec.Choice("on", {"greedy", "text", "both"});
    rewrite_ = spec.Flag("rewrite");
    refresh_ = spec.Ints("refresh", 2, 512, 0);
    n_speed_pairs_ = static_cast<int>(spec.Int("speed_pairs", 0, 1000));
    if (!spec.ok()) return;
    if (prefixes_.n_generate < 3)
      spec.Fail("tokens", "makes fewer than two decisions: give 3 or more");
    const int64_t n_held_out =
        HeldOutDecisions(calibrate_.texts.size() * calibrate_.offsets.size(), prefixes_.n_generate);
    for (double risk : risks_) {
      if (n_held_out > 0 && MostThatMayDiffer(risk, n_held_out, confidence_) >= 0) continue;
      spec.Fail("risks",
                fmt::format("{} decisions held out cannot certify {}: without a single difference "
                            "it takes {}; give more calibrate_offsets or tokens",
                            n_held_out, PrintPercent(risk), LeastDecisions(risk, confidence_)));
    }
  }

  Result<std::vector<Cell>> Plan(LabModel& model) override {
    Status status = CheckRowsCanBeRemoved(model.model());
    if (!status.ok()) return Error{status.error()};
    std::vector<std::string> policies;
    for (const std::string& policy : policies_) {
      const Result<std::string> canonical = model.Canonical(policy);
      if (!canonical.ok()) return Error{canonical.error()};
      if (IsDense(canonical.value()))
        return Error{"policy dense reads everything: there is nothing to guard"};
      if (std::find(policies.begin(), policies.end(), canonical.value()) == policies.end())
        policies.push_back(canonical.value());
    }
    const Result<std::vector<LabPrefix>> calibrate = PlanPrefixes(model, calibrate_);
    if (!calibrate.ok()) return Error{calibrate.error()};
    Result<std::vector<LabPrefix>> prefixes = PlanPrefixes(model, prefixes_);
    if (!prefixes.ok()) return Error{prefixes.error()};
    status = CheckApart(calibrate.value(), prefixes.value());
    if (!status.ok()) return Error{status.error()};

    std::vector<Cell> cells;
    const Json calibration = CalibrationParameters(calibrate.value());
    for (int64_t context : prefixes_.contexts) {
      for (const std::string& policy : policies)
        PlanCalibration(model, calibrate.value(), calibration, context, policy, cells);
    }
    for (LabPrefix& prefix : prefixes.value())
      PlanPrefix(model, std::move(prefix), calibration, policies, cells);
    return cells;
  }

  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    const auto calibration = calibrations_.find(cells[0].group);
    return calibration != calibrations_.end() ? Calibrate(run, calibration->second, cells)
                                              : Measure(run, groups_.at(cells[0].group), cells);
  }

 private:
  // One policy at one context.
  struct Calibration {
    std::string policy;
    std::vector<GuardPrefix> prefixes;
    std::map<std::string, double> risks;  // by cell
  };
  struct PlannedWay {
    DecodingWay way;
    double risk = 0;          // of a guard
    std::string calibration;  // its cell
  };
  struct Planned {
    LabPrefix prefix;
    std::vector<std::string> policies;
    std::map<std::string, PlannedWay> ways;  // by cell
    std::string dense_cell;
  };

  bool OnText() const { return on_ != "greedy"; }

  // No decoded prefix shares tokens with one that was calibrated on, nor do two of these at one
  // context.
  static Status CheckApart(const std::vector<LabPrefix>& calibrate,
                           const std::vector<LabPrefix>& prefixes) {
    const auto end = [](const LabPrefix& of) {
      return of.offset + of.context + static_cast<int64_t>(of.continuation.size());
    };
    const auto share = [&](const LabPrefix& a, const LabPrefix& b) {
      return a.text_sha256 == b.text_sha256 && a.offset < end(b) && b.offset < end(a);
    };
    for (size_t i = 0; i < calibrate.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const LabPrefix &a = calibrate[j], &b = calibrate[i];
        if (a.context != b.context || !share(a, b)) continue;
        return Error{fmt::format(
            "calibrate_offsets: text {} from token {} to {} and {} from {} to {} share tokens, so "
            "their decisions are no sample of their own: give offsets further apart in the spec",
            Quote(a.text), a.offset, end(a), Quote(b.text), b.offset, end(b))};
      }
    }
    for (const LabPrefix& prefix : prefixes) {
      for (const LabPrefix& other : calibrate) {
        if (!share(prefix, other)) continue;
        return Error{fmt::format(
            "offsets: text {} from token {} to {} shares tokens with what is calibrated on, from "
            "{} to {}: give other offsets or calibrate_offsets in the spec",
            Quote(prefix.text), prefix.offset, end(prefix), other.offset, end(other))};
      }
    }
    return Status();
  }

  // What a threshold depends on beside model, context, policy and risk.
  Json CalibrationParameters(const std::vector<LabPrefix>& prefixes) const {
    std::vector<std::string> texts;
    for (const LabPrefix& prefix : prefixes) {
      const std::string text = prefix.shared["text"];
      if (texts.empty() || texts.back() != text) texts.push_back(text);
    }
    return {{"calibrate_texts", fmt::format("{}", fmt::join(texts, ","))},
            {"calibrate_offsets", fmt::format("{}", fmt::join(calibrate_.offsets, ","))},
            {"confidence", confidence_},
            {"on", on_},
            {"rewrite", rewrite_}};
  }

  static Json CalibrationShared(const LabModel& model, const Json& calibration, int64_t context,
                                int n_generate, const std::string& policy) {
    Json shared = model.Parameters();
    shared["context"] = context;
    shared["tokens"] = n_generate;
    shared.update(calibration);
    shared["policy"] = "calibration of " + policy;
    return shared;
  }

  void PlanCalibration(const LabModel& model, const std::vector<LabPrefix>& prefixes,
                       const Json& calibration, int64_t context, const std::string& policy,
                       std::vector<Cell>& cells) {
    Calibration own;
    own.policy = policy;
    int n_rows = 0;
    for (const LabPrefix& prefix : prefixes) {
      if (prefix.context != context) continue;
      own.prefixes.push_back({prefix.prompt, prefix.continuation});
      n_rows = std::max(n_rows, prefix.n_rows);
    }
    const Json shared =
        CalibrationShared(model, calibration, context, prefixes_.n_generate, policy);
    for (double risk : risks_) {
      cells.push_back(MakeCell(kName, shared, {{"risk", risk}}, n_rows));
      own.risks[cells.back().id] = risk;
    }
    calibrations_[cells.back().group] = std::move(own);
  }

  void PlanPrefix(const LabModel& model, LabPrefix prefix, const Json& calibration,
                  const std::vector<std::string>& policies, std::vector<Cell>& cells) {
    prefix.shared["tokens"] = prefixes_.n_generate;
    prefix.shared["on"] = on_;
    prefix.shared["speed_pairs"] = n_speed_pairs_;
    Planned planned;
    planned.policies = policies;
    const auto add = [&](const PlannedWay& way, const Json& own) {
      Json parameters{{"policy", way.way.label}};
      parameters.update(own);
      cells.push_back(MakeCell(kName, prefix.shared, parameters, prefix.n_rows));
      cells.back().memory.n_logits = int64_t{OnText() ? 2 : 1} * prefixes_.n_generate;
      planned.ways[cells.back().id] = way;
    };
    const auto plain = [&](const std::string& label, const std::string& spec, bool sparse) {
      PlannedWay way;
      way.way.label = label;
      way.way.spec = spec;
      way.way.sparse = sparse;
      return way;
    };
    add(plain(kDense, kDense, false), Json::object());
    planned.dense_cell = cells.back().id;
    add(plain("control", kControlSpec, false), Json::object());
    for (const std::string& policy : policies) {
      add(plain(policy, policy, true), Json::object());
      const Json shared =
          CalibrationShared(model, calibration, prefix.context, prefixes_.n_generate, policy);
      for (double risk : risks_) {
        PlannedWay way =
            plain(fmt::format("guard {} of {}", PrintPercent(risk), policy), policy, true);
        way.way.kind = DecodingWay::Kind::kGuard;
        way.way.rewrite = rewrite_;
        way.risk = risk;
        way.calibration = MakeCell(kName, shared, {{"risk", risk}}, 0).id;
        Json own = calibration;
        own.erase("on");
        own.update({{"of", policy}, {"risk", risk}});
        add(way, own);
      }
      for (int64_t every : refresh_) {
        PlannedWay way = plain(fmt::format("refresh {} of {}", every, policy), policy, true);
        way.way.kind = DecodingWay::Kind::kRefresh;
        way.way.every = static_cast<int>(every);
        add(way, {{"of", policy}, {"every", every}});
      }
    }
    const std::string group = cells.back().group;
    planned.prefix = std::move(prefix);
    groups_[group] = std::move(planned);
  }

  // Leaves the session behind another prefill.
  Result<std::vector<RiskTrial>> Try(GroupRun& run, Session& session, const Calibration& planned,
                                     std::span<const double> risks) const {
    return TryRisks(session, run.plugin(), SpecOf(planned), planned.prefixes, risks,
                    [&](size_t prefix, const std::string& what, int n_done, int n_total) {
                      run.Preparing(fmt::format("calibrating on prefix {} of {}: {}", prefix + 1,
                                                planned.prefixes.size(), what),
                                    n_done, n_total);
                    });
  }

  CalibrateSpec SpecOf(const Calibration& planned) const {
    CalibrateSpec spec;
    spec.policy = planned.policy;
    spec.n_generate = prefixes_.n_generate;
    spec.on_greedy = on_ != "text";
    spec.on_text = OnText();
    spec.rewrite = rewrite_;
    spec.confidence = confidence_;
    return spec;
  }

  Status Calibrate(GroupRun& run, const Calibration& planned, std::span<const Cell> cells) {
    const Clock::time_point start = Clock::now();
    const Result<Session*> session = run.OpenSession();
    if (!session.ok()) return Error{session.error()};
    std::vector<double> risks;
    for (const Cell& cell : cells) risks.push_back(planned.risks.at(cell.id));
    const Result<std::vector<RiskTrial>> trials = Try(run, *session.value(), planned, risks);
    if (!trials.ok()) return Error{trials.error()};
    const double seconds = SecondsSince(start) / static_cast<double>(cells.size());
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::vector<Json> lines = TrialLines(trials.value()[i], SpecOf(planned));
      thresholds_[cells[i].id] = ReadThreshold(lines);
      CellRecord end;
      end.policy = cells[i].parameters["policy"];
      end.name = PolicyName(end.policy);
      end.seconds = seconds;
      const Status written = run.Finish(cells[i], lines, end);
      if (!written.ok()) return written;
    }
    return Status();
  }

  // Of this process, or of an earlier run; null: not known.
  const GuardThreshold* FindThreshold(GroupRun& run, const std::string& calibration) {
    if (!thresholds_.contains(calibration)) {
      const FinishedCell* kept = run.Kept(calibration);
      if (kept == nullptr) return nullptr;
      thresholds_[calibration] = ReadThreshold(kept->lines);
    }
    return &thresholds_[calibration];
  }

  // Thresholds that another rank found, or is about to, are found here once more: the same, since
  // they depend on the spec alone.
  Status FindThresholds(GroupRun& run, Session& session, const Planned& planned,
                        std::span<const Cell> cells) {
    for (const Cell& cell : cells) {
      const std::string& calibration = planned.ways.at(cell.id).calibration;
      if (calibration.empty() || FindThreshold(run, calibration) != nullptr) continue;
      const auto of =
          std::find_if(calibrations_.begin(), calibrations_.end(),
                       [&](const auto& known) { return known.second.risks.contains(calibration); });
      CONDENSE_CHECK(of != calibrations_.end());
      const double risk = of->second.risks.at(calibration);
      run.Working(cell, 0);
      const Result<std::vector<RiskTrial>> trials = Try(run, session, of->second, {&risk, 1});
      if (!trials.ok()) return Error{"its calibration failed: " + trials.error()};
      thresholds_[calibration] = ReadThreshold(TrialLines(trials.value()[0], SpecOf(of->second)));
    }
    return Status();
  }

  Status Measure(GroupRun& run, const Planned& planned, std::span<const Cell> cells) {
    const Result<Session*> opened = run.OpenSession();
    if (!opened.ok()) return Error{opened.error()};
    Session& session = *opened.value();
    const Status found = FindThresholds(run, session, planned, cells);
    if (!found.ok()) return found;
    Result<DenseReference> reference = DecodeReference(run, session, planned.prefix,
                                                       {.policies = planned.policies,
                                                        .n_tokens = prefixes_.n_generate,
                                                        .keep_logits = true,
                                                        .dense_cell = planned.dense_cell});
    if (!reference.ok()) return Error{reference.error()};
    const Result<std::vector<WayTeacher>> teachers =
        MakeTeachers(session, run.plugin(), reference.value(),
                     OnText() ? planned.prefix.continuation : std::vector<Token>());
    if (!teachers.ok()) return Error{teachers.error()};
    for (const Cell& cell : cells) {
      const Clock::time_point start = Clock::now();
      const PlannedWay& way = planned.ways.at(cell.id);
      WaySpec spec{way.way, n_speed_pairs_};
      const GuardThreshold* threshold = nullptr;
      if (!way.calibration.empty()) {
        threshold = FindThreshold(run, way.calibration);
        CONDENSE_CHECK(threshold != nullptr);
        spec.way.threshold = threshold->logits;
      }
      run.Working(cell, 0);
      const Result<WayFigures> figures =
          MeasureWay(session, run.plugin(), reference.value(), teachers.value(), spec,
                     [&](double share) { run.Working(cell, share); });
      if (!figures.ok()) return Error{figures.error()};
      std::vector<Json> lines = LinesOf(run, figures.value(), way, threshold);
      if (cell.id == planned.dense_cell)
        lines.insert(lines.begin(), PromptLine(planned.prefix, reference->prompt));
      CellRecord end;
      end.policy = way.way.label;
      end.name = PolicyName(way.way.label);
      if (!figures->was_sparse) {
        lines.clear();
        end.state = "unmet";
        end.reason = "the budget cannot be met at this depth: every step was dense";
      }
      end.seconds = SecondsSince(start);
      const Status written = run.Finish(cell, lines, end);
      if (!written.ok()) return written;
    }
    return Status();
  }

  std::vector<Json> LinesOf(GroupRun& run, const WayFigures& figures, const PlannedWay& way,
                            const GuardThreshold* threshold) const {
    std::vector<Json> lines;
    for (PolicyRecord record : figures.teachers) {
      record.model = run.model().FileName();
      record.model_sha256 = run.model().sha256();
      lines.push_back(ToJson(record));
    }
    for (const GuardTally& tally : figures.tallies) {
      // A promise made of one teacher's decisions says nothing of the other's.
      const bool promised = on_ == "both" || on_ == tally.teacher;
      lines.push_back({{"record", "guard"},
                       {"policy", way.way.label},
                       {"spec", way.way.spec},
                       {"risk", way.risk},
                       {"threshold", threshold->logits},
                       {"bound", threshold->bound},
                       {"certified", threshold->certified && promised},
                       {"teacher", tally.teacher},
                       {"n_decisions", tally.n},
                       {"n_differ", tally.n_differ},
                       {"n_fallbacks", tally.n_fallbacks},
                       {"autonomous_steps", figures.autonomous.n_steps()},
                       {"autonomous_fallbacks", figures.autonomous.n_fallbacks},
                       {"autonomous_ahead", figures.autonomous.n_ahead},
                       {"autonomous_changed", figures.autonomous.n_changed}});
    }
    return lines;
  }

  PrefixSpec prefixes_, calibrate_;
  std::vector<std::string> policies_;
  std::vector<double> risks_;
  std::vector<int64_t> refresh_;
  double confidence_ = 0;
  std::string on_;
  bool rewrite_ = false;
  int n_speed_pairs_ = 0;
  std::map<std::string, Calibration> calibrations_;  // by group
  std::map<std::string, Planned> groups_;
  std::map<std::string, GuardThreshold> thresholds_;  // by calibration's cell
};

CONDENSE_REGISTER_EXPERIMENT(
    guard,
    ExperimentInfo{.name = kName,
                   .title = "guarded decoding on texts that it was not calibrated on",
                   .repeats = "nothing; refreshed decoding is that of arXiv 2506.04108 on a model "
                              "that was not trained for it",
                   .default_spec = kDefaultSpec,
                   .make = [] { return std::make_unique<Guard>(); },
                   .tables = GuardTables});

}  // namespace
}  // namespace condense
