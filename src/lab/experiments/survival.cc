// Survival at fixed supports: how long a sparse continuation stays dense's, and what decisions on
// dense's own history cost. Repeats table 1 of arXiv 2602.06317 v3 with its policy, mean keys of
// blocks shared by a KV group, at S = 97, 193, 385 and 769 rows. A cell is a row of lab/compare.h;
// the cells of a prefix share one dense prefill.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lab/experiment.h"
#include "lab/lab_cell.h"
#include "lab/prefix_rows.h"
#include "lab/row_figures.h"
#include "metrics/bootstrap.h"

namespace condense {
namespace {

constexpr const char* kDefaultSpec =
    R"(# Survival of sparse continuations at fixed supports: table 1 of arXiv 2602.06317 v3.
experiment = "survival"

# GGUF files. -m on the command line takes their place; none: the default model.
models = []

# Files of plain text: paths, or names within --texts or beside this spec.
# The paper's: prefixes of WikiText-2 (raw, test).
texts = ["wikitext-2-raw-test.txt"]

# Tokens of a text before each of its prefixes.
offsets = [0, 50000, 100000, 150000, 200000]

# Tokens of a prefix. The paper's: 2048, 8192, 16384, for a model that takes them.
contexts = [2048, 7600]

# Tokens after a prefix: the first by the dense prefill, the others decisions.
tokens = 128

# S = 97, 193, 385, 769 rows: one anchor, a window of 64, blocks of 16.
# Dense and the control (dense in another summation order) are always there.
policies = ["mean:blocks=2", "mean:blocks=8", "mean:blocks=20", "mean:blocks=44"]

# Timed pairs of dense and sparse blocks a policy; 0: no timing.
speed_pairs = 0
)";

constexpr const char* kPaper = "arXiv 2602.06317 v3, table 1";
constexpr const char* kSetting = "Qwen2-0.5B on a GPU: another model and other hardware";

// The summary figures: the paper's, and ours beside them.
constexpr const char* kRunsSurvive = "runs that survive";
constexpr const char* kMedianTDiv = "T_div, medians";
constexpr const char* kLargestTDiv = "T_div, largest";
constexpr const char* kMatch = "TF match, runs";
constexpr const char* kMedianPpl = "ΔPPL, medians";
constexpr const char* kWorstPpl = "ΔPPL, worst run";
constexpr const char* kNearPpl = "ΔPPL median ≤ 5 %, S ≥ 193";
constexpr const char* kLowMatch = "ΔPPL > 100 % at TF < 70 %";

PublishedFigure Published(const char* metric, const char* value, std::optional<double> low,
                          std::optional<double> high) {
  return {.metric = metric,
          .value = value,
          .low = low,
          .high = high,
          .setting = kSetting,
          .source = kPaper};
}

class Survival : public Experiment {
 public:
  void Read(SpecReader& spec) override {
    prefix_spec_ = ReadPrefixSpec(spec);
    policies_ = spec.Policies("policies");
    speed_pairs_ = static_cast<int>(spec.Int("speed_pairs", 0, 1000));
  }

  Result<std::vector<Cell>> Plan(LabModel& model) override {
    const Result<std::vector<PrefixRow>> rows = RowsOfPolicies(model, policies_);
    if (!rows.ok()) return Error{rows.error()};
    return rows_.Plan(model, prefix_spec_, rows.value(), speed_pairs_);
  }

  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    return rows_.RunGroup(run, cells);
  }

 private:
  PrefixSpec prefix_spec_;
  std::vector<std::string> policies_;
  int speed_pairs_ = 0;
  PrefixRows rows_{"survival"};
};

// Rows with figures of one context after another.
std::vector<RowSetting> SettingsOf(std::span<const FinishedCell> cells) {
  std::vector<RowSetting> settings = CollectSettings(cells);
  for (RowSetting& setting : settings)
    std::erase_if(setting.rows, [](const RowRuns& row) { return row.runs.empty(); });
  std::erase_if(settings, [](const RowSetting& setting) { return setting.rows.empty(); });
  const auto key = [](const RowSetting& setting) {
    return std::pair(setting.shared.value("context", int64_t{0}), CellId(setting.shared));
  };
  std::sort(settings.begin(), settings.end(),
            [&](const RowSetting& a, const RowSetting& b) { return key(a) < key(b); });
  return settings;
}

