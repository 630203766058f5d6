#include "lab/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/clock.h"
#include "decode/rewritten.h"
#include "decode/run.h"
#include "lab/budget_check.h"
#include "lab/costs.h"
#include "lab/observation.h"
#include "lab/row_map.h"
#include "lab/runs.h"
#include "lab/speed_pairs.h"
#include "metrics/logits.h"

namespace condense {
namespace {

// A teacher: the history that is fed, the tokens it wants, and what dense attention makes of it.
struct Teacher {
  std::string name;
  std::vector<Token> history;       // fed at decisions 1 …
  std::vector<Token> targets;       // wanted at decisions 1 …
  std::vector<float> dense_logits;  // [n_decisions, n_vocab]
  std::vector<Token> dense_tokens;  // greedy on this history
  std::vector<double> dense_margins;

  Logits DenseLogits(int decision, int n_vocab) const {
    return Logits(dense_logits).subspan(static_cast<size_t>(decision - 1) * n_vocab, n_vocab);
  }
  void Keep(Logits logits) {
    dense_logits.insert(dense_logits.end(), logits.begin(), logits.end());
    dense_tokens.push_back(GreedyToken(logits));
    dense_margins.push_back(FindTopTwo(logits).margin);
  }
};

class Comparison {
 public:
  Comparison(Session& session, const Plugin& plugin, const CompareSpec& spec,
             const CompareEvents& events)
      : session_(session),
        plugin_(plugin),
        spec_(spec),
        events_(events),
        n_decisions_(spec.n_generate - 1),
        n_vocab_(session.model().n_vocab()) {
    CONDENSE_CHECK(spec.n_generate >= 2 && !spec.prompt.empty());
    has_text_ = spec.text_continuation.size() >= static_cast<size_t>(spec.n_generate);
    for (const CellRecord& cell : spec.finished) AddCost(cell, /*recorded=*/true, costs_);
  }

  Status Run() {
    Status status = Prefill();
    if (!status.ok()) return status;
    n_rows_ = static_cast<int>(spec_.cells.size()) + 2;
    for (const char* baseline : kBaselines) {
      if (!IsFinished(baseline)) pending_.emplace_back(baseline);
    }
    n_left_ = static_cast<int>(pending_.size());
    for (const CompareCell& cell : spec_.cells) {
      if (spec_.next_cell || IsFinished(cell.policy)) continue;
      ++n_left_;
      if (cell.unmet.empty()) pending_.push_back(cell.name);
    }
    status = DenseRow();
    if (!status.ok()) return status;
    if (!IsFinished("control")) {
      const CompareCell control{.policy = "control", .name = "control"};
      BeginRow(control, 1 + static_cast<int>(teachers_.size()), /*timed=*/true);
      status = PolicyRow(control, kControlSpec, /*sparse=*/false);
      if (!status.ok()) return status;
    }
    if (spec_.next_cell) return ChosenRows();
    for (const CompareCell& cell : spec_.cells) {
      if (IsFinished(cell.policy)) continue;
      status = CellRow(cell);
      if (!status.ok()) return status;
    }
    return Status();
  }

 private:
  Status ChosenRows() {
    while (const CompareCell* cell = spec_.next_cell()) {
      const Status status = CellRow(*cell);
      if (!status.ok()) return status;
    }
    return Status();
  }

  bool IsFinished(const std::string& policy) const {
    return std::any_of(spec_.finished.begin(), spec_.finished.end(),
                       [&](const CellRecord& cell) { return cell.policy == policy; });
  }

  // `n_runs`: over all decisions.
  void BeginRow(const CompareCell& cell, int n_runs, bool timed) {
    row_ = cell;
    row_start_ = Clock::now();
    n_done_ = 0;
    n_total_ = int64_t{n_runs} * n_decisions_;
    if (timed) n_total_ += int64_t{2} * spec_.n_speed_pairs * (spec_.speed_block_steps + 1);
    if (n_left_ == 0 || IsFinished(cell.policy)) return;
    --n_left_;
    if (cell.unmet.empty()) pending_.erase(pending_.begin());
  }

