// What tables of comparisons are made of: the figures of finished rows, read back from their lines,
// row by row over the prefixes of one setting, and how figures are spelled in tables. Pure.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/cells.h"
#include "lab/experiment.h"
#include "metrics/stats.h"

namespace condense {

// A row under one teacher.
struct TeacherFigure {
  int n_decisions = 0;
  double match = 0;  // share of equal decisions
  double kl = 0;     // nats, mean
  double ppl = 0;    // ΔPPL: ratio - 1
  double mass = 0;   // omitted, mean
};

// One finished cell: a row from one prefix.
struct RowRun {
  std::string prefix;  // text and offset
  std::string unmet;   // why there are no figures; ""
  std::optional<double> least_budget;
  std::optional<TeacherFigure> greedy, text;
  double t_div = 0, t_sig = 0;  // beyond the horizon: one more than it
  bool survived = false;
  double read = 0;       // share of dense's bytes
  double rows = 0;       // unique, a KV head and step
  double head_rows = 0;  // nominal, a query head and step
  // Of a step through all layers: K and V of rows, summaries, what dense reads.
  double row_bytes = 0, summary_bytes = 0, dense_bytes = 0;
  double visible_rows = 0;
  double tokens_per_second = 0, dense_tokens_per_second = 0, speed_ratio = 0;

  // The text's own tokens where the text goes on, else dense's continuation.
  const TeacherFigure& Hardest() const { return text ? *text : *greedy; }
};

// A run's figures under one teacher; null: it has none.
using TeacherChoice = const TeacherFigure* (*)(const RowRun&);
const TeacherFigure* GreedyOf(const RowRun& run);
const TeacherFigure* TextOf(const RowRun& run);

// The cells of one row in one setting: alike in all parameters but the prefix.
struct RowRuns {
  std::string policy;
  Json parameters;           // of its first cell
  std::vector<RowRun> runs;  // with figures
  std::vector<RowRun> unmet;

  bool IsBaseline() const { return condense::IsBaseline(policy); }
  int horizon() const;
  int n_survived() const;
  std::vector<double> All(const std::function<double(const RowRun&)>& figure) const;
  // Of the runs that have this teacher.
  std::vector<double> Under(TeacherChoice teacher, double TeacherFigure::*figure) const;
};

// Rows that may be compared: same model, context, horizon, and whatever else cells name.
struct RowSetting {
  Json shared;                // the parameters that its cells have in common
  std::vector<RowRuns> rows;  // in the order of the cells

  // Null: none of this name with figures.
  const RowRuns* Find(const std::string& policy) const;
  // "SmolLM2-135M-Instruct.Q4_1.gguf, context 2048"
  std::string Title() const;
};

// A cell's parameters but where its prefix stands, `policy`, and those named in `own`: what cells
// of one setting have in common.
Json SharedParameters(const Json& parameters, std::span<const std::string> own = {});
// Its prefix: text and offset.
std::string PrefixName(const Json& parameters);

// `own`: parameters that may differ between rows of one setting, beside `policy`. Cells that differ
// in one of them are of two rows, though of one policy; cells that differ in any other, of two
// settings.
std::vector<RowSetting> CollectSettings(std::span<const FinishedCell> cells,
                                        std::span<const std::string> own = {});

// A figure of `a` less that of `b`, by prefixes that both have.
std::vector<double> PairedDifferences(const RowRuns& a, const RowRuns& b,
                                      const std::function<double(const RowRun&)>& figure);

// The figures that most tables show.
double KlOf(const RowRun& run);     // under the hardest teacher
double MatchOf(const RowRun& run);  // likewise

// Share of equal decisions of all runs together, under `teacher`.
struct PooledMatch {
  int64_t n = 0, n_equal = 0;
  double share() const { return static_cast<double>(n_equal) / static_cast<double>(n); }
  Interval interval() const { return WilsonInterval(n_equal, n); }
};
PooledMatch PoolMatch(const RowRuns& row, TeacherChoice teacher);

// "12.3 %", "+12.3 %", ">127" beyond the horizon; "-" for what is no number.
std::string PercentText(double share, int digits = 1);
std::string ChangeText(double share);
std::string DecisionText(double decision, int horizon);
// "0.0123 (0.011 to 0.014)"; without the interval where `sample` has one value. Mean, and 95 % by
// bootstrap over prefixes.
std::string MeanText(std::span<const double> sample);
std::string SignedMeanText(std::span<const double> sample);
// "97.6 % (95.1 to 98.8)"
std::string MatchText(const PooledMatch& match);

}  // namespace condense