double TDivOf(const RowRun& run) { return run.t_div; }
double GreedyMatchOf(const RowRun& run) { return run.greedy->match; }
double GreedyPplOf(const RowRun& run) { return run.greedy->ppl; }
double MeanHeadRows(const RowRuns& row) {
  return Mean(row.All([](const RowRun& run) { return run.head_rows; }));
}
double Least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}
std::string ShareText(double share) { return PercentText(share); }

std::vector<std::string> RunTexts(int64_t context, const RowRuns& row) {
  const std::vector<double> t_div = row.All(TDivOf), match = row.All(GreedyMatchOf),
                            ppl = row.All(GreedyPplOf), kl = row.All(KlOf);
  const Interval match_mean = BootstrapInterval(match, Mean), kl_mean = BootstrapInterval(kl, Mean);
  const int horizon = row.horizon();
  return {
      fmt::format("{}", context),
      row.policy,
      fmt::format("{:.0f}", MeanHeadRows(row)),
      PercentText(Mean(row.All([](const RowRun& run) { return run.read; }))),
      fmt::format("{}", row.runs.size()),
      fmt::format("{} of {}", row.n_survived(), row.runs.size()),
      fmt::format("{} ({} to {})", DecisionText(Quantile(t_div, 0.5), horizon),
                  DecisionText(Least(t_div), horizon), DecisionText(Maximum(t_div), horizon)),
      DecisionText(Quantile(row.All([](const RowRun& run) { return run.t_sig; }), 0.5), horizon),
      fmt::format("{} ({:.1f} to {:.1f})", PercentText(Mean(match)), 100 * match_mean.low,
                  100 * match_mean.high),
      fmt::format("{} ({:+.1f} to {:+.1f})", ChangeText(Quantile(ppl, 0.5)), 100 * Least(ppl),
                  100 * Maximum(ppl)),
      fmt::format("{:.3g} ({:.2g} to {:.2g})", Mean(kl), kl_mean.low, kl_mean.high)};
}

LabTable RunsTable(const std::string& setting_name, const std::vector<RowSetting>& settings) {
  LabTable table;
  table.title = "survival: " + setting_name;
  table.columns = {{"context", false, 0}, {"policy", true, 0}, {"rows", false, 2},
                   {"read", false, 2},    {"n", false, 1},     {"survive", false, 0},
                   {"T_div", false, 0},   {"T_sig", false, 1}, {"TF match", true, 0},
                   {"ΔPPL", true, 1},     {"KL", true, 1}};
  for (const RowSetting& setting : settings) {
    for (const RowRuns& row : setting.rows)
      table.rows.push_back(RunTexts(setting.shared.value("context", int64_t{0}), row));
  }
  table.notes =
      "T_div, T_sig, ΔPPL  medians over prefixes, with the range of T_div and ΔPPL; ΔPPL on "
      "dense's continuation\n"
      "TF match, KL        means over prefixes, 95 % intervals (bootstrap over prefixes); KL in "
      "nats, on the text's next tokens\n"
      "control             dense attention summed in another order: this model's noise floor\n";
  return table;
}

struct Summary {
  int n_runs = 0, n_survived = 0, n_low = 0, n_low_high = 0, n_large = 0, n_near = 0;
  std::vector<double> t_div, match, ppl, median_t_div, median_ppl;
  int horizon = 0;
};

void AddRow(const RowRuns& row, Summary& all) {
  const double median_ppl = Quantile(row.All(GreedyPplOf), 0.5);
  all.horizon = std::max(all.horizon, row.horizon());
  all.median_t_div.push_back(Quantile(row.All(TDivOf), 0.5));
  all.median_ppl.push_back(median_ppl);
  // The least support of the published count, 193 rows; a partly visible block moves the mean.
  if (row.IsBaseline() || MeanHeadRows(row) >= 185) {
    ++all.n_large;
    all.n_near += std::abs(median_ppl) <= 0.05 ? 1 : 0;
  }
  all.n_survived += row.n_survived();
  for (const RowRun& run : row.runs) {
    ++all.n_runs;
    all.n_low += run.greedy->match < 0.7 ? 1 : 0;
    all.n_low_high += run.greedy->match < 0.7 && run.greedy->ppl > 1 ? 1 : 0;
    all.t_div.push_back(run.t_div);
    all.match.push_back(run.greedy->match);
    all.ppl.push_back(run.greedy->ppl);
  }
}

// `sparse`: of the policies; else of the control.
Summary Summarise(const std::vector<RowSetting>& settings, bool sparse) {
  Summary all;
  for (const RowSetting& setting : settings) {
    for (const RowRuns& row : setting.rows) {
      if (sparse ? !row.IsBaseline() : row.policy == "control") AddRow(row, all);
    }
  }
  return all;
}

