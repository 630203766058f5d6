#include "lab/row_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "metrics/bootstrap.h"

namespace condense {
namespace {

double NumberOf(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : std::nan("");
}

void ReadLine(const Json& line, RowRun& run) {
  TeacherFigure figure;
  figure.n_decisions = line.value("n_decisions", 0);
  figure.match = NumberOf(line, "tf_match");
  figure.kl = NumberOf(line, "kl_mean");
  figure.ppl = NumberOf(line, "ppl_ratio") - 1;
  figure.mass = NumberOf(line, "omitted_mass_mean");
  const bool is_greedy = line.value("teacher", "") == "greedy";
  (is_greedy ? run.greedy : run.text) = figure;
  if (!is_greedy) return;
  const auto place = [&](const char* key) {
    const double decision = NumberOf(line, key);
    return std::isnan(decision) ? figure.n_decisions + 1 : decision;
  };
  run.t_div = place("t_div");
  run.t_sig = place("t_sig");
  run.survived = line.value("survived", false);
  run.read = NumberOf(line, "kv_read_share");
  run.rows = NumberOf(line, "unique_rows_per_kv_head");
  run.head_rows = NumberOf(line, "nominal_rows_per_query_head");
  const double n_steps = figure.n_decisions;
  run.row_bytes = (NumberOf(line, "k_bytes") + NumberOf(line, "v_bytes")) / n_steps;
  run.summary_bytes = NumberOf(line, "summary_bytes") / n_steps;
  run.dense_bytes = NumberOf(line, "dense_bytes") / n_steps;
  run.visible_rows = NumberOf(line, "visible_rows");
  run.tokens_per_second = NumberOf(line, "sparse_tokens_per_second");
  run.dense_tokens_per_second = NumberOf(line, "dense_tokens_per_second");
  run.speed_ratio = NumberOf(line, "speed_ratio_median");
}

RowRun ReadRun(const FinishedCell& cell) {
  RowRun run;
  run.prefix = PrefixName(cell.parameters);
  for (const Json& line : cell.lines) {
    if (line.value("record", "") == "policy") ReadLine(line, run);
  }
  if (!run.greedy) run.unmet = cell.end.value("reason", "");
  if (const double least = NumberOf(cell.end, "least_budget"); !std::isnan(least))
    run.least_budget = least;
  return run;
}

std::string SampleText(std::span<const double> sample, const char* sign) {
  if (sample.empty()) return "-";
  const auto number = [&](double value) {
    if (std::abs(value) < 1e-12) value = 0;  // what differences leave of equal figures
    return *sign == '+' ? fmt::format("{:+.3g}", value) : fmt::format("{:.3g}", value);
  };
  if (sample.size() == 1) return number(sample[0]);
  const Interval interval = BootstrapInterval(sample, Mean);
  return fmt::format("{} ({} to {})", number(Mean(sample)), number(interval.low),
                     number(interval.high));
}

}  // namespace

int RowRuns::horizon() const {
  int most = 0;
  for (const RowRun& run : runs) most = std::max(most, run.greedy->n_decisions);
  return most;
}

int RowRuns::n_survived() const {
  return static_cast<int>(
      std::count_if(runs.begin(), runs.end(), [](const RowRun& run) { return run.survived; }));
}

std::vector<double> RowRuns::All(const std::function<double(const RowRun&)>& figure) const {
  std::vector<double> values;
  values.reserve(runs.size());
  for (const RowRun& run : runs) values.push_back(figure(run));
  return values;
}

std::vector<double> RowRuns::Under(TeacherChoice teacher, double TeacherFigure::*figure) const {
  std::vector<double> values;
  for (const RowRun& run : runs) {
    if (const TeacherFigure* under = teacher(run)) values.push_back(under->*figure);
  }
  return values;
}

const RowRuns* RowSetting::Find(const std::string& policy) const {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const RowRuns& row) {
    return row.policy == policy && !row.runs.empty();
  });
  return found == rows.end() ? nullptr : &*found;
}