  void StepDone(int n = 1) {
    n_done_ += n;
    if (!events_.on_steps) return;
    const double share = static_cast<double>(n_done_) / static_cast<double>(n_total_);
    const int n_left = n_left_ + (IsFinished(row_.policy) ? 0 : 1);
    events_.on_steps(
        {row_.policy, n_rows_ - n_left, n_rows_, share,
         EstimateLeft(costs_, {row_.name, SecondsSince(row_start_)}, share, pending_)});
  }

  Status EndRow(CompareRow& row) {
    row.cell.policy = row_.policy;
    row.cell.name = row_.name;
    row.cell.budget = row_.budget;
    row.cell.seconds = SecondsSince(row_start_);
    AddCost(row.cell, /*recorded=*/false, costs_);
    return events_.on_row(row);
  }

  // A policy's row; where its budget cannot be met, a row that says so.
  Status CellRow(const CompareCell& cell) {
    BeginRow(cell, 1 + static_cast<int>(teachers_.size()), /*timed=*/true);
    BudgetCheck check{cell.unmet, cell.least_budget};
    if (cell.solves_budget) {
      const Result<BudgetCheck> checked = CheckBudget(session_, plugin_, first_token_, cell);
      if (!checked.ok()) return Error{checked.error()};
      check = checked.value();
    }
    if (check.unmet.empty()) return PolicyRow(cell, cell.Spec(), /*sparse=*/!IsDense(cell.policy));
    CompareRow row;
    row.cell.state = "unmet";
    row.cell.reason = check.unmet;
    row.cell.least_budget = check.least;
    return EndRow(row);
  }

  Status Prefill() {
    // With next_cell too: any of the cells may be asked for.
    std::vector<std::string> to_run;
    for (const CompareCell& cell : spec_.cells) {
      if (!IsFinished(cell.policy) && cell.unmet.empty()) to_run.push_back(cell.Spec());
    }
    const Result<DensePrefillResult> prefill =
        DensePrefill(session_, plugin_, spec_.prompt, to_run, events_.on_prefill);
    if (!prefill.ok()) return Error{prefill.error()};
    prompt_.prefill_seconds = prefill->seconds;
    const condense_counters counters = plugin_.Counters().process;
    if (counters.nodes == 0) {
      return Error{fmt::format(
          "the plug-in is loaded but idle: it saw no attention of this model ({} declined "
          "by shape or type). There is nothing to compare",
          counters.declined)};
    }
    first_token_ = GreedyToken(prefill->logits);
    prompt_.n_prompt = static_cast<int>(spec_.prompt.size());
    prompt_.first_token = first_token_;
    prompt_.first_token_text = session_.model().Pieces({first_token_})[0];
    return Status();
  }

  Status DenseRow() {
    const bool is_finished = IsFinished("dense");
    BeginRow({.policy = "dense", .name = "dense"}, has_text_ ? 2 : 1, /*timed=*/!is_finished);
    CompareRow row;
    Teacher greedy;
    greedy.name = "greedy";
    Status status = BeginRun(session_, plugin_, "dense");
    if (!status.ok()) return status;
    const Result<std::vector<Token>> tokens =
        GreedyRun(session_, first_token_, n_decisions_, [&](int, Logits logits) {
          greedy.Keep(logits);
          StepDone();
        });
    if (!tokens.ok()) return Error{tokens.error()};
    greedy.targets = tokens.value();
    greedy.history = FedTokens(first_token_, tokens.value());
    prompt_.dense_tokens = {first_token_};
    prompt_.dense_tokens.insert(prompt_.dense_tokens.end(), tokens->begin(), tokens->end());
    prompt_.dense_text = session_.model().Pieces(prompt_.dense_tokens);
    status = CheckKeptPrompt();
    if (!status.ok()) return status;
    status = events_.on_prompt(prompt_);
    if (!status.ok()) return status;
    status = AddDenseTeacher(std::move(greedy), row);
    if (!status.ok()) return status;

    if (has_text_) {
      Teacher text;
      text.name = "text";
      text.history.assign(spec_.text_continuation.begin(),
                          spec_.text_continuation.begin() + n_decisions_);
      text.targets.assign(spec_.text_continuation.begin() + 1,
                          spec_.text_continuation.begin() + spec_.n_generate);
      status = BeginRun(session_, plugin_, "dense");
      if (!status.ok()) return status;
      status = TeacherForcedRun(session_, text.history, [&](int, Logits logits) {
        text.Keep(logits);
        StepDone();
      });
      if (!status.ok()) return status;
      status = AddDenseTeacher(std::move(text), row);
      if (!status.ok()) return status;
    }
    if (is_finished) return Status();
    const Result<SpeedRecord> speed = Speed("dense");
    if (!speed.ok()) return Error{speed.error()};
    for (PolicyRecord& record : row.teachers) record.speed = speed.value();
    return EndRow(row);
  }

