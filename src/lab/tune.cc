#include "lab/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/text.h"
#include "metrics/stats.h"

namespace condense {
namespace {

constexpr int kRungs = static_cast<int>(std::size(kTuneLadder));
// What a row may read beyond its budget: sizes of blocks, and of a policy that adds what is
// decoded.
constexpr double kReadSlack = 1.1, kReadExtra = 0.005;

const PolicyRecord* OfText(const CompareRow& row) {
  for (const PolicyRecord& record : row.teachers) {
    if (record.teacher == "text") return &record;
  }
  return nullptr;
}

// Why a row says nothing about its budget.
std::string WhyNone(const CompareRow& row, double budget) {
  const PolicyRecord* record = OfText(row);
  if (record == nullptr) return row.cell.reason.empty() ? "not run" : row.cell.reason;
  if (record->kv_read_share <= kReadSlack * budget + kReadExtra) return "";
  return fmt::format("it read {:.1f} % where {} were asked for", 100 * record->kv_read_share,
                     PrintPercent(budget));
}

class Tuner {
 public:
  Tuner(Session& session, const Plugin& plugin, const TuneSpec& spec, const TuneEvents& events)
      : session_(session), plugin_(plugin), spec_(spec), events_(events) {
    rungs_.assign(spec.policies.size(), 0);
    int64_t n_prefixes = 0;
    for (const TunePrefix& prefix : spec.prefixes) n_prefixes += prefix.held_out;
    n_held_out_ = n_prefixes * (spec.n_generate - 1);
  }

  Result<TuneOutcome> Run() {
    for (size_t i = 0; i < spec_.prefixes.size(); ++i) {
      if (spec_.prefixes[i].held_out) continue;
      const Status status = Search(static_cast<int>(i));
      if (!status.ok()) return Error{status.error()};
    }
    ChooseCandidates();
    if (outcome_.candidates.empty()) return std::move(outcome_);
    std::vector<std::vector<TuneSample>> samples(outcome_.candidates.size());
    for (size_t i = 0; i < spec_.prefixes.size(); ++i) {
      if (!spec_.prefixes[i].held_out) continue;
      const Status status = Look(static_cast<int>(i), samples);
      if (!status.ok()) return Error{status.error()};
    }
    outcome_.control = Together(controls_);
    Certify(samples);
    return std::move(outcome_);
  }

 private:
  // Asks `next` for cells until it has none, and hands every row to it; rows of an earlier run are
  // not run again, and where they suffice nothing is.
  using Next = std::function<const CompareCell*()>;
  using Take = std::function<void(const CompareRow&)>;
  Status RunPrefix(int index, const Next& next, const Take& take) {
    Result<KeptRecords> records = events_.open(index);
    if (!records.ok()) return Error{records.error()};
    const std::vector<CompareRow>& kept = records->rows;
    const auto find = [&](const std::string& policy) {
      return std::find_if(kept.begin(), kept.end(),
                          [&](const CompareRow& row) { return row.cell.policy == policy; });
    };
    bool has_control = false;
    for (const CompareRow& row : kept) {
      if (row.cell.policy != "control") continue;
      has_control = true;
      take(row);
    }
    const auto next_to_run = [&] {
      const CompareCell* cell = next();
      for (auto row = kept.end(); cell != nullptr; cell = next()) {
        if (row = find(cell->policy); row == kept.end()) return cell;
        take(*row);
      }
      return cell;
    };
    const CompareCell* first = next_to_run();
    if (first == nullptr && has_control) return Status();
    CompareSpec compare;
    const TunePrefix& prefix = spec_.prefixes[index];
    compare.prompt = prefix.prompt;
    compare.text_continuation = prefix.continuation;
    compare.n_generate = spec_.n_generate;
    compare.n_speed_pairs = 0;
    compare.kept_prompt = records->prompt;
    for (const auto& cells : spec_.policies)
      compare.cells.insert(compare.cells.end(), cells.begin(), cells.end());
    for (const CompareRow& row : kept) compare.finished.push_back(row.cell);
    bool is_first = true;
    compare.next_cell = [&] { return std::exchange(is_first, false) ? first : next_to_run(); };
    CompareEvents events = events_.compare;
    events.on_row = [&](const CompareRow& row) {
      take(row);
      return events_.compare.on_row ? events_.compare.on_row(row) : Status();
    };
    return Compare(session_, plugin_, compare, events);
  }