std::string RowSetting::Title() const {
  std::string title = shared.value("model", "");
  title = title.substr(0, title.find('@'));
  for (const auto& [name, value] : shared.items()) {
    if (name == "model" || name == "speed_pairs") continue;
    title +=
        fmt::format(", {} {}", name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return title;
}

Json SharedParameters(const Json& parameters, std::span<const std::string> own) {
  Json shared = parameters;
  for (const char* varies : {"text", "offset", "policy"}) shared.erase(varies);
  for (const std::string& name : own) shared.erase(name);
  return shared;
}

std::string PrefixName(const Json& parameters) {
  return CellId(Json{{"text", parameters.value("text", "")},
                     {"offset", parameters.value("offset", int64_t{0})}});
}

namespace {

// Whether the cells are of one row of a setting.
bool IsSameRow(const Json& a, const Json& b, std::span<const std::string> own) {
  const auto same = [&](const std::string& name) {
    return a.value(name, Json()) == b.value(name, Json());
  };
  return same("policy") && std::all_of(own.begin(), own.end(), same);
}

}  // namespace

std::vector<RowSetting> CollectSettings(std::span<const FinishedCell> cells,
                                        std::span<const std::string> own) {
  std::vector<RowSetting> settings;
  for (const FinishedCell& cell : cells) {
    Json shared = SharedParameters(cell.parameters, own);
    auto setting = std::find_if(settings.begin(), settings.end(), [&](const RowSetting& known) {
      return CellId(known.shared) == CellId(shared);
    });
    if (setting == settings.end())
      setting = settings.insert(settings.end(), RowSetting{std::move(shared), {}});
    std::vector<RowRuns>& rows = setting->rows;
    auto row = std::find_if(rows.begin(), rows.end(), [&](const RowRuns& known) {
      return IsSameRow(known.parameters, cell.parameters, own);
    });
    if (row == rows.end()) {
      row = rows.insert(rows.end(),
                        RowRuns{cell.parameters.value("policy", ""), cell.parameters, {}, {}});
    }
    RowRun run = ReadRun(cell);
    (run.greedy ? row->runs : row->unmet).push_back(std::move(run));
  }
  return settings;
}

std::vector<double> PairedDifferences(const RowRuns& a, const RowRuns& b,
                                      const std::function<double(const RowRun&)>& figure) {
  std::vector<double> differences;
  for (const RowRun& run : a.runs) {
    const auto other = std::find_if(b.runs.begin(), b.runs.end(), [&](const RowRun& candidate) {
      return candidate.prefix == run.prefix;
    });
    if (other != b.runs.end()) differences.push_back(figure(run) - figure(*other));
  }
  return differences;
}

double KlOf(const RowRun& run) { return run.Hardest().kl; }
double MatchOf(const RowRun& run) { return run.Hardest().match; }

PooledMatch PoolMatch(const RowRuns& row, TeacherChoice teacher) {
  PooledMatch pooled;
  for (const RowRun& run : row.runs) {
    const TeacherFigure* figure = teacher(run);
    if (figure == nullptr) continue;
    pooled.n += figure->n_decisions;
    pooled.n_equal += std::llround(figure->match * figure->n_decisions);
  }
  return pooled;
}

const TeacherFigure* GreedyOf(const RowRun& run) { return run.greedy ? &*run.greedy : nullptr; }
const TeacherFigure* TextOf(const RowRun& run) { return run.text ? &*run.text : nullptr; }

std::string PercentText(double share, int digits) {
  return std::isnan(share) ? "-" : fmt::format("{:.{}f} %", 100 * share, digits);
}

std::string ChangeText(double share) {
  return std::isnan(share) ? "-" : fmt::format("{:+.1f} %", 100 * share);
}

std::string DecisionText(double decision, int horizon) {
  return decision > horizon ? fmt::format(">{}", horizon) : fmt::format("{:g}", decision);
}

std::string MeanText(std::span<const double> sample) { return SampleText(sample, ""); }
std::string SignedMeanText(std::span<const double> sample) { return SampleText(sample, "+"); }

std::string MatchText(const PooledMatch& match) {
  if (match.n == 0) return "-";
  const Interval interval = match.interval();
  return fmt::format("{} ({:.1f} to {:.1f})", PercentText(match.share()), 100 * interval.low,
                     100 * interval.high);
}

}  // namespace condense