  // What was finished was compared with these very tokens.
  Status CheckKeptPrompt() const {
    if (!spec_.kept_prompt) return Status();
    const std::vector<int>& kept = spec_.kept_prompt->dense_tokens;
    if (kept == prompt_.dense_tokens) return Status();
    const auto [was, is] = std::mismatch(kept.begin(), kept.end(), prompt_.dense_tokens.begin(),
                                         prompt_.dense_tokens.end());
    return Error{fmt::format(
        "dense attention gives other tokens than the records say, from number {} on: decoding is "
        "not repeatable between that run and this one; begin anew with another --records file",
        is - prompt_.dense_tokens.begin() + 1)};
  }

  // The dense row of one teacher: dense against itself, from the run that just ended.
  Status AddDenseTeacher(Teacher teacher, CompareRow& row) {
    const CounterSnapshot counters = plugin_.Counters();
    Status status = CheckCounters("dense", false, counters);
    if (!status.ok()) return status;
    std::vector<TeacherStep> steps;
    for (int decision = 1; decision <= n_decisions_; ++decision) {
      const Logits logits = teacher.DenseLogits(decision, n_vocab_);
      steps.push_back(CompareStep(decision, teacher.targets[decision - 1], logits, logits));
    }
    AddRecords("dense", "dense", teacher, steps, counters, {}, row);
    row.teachers.back().autonomous_tokens = {prompt_.dense_tokens.begin() + 1,
                                             prompt_.dense_tokens.end()};
    row.teachers.back().autonomous_text = {prompt_.dense_text.begin() + 1,
                                           prompt_.dense_text.end()};
    teachers_.push_back(std::move(teacher));
    return Status();
  }