  Status Search(int index) {
    std::vector<RungSearch> searches;
    for (int rung : rungs_) searches.emplace_back(kRungs, rung);
    size_t at = 0;  // the policy at work
    const Next next = [&]() -> const CompareCell* {
      for (; at < searches.size(); ++at) {
        const int rung = searches[at].Next();
        if (rung >= 0) return &spec_.policies[at][rung];
      }
      return nullptr;
    };
    const Take take = [&](const CompareRow& row) {
      if (IsBaseline(row.cell.policy)) return;
      const int rung = searches[at].Next();
      TuneTrial trial;
      trial.policy = row.cell.policy;
      trial.prefix = index;
      trial.reason = WhyNone(row, kTuneLadder[rung]);
      if (const PolicyRecord* record = OfText(row)) {
        trial.sample = SampleOf(*record);
        trial.bound = BoundOf(spec_.target, trial.sample, spec_.confidence, n_held_out_);
        trial.meets = trial.reason.empty() && Meets(spec_.target, trial.bound);
      }
      searches[at].Tell(rung, trial.meets);
      if (events_.on_trial) events_.on_trial(trial);
    };
    const Status status = RunPrefix(index, next, take);
    if (!status.ok()) return status;
    for (size_t i = 0; i < searches.size(); ++i) rungs_[i] = searches[i].Result();
    return Status();
  }

  void ChooseCandidates() {
    for (int rung = 0; rung < kRungs; ++rung) {
      for (size_t i = 0; i < rungs_.size(); ++i) {
        if (rungs_[i] >= kRungs || (rung != rungs_[i] && rung != rungs_[i] + 1)) continue;
        outcome_.candidates.emplace_back();
        outcome_.candidates.back().policy = spec_.policies[i][rung].policy;
        outcome_.candidates.back().budget = kTuneLadder[rung];
        cells_.push_back(&spec_.policies[i][rung]);
      }
    }
  }

  Status Look(int index, std::vector<std::vector<TuneSample>>& samples) {
    size_t at = 0;
    const Next next = [&] { return at < cells_.size() ? cells_[at] : nullptr; };
    const Take take = [&](const CompareRow& row) {
      const PolicyRecord* record = OfText(row);
      if (row.cell.policy == "dense") return;
      if (row.cell.policy == "control") {
        if (record != nullptr) controls_.push_back(SampleOf(*record));
        return;
      }
      TuneCandidate& candidate = outcome_.candidates[at];
      if (candidate.reason.empty()) candidate.reason = WhyNone(row, candidate.budget);
      if (record != nullptr) samples[at].push_back(SampleOf(*record));
      ++at;
    };
    return RunPrefix(index, next, take);
  }

  void Certify(const std::vector<std::vector<TuneSample>>& samples) {
    const auto n = static_cast<double>(outcome_.candidates.size());
    outcome_.each_confidence = 1 - (1 - spec_.confidence) / n;
    for (size_t i = 0; i < outcome_.candidates.size(); ++i) {
      TuneCandidate& candidate = outcome_.candidates[i];
      candidate.sample = Together(samples[i]);
      if (candidate.sample.n == 0) continue;
      candidate.bound =
          BoundOf(spec_.target, candidate.sample, outcome_.each_confidence, candidate.sample.n);
      candidate.meets = candidate.reason.empty() && Meets(spec_.target, candidate.bound);
      const auto& candidates = outcome_.candidates;
      if (candidate.meets && (!outcome_.best || candidate.sample.read_share <
                                                    candidates[*outcome_.best].sample.read_share))
        outcome_.best = i;
    }
  }

  Session& session_;
  const Plugin& plugin_;
  const TuneSpec& spec_;
  const TuneEvents& events_;
  int64_t n_held_out_ = 0;
  std::vector<int> rungs_;  // by policy: the least rung that no search prefix speaks against
  std::vector<const CompareCell*> cells_;  // of the candidates
  std::vector<TuneSample> controls_;
  TuneOutcome outcome_;
};

// From the standard error of a mean over n values.
double Squares(double standard_error, int64_t n) {
  if (n < 2 || std::isnan(standard_error)) return 0;
  return standard_error * standard_error * static_cast<double>(n) * static_cast<double>(n - 1);
}

double UpperBound(double mean, double squares, int64_t n_seen, double z, int64_t n) {
  if (n_seen < 2) return std::numeric_limits<double>::infinity();
  const double variance = squares / static_cast<double>(n_seen - 1);
  return mean + z * std::sqrt(variance / static_cast<double>(n));
}

}  // namespace

Result<TuneTarget> ParseTarget(std::string_view text) {
  const size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1);
  const Error wrong{"--target " + Quote(text) +
                    " is no target: write tf=99% (share of equal decisions, above 0% and below "
                    "100%), kl=0.01 (nats, above 0) or ppl=2% (increase, above 0%)"};
  TuneTarget target;
  if (name == "kl") {
    target.kind = TuneTarget::Kind::kKl;
    const Result<double> nats = ParseNumber(value);
    if (!nats.ok() || nats.value() <= 0) return wrong;
    target.value = nats.value();
    return target;
  }
  const Result<double> percent = ParsePercent(value);
  if (!percent.ok() || percent.value() <= 0) return wrong;
  target.value = percent.value() / 100;
  if (name == "ppl") {
    target.kind = TuneTarget::Kind::kPpl;
    return target;
  }
  if (name != "tf" || target.value >= 1) return wrong;
  return target;
}

