#include "lab/guarded_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "base/top_two.h"
#include "decode/refresh.h"
#include "decode/run.h"
#include "lab/cells.h"
#include "lab/compare.h"
#include "lab/runs.h"
#include "lab/speed_pairs.h"
#include "metrics/divergence.h"
#include "metrics/teacher.h"

namespace condense {
namespace {

constexpr const char* kDense = "dense";

// A way at work, from the end of the prefill on.
class Running {
 public:
  static Result<Running> Begin(Session& session, const Plugin& plugin, const DecodingWay& way,
                               bool look_ahead) {
    const Status begun = BeginRun(session, plugin, way.spec);
    if (!begun.ok()) return Error{begun.error()};
    Running running(session);
    if (way.kind == DecodingWay::Kind::kGuard) {
      GuardOptions options;
      options.threshold = way.threshold;
      options.rewrite = way.rewrite;
      options.look_ahead = look_ahead;
      running.guard_ = std::make_unique<GuardedStepper>(session, plugin, options);
    }
    if (way.kind == DecodingWay::Kind::kRefresh) {
      running.refresh_ =
          std::make_unique<RefreshedStepper>(session, plugin, RefreshOptions{way.every});
    }
    return running;
  }

  StepFunction Steps() {
    return [this](Token token) {
      ++n_steps_;
      return guard_     ? guard_->Step(token)
             : refresh_ ? refresh_->Step(token)
                        : session_->Step(token);
    };
  }

  const GuardedStepper* guard() const { return guard_.get(); }

  // Passes through the model, whatever their rows.
  int64_t Passes() const {
    if (refresh_) return refresh_->counts().n_steps();
    if (!guard_) return n_steps_;
    const GuardCounts& n = guard_->counts();
    return n.n_taken + 2 * n.n_fallbacks + n.n_due;
  }

 private:
  explicit Running(Session& session) : session_(&session) {}
  Session* session_;
  std::unique_ptr<GuardedStepper> guard_;
  std::unique_ptr<RefreshedStepper> refresh_;
  int64_t n_steps_ = 0;
};

class WayMeasurement {
 public:
  WayMeasurement(Session& session, const Plugin& plugin, const DenseReference& reference,
                 std::span<const WayTeacher> teachers, const WaySpec& spec,
                 const std::function<void(double)>& on_share)
      : session_(session),
        plugin_(plugin),
        reference_(reference),
        teachers_(teachers),
        way_(spec.way),
        n_speed_pairs_(spec.n_speed_pairs),
        n_decisions_(static_cast<int>(reference.tokens.size()) - 1),
        on_share_(on_share) {
    n_runs_ = 1 + static_cast<int>(teachers.size()) + IsGuard() + 2 * n_speed_pairs_;
  }

  Result<WayFigures> Run() {
    Status status = Autonomous();
    if (status.ok() && way_.label == kDense &&
        !std::ranges::equal(autonomous_, reference_.decisions()))
      return Error{"dense decoding is not repeatable on this machine: two runs give other tokens"};
    for (const WayTeacher& teacher : teachers_) {
      if (status.ok()) status = Forced(teacher);
    }
    if (!status.ok()) return Error{status.error()};
    if (IsGuard()) {
      const Result<std::optional<int>> t_sig = FirstSignificantAsRun();
      if (!t_sig.ok()) return Error{t_sig.error()};
      t_sig_ = t_sig.value();
    }
    const Result<SpeedRecord> speed = Speed();
    if (!speed.ok()) return Error{speed.error()};
    const std::vector<std::string> pieces = session_.model().Pieces(autonomous_);
    for (PolicyRecord& record : figures_.teachers) {
      record.t_div = FirstDifference(reference_.decisions(), autonomous_);
      record.t_sig = t_sig_;
      record.autonomous_tokens = autonomous_;
      record.autonomous_text = pieces;
      record.speed = speed.value();
    }
    return std::move(figures_);
  }

 private:
  bool IsGuard() const { return way_.kind == DecodingWay::Kind::kGuard; }

  Result<Running> Begin(bool look_ahead) {
    return Running::Begin(session_, plugin_, way_, look_ahead);
  }