  // BeginRow was called for it.
  Status PolicyRow(const CompareCell& cell, const std::string& policy_spec, bool sparse) {
    const std::string& name = cell.policy;
    CompareRow row;
    RewrittenSteps rewritten(session_);
    const StepFunction decode = [&](Token token) {
      return cell.rewrite_rows ? rewritten.Step(token) : session_.Step(token);
    };
    Status status = BeginRun(session_, plugin_, policy_spec);
    if (!status.ok()) return status;
    const Result<std::vector<Token>> autonomous =
        GreedyRun(decode, first_token_, n_decisions_, [&](int, Logits) { StepDone(); });
    if (!autonomous.ok()) return Error{autonomous.error()};
    const CounterSnapshot unobserved = plugin_.Counters();
    status = CheckCounters(name, sparse, unobserved);
    if (!status.ok()) return status;
    const std::optional<int> t_div = FirstDifference(teachers_[0].targets, autonomous.value());

    std::optional<int> t_sig, first_forced;
    for (const Teacher& teacher : teachers_) {
      status = BeginRun(session_, plugin_, policy_spec);
      if (!status.ok()) return status;
      std::vector<TeacherStep> steps;
      std::map<int, ObservedMass::Layer> layers;
      {
        ObservedMass mass;
        std::optional<RowMap> rows;
        if (sparse && &teacher == &teachers_.back()) rows.emplace(prompt_.n_prompt, n_decisions_);
        const ScopedObserver observer(plugin_, [&](std::span<const condense_observation> node) {
          mass.Take(node.data(), node.size());
          if (!rows) return;
          for (const condense_observation& seen : node) rows->Take(seen);
        });
        status = TeacherForcedRun(decode, teacher.history, [&](int decision, Logits logits) {
          steps.push_back(CompareStep(decision, teacher.targets[decision - 1],
                                      teacher.DenseLogits(decision, n_vocab_), logits));
          const ObservedMass::Decision omitted = mass.EndDecision();
          steps.back().omitted_mass = omitted.mean;
          steps.back().omitted_mass_max = omitted.max;
          if (rows) rows->EndDecision();
          StepDone();
        });
        layers = mass.Layers();
        if (rows) row.map = rows->Record(name, teacher.name);
      }
      if (!status.ok()) return status;
      const CounterSnapshot counters = plugin_.Counters();
      status = CheckCounters(name, sparse, counters);
      if (!status.ok()) return status;
      AddRecords(name, policy_spec, teacher, steps, counters, layers, row);
      if (teacher.name == "greedy") {
        std::vector<Token> tokens;
        tokens.reserve(steps.size());
        for (const TeacherStep& step : steps) tokens.push_back(step.token_sparse);
        first_forced = FirstDifference(teacher.dense_tokens, tokens);
        t_sig = FirstSignificantDifference(teacher.dense_tokens, tokens, teacher.dense_margins);
      }
    }
    // Until they part both runs have the same history, so they must part at the same decision.
    if (t_div != first_forced) {
      row.warning = fmt::format(
          "{}: the autonomous and the teacher-forced run part at unlike decisions "
          "({} and {}): decoding is not repeatable on this machine",
          name, t_div.value_or(0), first_forced.value_or(0));
    }
    const Result<SpeedRecord> speed = Speed(policy_spec);
    if (!speed.ok()) return Error{speed.error()};
    const std::vector<std::string> pieces = session_.model().Pieces(autonomous.value());
    for (PolicyRecord& record : row.teachers) {
      record.t_div = t_div;
      record.t_sig = t_sig;
      record.name = cell.name;
      record.budget = cell.budget;
      if (sparse) record.select_share = SelectShare(unobserved.process);
      record.speed = speed.value();
      record.autonomous_tokens = autonomous.value();
      record.autonomous_text = pieces;
    }
    return EndRow(row);
  }

  static std::optional<double> SelectShare(const condense_counters& counters) {
    const uint64_t all = counters.select_ns + counters.attend_ns;
    if (all == 0) return std::nullopt;
    return static_cast<double>(counters.select_ns) / static_cast<double>(all);
  }

  void AddRecords(const std::string& name, const std::string& policy_spec, const Teacher& teacher,
                  const std::vector<TeacherStep>& steps, const CounterSnapshot& counters,
                  const std::map<int, ObservedMass::Layer>& layers, CompareRow& row) const {
    PolicyRecord record;
    record.policy = name;
    record.name = PolicyName(name);
    record.spec = policy_spec;
    record.teacher = teacher.name;
    record.n_prompt = prompt_.n_prompt;
    record.figures = SummariseTeacher(steps);
    Count(counters, record);
    row.teachers.push_back(std::move(record));
    for (const TeacherStep& step : steps) row.steps.push_back({name, teacher.name, step});
    for (size_t layer = 0; layer < counters.layers.size(); ++layer) {
      StepCounts counts;
      counts.Add(counters.layers[layer]);
      if (counts.steps() == 0) continue;  // no attention in this layer
      LayerRecord out;
      out.policy = name;
      out.teacher = teacher.name;
      out.layer = static_cast<int>(layer);
      if (const auto seen = layers.find(static_cast<int>(layer)); seen != layers.end()) {
        out.omitted_mass_mean = seen->second.mass_mean;
        out.omitted_mass_max = seen->second.mass_max;
        out.bound_mean = seen->second.bound_mean;
        out.omitted_mass_heads = seen->second.head_means;
      }
      out.read_share = counts.ReadShare();
      out.unique_rows = static_cast<double>(counts.unique_rows) /
                        static_cast<double>(counts.steps()) /
                        static_cast<double>(std::max<uint64_t>(counters.process.n_kv_heads, 1));
      row.layers.push_back(std::move(out));
    }
  }

