// Speed at matched quality: of several settings, the fastest that keeps 99 % of dense's decisions,
// timed against dense in turns. An open question of arXiv 2602.06317 v3, which reports speed and
// quality apart. llama.cpp itself is another process: the table names the command that times it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/experiment.h"
#include "lab/prefix_rows.h"
#include "lab/row_figures.h"

namespace condense {
namespace {

constexpr const char* kDefaultSpec =
    R"(# The fastest setting that keeps 99 % of dense's decisions.
experiment = "matched-speed"

# GGUF files. -m on the command line takes their place; none: the default model.
models = []

# Files of plain text: paths, or names within --texts or beside this spec.
texts = ["wikitext-2-raw-test.txt"]

# Tokens of a text before each of its prefixes.
offsets = [0, 100000, 200000]

# Tokens of a prefix: the depth at which is timed.
contexts = [7600]

# Tokens after a prefix: the first by the dense prefill, the others decisions.
tokens = 128

# Settings to choose among. Dense and the control (dense in another summation order) are always
# there.
policies = ["condense:budget=5%", "condense:budget=8%", "condense:budget=12%",
            "condense:budget=20%", "condense:budget=35%", "mean:budget=20%", "mean:budget=35%",
            "mean:budget=50%"]

# Pairs of blocks of 16 steps, dense and the policy in turns, a policy and prefix.
speed_pairs = 5
)";

constexpr double kTarget = 0.99;

class MatchedSpeed : public Experiment {
 public:
  void Read(SpecReader& spec) override {
    prefixes_ = ReadPrefixSpec(spec);
    policies_ = spec.Texts("policies");
    n_speed_pairs_ = static_cast<int>(spec.Int("speed_pairs", 1, 1000));
  }

  Result<std::vector<Cell>> Plan(LabModel& model) override {
    const Result<std::vector<PrefixRow>> rows = RowsOfPolicies(model, policies_);
    if (!rows.ok()) return Error{rows.error()};
    return rows_.Plan(model, prefixes_, rows.value(), n_speed_pairs_);
  }

  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    return rows_.RunGroup(run, cells);
  }

 private:
  PrefixSpec prefixes_;
  std::vector<std::string> policies_;
  int n_speed_pairs_ = 0;
  PrefixRows rows_{"matched-speed"};
};

using TeacherChoice = const TeacherFigure* (*)(const RowRun&);

double MedianRatio(const RowRuns& row) {
  return Quantile(row.All([](const RowRun& run) { return run.speed_ratio; }), 0.5);
}

std::string RatioText(const RowRuns& row) {
  const std::vector<double> ratios = row.All([](const RowRun& run) { return run.speed_ratio; });
  return fmt::format("{:.2f} ({:.2f} to {:.2f})", Quantile(ratios, 0.5),
                     *std::min_element(ratios.begin(), ratios.end()), Maximum(ratios));
}

bool Meets(const PooledMatch& match) { return match.n > 0 && match.share() >= kTarget; }

// Fastest first; dense and the control before them.
std::vector<const RowRuns*> BySpeed(const RowSetting& setting) {
  std::vector<const RowRuns*> rows;
  for (const RowRuns& row : setting.rows) {
    if (!row.runs.empty()) rows.push_back(&row);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const RowRuns* a, const RowRuns* b) {
    if (a->IsBaseline() || b->IsBaseline()) return a->IsBaseline() && !b->IsBaseline();
    return MedianRatio(*a) > MedianRatio(*b);
  });
  return rows;
}

// "of dense's continuation: condense:budget=20%, 1.3 times dense; …"
std::string Fastest(const std::vector<const RowRuns*>& rows, TeacherChoice teacher,
                    const char* name) {
  std::string control;
  for (const RowRuns* row : rows) {
    const PooledMatch match = PoolMatch(*row, teacher);
    if (match.n == 0) continue;
    if (row->policy == "control") control = "; the control keeps " + MatchText(match);
    if (row->IsBaseline() || !Meets(match)) continue;
    return fmt::format("on {}: {}, {:.2f} times dense, keeps {}{}\n", name, row->policy,
                       MedianRatio(*row), MatchText(match), control);
  }
  const bool any = std::any_of(rows.begin(), rows.end(),
                               [&](const RowRuns* row) { return PoolMatch(*row, teacher).n > 0; });
  return any ? fmt::format("on {}: none of these settings{}\n", name, control) : "";
}

LabTable SpeedTable(const RowSetting& setting) {
  const std::vector<const RowRuns*> rows = BySpeed(setting);
  LabTable table;
  table.title = "matched-speed: " + setting.Title();
  table.columns = {{"setting", true, 0},    {"read", false, 1},     {"n", false, 2},
                   {"TF, greedy", true, 0}, {"99 %", true, 1},      {"TF, text", true, 1},
                   {"99 %", true, 2},       {"tokens/s", false, 0}, {"dense", false, 1},
                   {"ratio", true, 0}};
  for (const RowRuns* row : rows) {
    const PooledMatch greedy = PoolMatch(*row, GreedyOf), text = PoolMatch(*row, TextOf);
    table.rows.push_back(
        {row->policy, PercentText(Mean(row->All([](const RowRun& run) { return run.read; }))),
         fmt::format("{}", greedy.n), MatchText(greedy), Meets(greedy) ? "yes" : "no",
         MatchText(text),
         text.n == 0   ? "-"
         : Meets(text) ? "yes"
                       : "no",
         fmt::format(
             "{:.1f}",
             Quantile(row->All([](const RowRun& run) { return run.tokens_per_second; }), 0.5)),
         fmt::format("{:.1f}", Quantile(row->All([](const RowRun& run) {
                       return run.dense_tokens_per_second;
                     }),
                                        0.5)),
         RatioText(*row)});
  }
  table.notes = "fastest setting that keeps 99 % of dense's decisions,\n" +
                Fastest(rows, GreedyOf, "dense's continuation") +
                Fastest(rows, TextOf, "the text's own tokens") +
                fmt::format(
                    "TF, 99 %  share of decisions equal to dense's, all prefixes together (95 %: "
                    "Wilson, its lower bound first);\n"
                    "          yes: the share itself reaches 99 %\n"
                    "tokens/s  medians over prefixes, blocks of dense and the setting in turns; "
                    "ratio with its range\n"
                    "Every decision is kept by exact decoding alone: `condense run --mode exact`.\n"
                    "llama.cpp itself is another process: llama-bench -m MODEL -t THREADS -p 0 -n "
                    "64 -d {} -fa 0,1\n"
                    "times it at this depth; `make bench` takes turns with it\n",
                    setting.shared.value("context", 0));
  return table;
}

std::vector<LabTable> Tables(std::span<const FinishedCell> cells) {
  std::vector<LabTable> tables;
  for (const RowSetting& setting : CollectSettings(cells)) tables.push_back(SpeedTable(setting));
  return tables;
}

CONDENSE_REGISTER_EXPERIMENT(
    matched_speed,
    ExperimentInfo{.name = "matched-speed",
                   .title = "the fastest setting that keeps 99 % of dense's decisions",
                   .repeats = "nothing: arXiv 2602.06317 v3 leaves speed at matched quality open",
                   .default_spec = kDefaultSpec,
                   .make = [] { return std::make_unique<MatchedSpeed>(); },
                   .tables = Tables});

}  // namespace
}  // namespace condense