std::map<std::string, std::string> SummaryTexts(const Summary& all) {
  if (all.n_runs == 0) return {};
  const Interval survive = WilsonInterval(all.n_survived, all.n_runs);
  const auto range = [](const std::vector<double>& values, auto&& shown) {
    return shown(Least(values)) + " to " + shown(Maximum(values));
  };
  const auto decision = [&](double t) { return DecisionText(t, all.horizon); };
  return {{kRunsSurvive, fmt::format("{} of {} (95 %: {:.0f} to {:.0f} %)", all.n_survived,
                                     all.n_runs, 100 * survive.low, 100 * survive.high)},
          {kMedianTDiv, range(all.median_t_div, decision)},
          {kLargestTDiv, decision(Maximum(all.t_div))},
          {kMatch, range(all.match, ShareText)},
          {kMedianPpl, range(all.median_ppl, ChangeText)},
          {kWorstPpl, ChangeText(Maximum(all.ppl))},
          {kNearPpl, fmt::format("{} of {}", all.n_near, all.n_large)},
          {kLowMatch, fmt::format("{} of {}", all.n_low_high, all.n_low)}};
}

LabTable PublishedTable(const std::string& setting_name, const std::vector<RowSetting>& settings,
                        const ExperimentInfo& info) {
  LabTable table;
  table.title = fmt::format("{}, beside {} ({})", setting_name, kPaper, kSetting);
  table.columns = {
      {"", true, 0}, {"published", true, 0}, {"here", true, 0}, {"here, control", true, 1}};
  const auto sparse = SummaryTexts(Summarise(settings, true));
  const auto control = SummaryTexts(Summarise(settings, false));
  const auto shown = [](const std::map<std::string, std::string>& texts, const std::string& name) {
    const auto found = texts.find(name);
    return found == texts.end() ? "-" : found->second;
  };
  for (const PublishedFigure& figure : info.published) {
    table.rows.push_back(
        {figure.metric, figure.value, shown(sparse, figure.metric), shown(control, figure.metric)});
  }
  table.notes =
      "counts of contexts and policies (medians over their prefixes), and of runs; S: rows a query "
      "head\n";
  return table;
}

Json SharedBeyondContext(const Json& parameters) {
  const std::string own[] = {"context"};
  return SharedParameters(parameters, own);
}

std::vector<LabTable> SurvivalTables(std::span<const FinishedCell> cells) {
  // Contexts stand in one table; whatever else differs (model, horizon, the cache's types) makes
  // tables of its own.
  std::map<std::pair<std::string, std::string>, std::vector<FinishedCell>> apart;
  for (const FinishedCell& cell : cells)
    apart[{cell.parameters.value("model", ""), CellId(SharedBeyondContext(cell.parameters))}]
        .push_back(cell);
  std::vector<LabTable> tables;
  const ExperimentInfo& info = *FindExperiment("survival").value();
  for (const auto& [of, own] : apart) {
    const std::vector<RowSetting> settings = SettingsOf(own);
    if (settings.empty()) continue;
    Json rest = SharedBeyondContext(own.front().parameters);
    rest.erase("model");
    const std::string name = of.first + RowSetting{std::move(rest), {}}.Title();
    tables.push_back(RunsTable(name, settings));
    tables.push_back(PublishedTable(name, settings, info));
  }
  return tables;
}

CONDENSE_REGISTER_EXPERIMENT(
    survival,
    ExperimentInfo{
        .name = "survival",
        .title = "how long sparse continuations stay dense's, at fixed supports",
        .repeats = "arXiv 2602.06317 v3, table 1; other models, prefixes at other places of the "
                   "text, and beside the paper's teacher (dense's continuation) the text's own",
        .default_spec = kDefaultSpec,
        .published = {Published(kRunsSurvive, "0 of 60", 0, 0),
                      Published(kMedianTDiv, "2 to 22", 2, 22),
                      Published(kLargestTDiv, "43", 43, 43),
                      Published(kMatch, "62.5 to 97.6 %", 0.625, 0.976),
                      Published(kMedianPpl, "-0.3 to +40.8 %", -0.003, 0.408),
                      Published(kWorstPpl, "+9,877 % (16K, S = 97)", 98.77, 98.77),
                      Published(kNearPpl, "7 of 9", 7.0 / 9, 7.0 / 9),
                      Published(kLowMatch, "7 of 7", 1, 1)},
        .make = [] { return std::make_unique<Survival>(); },
        .tables = SurvivalTables});

}  // namespace
}  // namespace condense