  void Tick() {
    on_share_(static_cast<double>(++n_ticks_) / static_cast<double>(n_runs_ * n_decisions_));
  }

  Status Autonomous() {
    Result<Running> running = Begin(true);
    if (!running.ok()) return Error{running.error()};
    const Result<std::vector<Token>> tokens =
        GreedyRun(running->Steps(), reference_.first(), n_decisions_, [&](int, Logits) { Tick(); });
    if (!tokens.ok()) return Error{tokens.error()};
    autonomous_ = tokens.value();
    if (running->guard() != nullptr) figures_.autonomous = running->guard()->counts();
    return Status();
  }

  Status Forced(const WayTeacher& teacher) {
    Result<Running> running = Begin(false);
    if (!running.ok()) return Error{running.error()};
    const auto n_vocab = static_cast<size_t>(session_.model().n_vocab());
    GuardTally tally;
    tally.teacher = teacher.name;
    std::vector<TeacherStep> steps;
    const Status forced =
        TeacherForcedRun(running->Steps(), teacher.history, [&](int decision, Logits logits) {
          const size_t at = static_cast<size_t>(decision) - 1;
          steps.push_back(
              CompareStep(decision, teacher.targets[at],
                          std::span(teacher.dense_logits).subspan(at * n_vocab, n_vocab), logits));
          const bool was_dense = running->guard() != nullptr && running->guard()->last_was_dense();
          ++tally.n;
          tally.n_fallbacks += was_dense;
          tally.n_differ += !was_dense && steps.back().token_sparse != teacher.dense_tokens[at];
          Tick();
        });
    if (!forced.ok()) return forced;
    const CounterSnapshot counters = plugin_.Counters();
    const Status measured = CheckCounters(way_.label, way_.sparse, counters);
    if (!measured.ok()) return measured;
    if (way_.sparse && counters.total.sparse_steps == 0) figures_.was_sparse = false;
    if (IsGuard()) figures_.tallies.push_back(tally);
    if (teacher.name == "greedy" && !IsGuard()) t_sig_ = Significant(teacher, steps);
    AddRecord(teacher, steps, counters, running->Passes());
    return Status();
  }

  static std::optional<int> Significant(const WayTeacher& teacher,
                                        const std::vector<TeacherStep>& steps) {
    std::vector<Token> tokens;
    for (const TeacherStep& step : steps) tokens.push_back(step.token_sparse);
    return FirstSignificantDifference(teacher.dense_tokens, tokens, teacher.dense_margins);
  }

  // Look-ahead makes more steps dense, so the run that parts is asked for once more.
  Result<std::optional<int>> FirstSignificantAsRun() {
    Result<Running> running = Begin(true);
    if (!running.ok()) return Error{running.error()};
    const WayTeacher& greedy = teachers_.front();
    std::vector<Token> tokens;
    const Status forced =
        TeacherForcedRun(running->Steps(), greedy.history, [&](int, Logits logits) {
          tokens.push_back(GreedyToken(logits));
          Tick();
        });
    if (!forced.ok()) return Error{forced.error()};
    return FirstSignificantDifference(greedy.dense_tokens, tokens, greedy.dense_margins);
  }

  void AddRecord(const WayTeacher& teacher, const std::vector<TeacherStep>& steps,
                 const CounterSnapshot& counters, int64_t n_passes) {
    const StepCounts& total = counters.total;
    PolicyRecord record;
    record.policy = way_.label;
    record.name = PolicyName(way_.label);
    record.spec = way_.spec;
    record.teacher = teacher.name;
    record.n_prompt = reference_.prompt.n_prompt;
    record.figures = SummariseTeacher(steps);
    // Nothing observes these runs.
    record.figures.omitted_mass_mean = record.figures.omitted_mass_max =
        std::numeric_limits<double>::quiet_NaN();
    const auto n_layers = std::count_if(counters.layers.begin(), counters.layers.end(),
                                        [](const condense_layer_counters& layer) {
                                          StepCounts counts;
                                          counts.Add(layer);
                                          return counts.steps() > 0;
                                        });
    // A pass of several rows is in no counter; it reads what a dense step reads.
    const double n_counted =
        static_cast<double>(total.steps()) / std::max(1.0, static_cast<double>(n_layers));
    const double uncounted = std::max(0.0, static_cast<double>(n_passes) - n_counted);
    Count(counters, record);
    record.kv_read_share = (total.ReadShare() * n_counted + uncounted) / n_decisions_;
    figures_.teachers.push_back(std::move(record));
  }