std::string PrintTarget(const TuneTarget& target) {
  const std::string percent = PrintPercent(target.value);
  switch (target.kind) {
    case TuneTarget::Kind::kMatch:
      return "tf=" + percent;
    case TuneTarget::Kind::kKl:
      return "kl=" + PrintNumber(target.value);
    case TuneTarget::Kind::kPpl:
      return "ppl=" + percent;
  }
  return "";
}

std::string PrintFigure(const TuneTarget& target, double figure) {
  switch (target.kind) {
    case TuneTarget::Kind::kMatch:
      return fmt::format("{:.2f} %", 100 * figure);
    case TuneTarget::Kind::kKl:
      return fmt::format("{:.4g}", figure);
    case TuneTarget::Kind::kPpl:
      return fmt::format("{:+.2f} %", 100 * figure);
  }
  return "";
}

TuneSample SampleOf(const PolicyRecord& record) {
  const TeacherFigures& figures = record.figures;
  TuneSample sample;
  sample.n = figures.n_decisions;
  sample.n_match = std::llround(figures.match * static_cast<double>(sample.n));
  sample.kl = figures.kl_mean;
  sample.kl_squares = Squares(figures.kl_stderr, sample.n);
  sample.nll = std::log(figures.ppl_ratio);
  const double width = std::log(figures.ppl_interval.high) - std::log(figures.ppl_interval.low);
  sample.nll_squares = Squares(width / (2 * kZ95), sample.n);
  sample.read_share = record.kv_read_share;
  return sample;
}

TuneSample Together(std::span<const TuneSample> samples) {
  TuneSample all;
  for (const TuneSample& sample : samples) {
    const auto n = static_cast<double>(sample.n);
    all.n += sample.n;
    all.n_match += sample.n_match;
    all.kl += n * sample.kl;
    all.nll += n * sample.nll;
    all.read_share += n * sample.read_share;
  }
  if (all.n == 0) return all;
  all.kl /= static_cast<double>(all.n);
  all.nll /= static_cast<double>(all.n);
  all.read_share /= static_cast<double>(all.n);
  for (const TuneSample& sample : samples) {
    const auto n = static_cast<double>(sample.n);
    all.kl_squares += sample.kl_squares + n * (sample.kl - all.kl) * (sample.kl - all.kl);
    all.nll_squares += sample.nll_squares + n * (sample.nll - all.nll) * (sample.nll - all.nll);
  }
  return all;
}

double FigureOf(const TuneTarget& target, const TuneSample& sample) {
  switch (target.kind) {
    case TuneTarget::Kind::kMatch:
      return static_cast<double>(sample.n_match) / static_cast<double>(sample.n);
    case TuneTarget::Kind::kKl:
      return sample.kl;
    case TuneTarget::Kind::kPpl:
      return std::expm1(sample.nll);
  }
  return 0;
}

double BoundOf(const TuneTarget& target, const TuneSample& sample, double confidence, int64_t n) {
  const double z = NormalQuantile(confidence);
  switch (target.kind) {
    case TuneTarget::Kind::kMatch:
      return WilsonLowerBound(FigureOf(target, sample), n, z);
    case TuneTarget::Kind::kKl:
      return UpperBound(sample.kl, sample.kl_squares, sample.n, z, n);
    case TuneTarget::Kind::kPpl:
      return std::expm1(UpperBound(sample.nll, sample.nll_squares, sample.n, z, n));
  }
  return 0;
}

bool Meets(const TuneTarget& target, double bound) {
  return target.kind == TuneTarget::Kind::kMatch ? bound >= target.value : bound <= target.value;
}

Result<TuneOutcome> Tune(Session& session, const Plugin& plugin, const TuneSpec& spec,
                         const TuneEvents& events) {
  return Tuner(session, plugin, spec, events).Run();
}

}  // namespace condense