  // Blocks of steps at the prefill's depth, dense and `policy_spec` in turns.
  Result<SpeedRecord> Speed(const std::string& policy_spec) {
    const int n_steps = std::min(spec_.speed_block_steps, std::max(1, n_decisions_ - 1));
    const auto block = [&](const std::string& spec) {
      const Result<double> seconds =
          TimePolicyBlock(session_, plugin_, spec, teachers_[0].history, n_steps);
      StepDone(spec_.speed_block_steps + 1);
      return seconds;
    };
    return TimePairs(
        spec_.n_speed_pairs, [&] { return block("dense"); }, [&] { return block(policy_spec); });
  }

  Session& session_;
  const Plugin& plugin_;
  const CompareSpec& spec_;
  const CompareEvents& events_;
  const int n_decisions_, n_vocab_;
  bool has_text_ = false;
  Token first_token_ = 0;
  PromptRecord prompt_;
  std::vector<Teacher> teachers_;
  CompareCell row_;  // at work
  Clock::time_point row_start_;
  int64_t n_done_ = 0, n_total_ = 0;  // steps of the row
  int n_rows_ = 0, n_left_ = 0;       // in all; after the row at work
  std::vector<std::string> pending_;  // names of those of them that are to run
  CostHistory costs_;
};

}  // namespace

void Count(const CounterSnapshot& counters, PolicyRecord& record) {
  const StepCounts& total = counters.total;
  const auto number = [](uint64_t n) { return static_cast<double>(std::max<uint64_t>(n, 1)); };
  const double n_steps = number(total.steps());
  record.kv_read_share = total.ReadShare();
  record.k_bytes = total.k_bytes;
  record.v_bytes = total.v_bytes;
  record.summary_bytes = total.summary_bytes;
  record.dense_bytes = total.dense_bytes;
  record.unique_rows_per_kv_head =
      static_cast<double>(total.unique_rows) / n_steps / number(counters.process.n_kv_heads);
  record.nominal_rows_per_query_head =
      static_cast<double>(total.nominal_rows) / n_steps / number(counters.process.n_query_heads);
  record.visible_rows = static_cast<double>(total.visible_rows) / n_steps;
  record.sparse_steps = total.sparse_steps;
  record.dense_steps = total.dense_steps;
  record.rebuilds = counters.process.rebuilds;
  record.fallbacks = FallbackCounts(counters.process);
}

Status CheckCounters(const std::string& policy, bool sparse, const CounterSnapshot& counters) {
  const StepCounts& total = counters.total;
  if (total.steps() == 0) {
    return Error{
        fmt::format("{}: the plug-in computed no decode step: it is loaded but idle", policy)};
  }
  if (!sparse || total.sparse_steps > 0) return Status();
  if (total.fallback_steps == 0) {
    return Error{
        fmt::format("{}: {} decode steps ran dense and none sparse: the policy was not in force",
                    policy, total.dense_steps)};
  }
  const uint64_t allowed = counters.process.fallbacks[CONDENSE_FALLBACK_SHORT] +
                           counters.process.fallbacks[CONDENSE_FALLBACK_LAYER] +
                           counters.process.fallbacks[CONDENSE_FALLBACK_BUDGET];
  if (allowed == total.fallback_steps) return Status();
  std::string reasons;
  for (int reason = 0; reason < CONDENSE_FALLBACK_COUNT; ++reason) {
    if (const uint64_t n = counters.process.fallbacks[reason]) {
      reasons += fmt::format("{}{} {}", reasons.empty() ? "" : ", ", FallbackName(reason), n);
    }
  }
  return Error{fmt::format("{}: no step left rows out; {} fell back to dense attention ({})",
                           policy, total.fallback_steps, reasons)};
}

Status Compare(Session& session, const Plugin& plugin, const CompareSpec& spec,
               const CompareEvents& events) {
  return Comparison(session, plugin, spec, events).Run();
}

}  // namespace condense