  Result<SpeedRecord> Speed() {
    if (n_speed_pairs_ == 0) return SpeedRecord();
    DecodingWay dense;
    dense.label = dense.spec = kDense;
    const auto block = [&](const DecodingWay& way) -> Result<double> {
      Result<Running> running = Running::Begin(session_, plugin_, way, /*look_ahead=*/true);
      if (!running.ok()) return Error{running.error()};
      const Result<double> seconds =
          TimedGreedy(running->Steps(), reference_.first(), n_decisions_);
      if (!seconds.ok()) return seconds;
      n_ticks_ += n_decisions_ - 1;
      Tick();
      return seconds.value() / (n_decisions_ - 1);
    };
    return TimePairs(
        n_speed_pairs_, [&] { return block(dense); }, [&] { return block(way_); });
  }

  Session& session_;
  const Plugin& plugin_;
  const DenseReference& reference_;
  const std::span<const WayTeacher> teachers_;
  const DecodingWay& way_;
  const int n_speed_pairs_, n_decisions_;
  const std::function<void(double)>& on_share_;
  int64_t n_runs_ = 0, n_ticks_ = 0;
  std::vector<Token> autonomous_;
  std::optional<int> t_sig_;
  WayFigures figures_;
};

Status MakeDense(Session& session, const Plugin& plugin, WayTeacher& teacher) {
  const Status begun = BeginRun(session, plugin, kDense);
  if (!begun.ok()) return begun;
  return TeacherForcedRun(session, teacher.history, [&](int, Logits logits) {
    teacher.dense_logits.insert(teacher.dense_logits.end(), logits.begin(), logits.end());
    const TopTwo top = FindTopTwo(logits);
    teacher.dense_tokens.push_back(top.token);
    teacher.dense_margins.push_back(top.margin);
  });
}

}  // namespace

Result<std::vector<WayTeacher>> MakeTeachers(Session& session, const Plugin& plugin,
                                             DenseReference& reference,
                                             std::span<const Token> continuation) {
  const size_t n_decisions = reference.decisions().size();
  std::vector<WayTeacher> teachers(1);
  WayTeacher& greedy = teachers[0];
  greedy.name = "greedy";
  greedy.history.assign(reference.tokens.begin(), reference.tokens.end() - 1);
  greedy.targets.assign(reference.tokens.begin() + 1, reference.tokens.end());
  CONDENSE_CHECK(reference.decision_logits.size() ==
                 n_decisions * static_cast<size_t>(session.model().n_vocab()));
  greedy.dense_logits = std::move(reference.decision_logits);
  greedy.dense_tokens = greedy.targets;
  greedy.dense_margins = reference.margins;
  if (!continuation.empty()) {
    CONDENSE_CHECK(continuation.size() > n_decisions);
    WayTeacher text;
    text.name = "text";
    const auto begin = continuation.begin(), end = begin + static_cast<std::ptrdiff_t>(n_decisions);
    text.history.assign(begin, end);
    text.targets.assign(begin + 1, end + 1);
    const Status made = MakeDense(session, plugin, text);
    if (!made.ok()) return Error{made.error()};
    teachers.push_back(std::move(text));
  }
  return teachers;
}

Result<WayFigures> MeasureWay(Session& session, const Plugin& plugin,
                              const DenseReference& reference, std::span<const WayTeacher> teachers,
                              const WaySpec& spec,
                              const std::function<void(double share)>& on_share) {
  CONDENSE_CHECK(!teachers.empty() && teachers[0].name == "greedy");
  return WayMeasurement(session, plugin, reference, teachers, spec, on_share).Run();
}

}  // namespace condense
