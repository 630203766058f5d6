// Every policy at equal bytes: what each makes of the same share of dense's KV reads, from one
// dense prefill a prefix, under both teachers. Beyond arXiv 2602.06317, whose tables compare equal
// rows of one selector. Needles at equal bytes are the experiment `needle`'s.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.h"
#include "lab/experiment.h"
#include "lab/prefix_rows.h"
#include "lab/row_figures.h"

namespace condense {
namespace {

constexpr const char* kDefaultSpec =
    R"(# Every policy at equal shares of dense's KV bytes.
experiment = "equal-bytes"

# GGUF files. -m on the command line takes their place; none: the default model.
models = []

# Files of plain text: paths, or names within --texts or beside this spec.
texts = ["wikitext-2-raw-test.txt"]

# Tokens of a text before each of its prefixes.
offsets = [0, 100000, 200000]

# Tokens of a prefix; for a model that takes them up to its limit.
contexts = [2048, 7600]

# Tokens after a prefix: the first by the dense prefill, the others decisions.
tokens = 128

# Policies by name, or "all". Dense and the control (dense in another summation order) are always
# there. `oracle` and `topk` read every key to choose: upper lines, whose budget buys rows alone.
policies = ["all"]

# Percent of the K and V bytes that dense attention reads, summaries counted.
budgets = [2, 5, 10, 20]

# Timed pairs of dense and sparse blocks a policy; 0: no timing.
speed_pairs = 0
)";

// Read every key to choose; a byte budget buys rows alone (docs/POLICIES.md).
constexpr const char* kUpperLines[] = {"oracle", "topk"};
// A row that read more than this beyond its budget is no row at equal bytes.
constexpr double kOverBudget = 1.1, kOverBudgetPoints = 0.005;
// Rows are equal within this share.
constexpr double kEqualRows = 0.01;

class EqualBytes : public Experiment {
 public:
  void Read(SpecReader& spec) override {
    prefixes_ = ReadPrefixSpec(spec);
    names_ = spec.Texts("policies");
    for (const std::string& name : names_) {
      if (name == kAllPolicies) continue;
      if (PolicyName(name) != name)
        spec.Fail("policies", name, "name it without its keys: `budgets` says what it reads");
      spec.CheckPolicy("policies", name, name);
    }
    for (double percent : spec.Numbers("budgets", 0.1, 100)) budgets_.push_back(percent / 100);
    n_speed_pairs_ = static_cast<int>(spec.Int("speed_pairs", 0, 1000));
  }

  Result<std::vector<Cell>> Plan(LabModel& model) override {
    Result<std::vector<LabPrefix>> prefixes = PlanPrefixes(model, prefixes_);
    if (!prefixes.ok()) return Error{prefixes.error()};
    std::vector<Cell> cells;
    const Json policies = Json::parse(model.plugin().PoliciesJson());
    for (LabPrefix& prefix : prefixes.value()) {
      const Result<CellPlan> plan =
          PlanCells(policies, {names_, budgets_, MeanVisibleRows(prefix)},
                    [&](const std::string& spec) { return model.Canonical(spec); });
      if (!plan.ok()) return Error{plan.error()};
      const Status told = TakeLeftOut(plan.value());
      if (!told.ok()) return Error{told.error()};
      std::vector<PrefixRow> rows;
      for (const CompareCell& cell : plan->cells) {
        if (cell.name == "dense") continue;
        PrefixRow row{.cell = cell};
        if (cell.budget) row.own["budget"] = *cell.budget;
        rows.push_back(std::move(row));
      }
      rows_.Add(std::move(prefix), rows, n_speed_pairs_, cells);
    }
    return cells;
  }

  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    for (const std::string& text : left_out_) run.Warn(text);
    left_out_.clear();
    return rows_.RunGroup(run, cells);
  }

 private:
  // Of "all", what cannot run is said when the run begins; what was named must run.
  Status TakeLeftOut(const CellPlan& plan) {
    for (const LeftOut& out : plan.left_out) {
      const std::string name = PolicyName(out.spec);
      if (std::find(names_.begin(), names_.end(), name) != names_.end())
        return Error{fmt::format("policy {} cannot run: {}", Quote(out.spec), out.reason)};
      const std::string text = fmt::format("{} is left out: {}", out.spec, out.reason);
      if (std::find(told_.begin(), told_.end(), text) != told_.end()) continue;
      told_.push_back(text);
      left_out_.push_back(text);
    }
    return Status();
  }

  PrefixSpec prefixes_;
  std::vector<std::string> names_;
  std::vector<double> budgets_;
  int n_speed_pairs_ = 0;
  PrefixRows rows_{"equal-bytes"};
  std::vector<std::string> told_, left_out_;  // left_out_: not told yet
};

bool IsUpperLine(const RowRuns& row) {
  const std::string name = PolicyName(row.policy);
  return std::find(std::begin(kUpperLines), std::end(kUpperLines), name) != std::end(kUpperLines);
}

double MeanKl(const RowRuns& row) { return Mean(row.All(KlOf)); }
double MeanRead(const RowRuns& row) {
  return Mean(row.All([](const RowRun& run) { return run.read; }));
}
double MeanRows(const RowRuns& row) {
  return Mean(row.All([](const RowRun& run) { return run.rows; }));
}

// The rows of one budget that have figures, by distance from dense.
struct Budget {
  double share = 0;  // 0: policies that take none
  std::vector<const RowRuns*> rows;
  std::vector<const RowRuns*> unmet;  // on every prefix

  bool IsOver(const RowRuns& row) const {
    return !IsUpperLine(row) && MeanRead(row) > kOverBudget * share + kOverBudgetPoints;
  }
  // The least KL of rows that are no upper line and read no more than the budget; null: none.
  const RowRuns* Best() const {
    for (const RowRuns* row : rows) {
      if (!IsUpperLine(*row) && !IsOver(*row)) return row;
    }
    return nullptr;
  }
  // The nearest to dense of the estimators that beat this upper line with no more rows than it has;
  // null: none does.
  const RowRuns* Beats(const RowRuns& upper) const {
    for (const RowRuns* row : rows) {
      if (MeanKl(*row) >= MeanKl(upper)) return nullptr;
      if (!IsUpperLine(*row) && MeanRows(*row) <= (1 + kEqualRows) * MeanRows(upper)) return row;
    }
    return nullptr;
  }
};

std::vector<Budget> ByBudget(const RowSetting& setting) {
  std::map<double, Budget> budgets;
  for (const RowRuns& row : setting.rows) {
    if (row.IsBaseline()) continue;
    const double share = row.parameters.value("budget", 0.0);
    Budget& budget = budgets[share];
    budget.share = share;
    (row.runs.empty() ? budget.unmet : budget.rows).push_back(&row);
  }
  std::vector<Budget> all;
  for (auto& [share, budget] : budgets) {
    std::stable_sort(budget.rows.begin(), budget.rows.end(),
                     [](const RowRuns* a, const RowRuns* b) { return MeanKl(*a) < MeanKl(*b); });
    all.push_back(std::move(budget));
  }
  return all;
}

std::string Mark(const Budget& budget, const RowRuns& row) {
  if (budget.share == 0) return "";
  if (IsUpperLine(row)) {
    const RowRuns* better = budget.Beats(row);
    return better == nullptr ? "upper line" : "upper line, beaten by " + PolicyName(better->policy);
  }
  if (budget.IsOver(row)) return "reads more";
  return &row == budget.Best() ? "best" : "";
}

// Medians: one prefix whose perplexity explodes would hide the others.
std::string PplText(const RowRuns& row, TeacherChoice teacher) {
  return ChangeText(Quantile(row.Under(teacher, &TeacherFigure::ppl), 0.5));
}

std::string KlText(const RowRuns& row, TeacherChoice teacher) {
  return MeanText(row.Under(teacher, &TeacherFigure::kl));
}

const TeacherFigure* HardestOf(const RowRun& run) { return &run.Hardest(); }

std::vector<std::string> RowTexts(const RowRuns& row, const std::string& mark) {
  const std::vector<double> t_div = row.All([](const RowRun& run) { return run.t_div; });
  std::string n = fmt::format("{}", row.runs.size());
  if (!row.unmet.empty()) n += fmt::format(" of {}", row.runs.size() + row.unmet.size());
  return {row.policy,
          mark,
          PercentText(MeanRead(row)),
          fmt::format("{:.0f}", MeanRows(row)),
          n,
          fmt::format("{} of {}", row.n_survived(), row.runs.size()),
          DecisionText(Quantile(t_div, 0.5), row.horizon()),
          MatchText(PoolMatch(row, GreedyOf)),
          MatchText(PoolMatch(row, TextOf)),
          KlText(row, GreedyOf),
          KlText(row, TextOf),
          PplText(row, GreedyOf),
          PplText(row, TextOf)};
}

std::vector<LabTable::Column> Columns() {
  return {{"policy", true, 0},     {"", true, 0},           {"read", false, 0},
          {"rows", false, 3},      {"n", false, 1},         {"survive", false, 1},
          {"T_div", false, 2},     {"TF, greedy", true, 3}, {"TF, text", true, 0},
          {"KL, greedy", true, 3}, {"KL, text", true, 0},   {"ΔPPL, greedy", false, 4},
          {"ΔPPL, text", false, 2}};
}

// Policies at one budget, nearest to dense first.
LabTable BudgetTable(const RowSetting& setting, const Budget& budget) {
  LabTable table;
  table.title = "equal-bytes: " + setting.Title() +
                (budget.share == 0 ? ", policies that take no budget"
                                   : ", " + PercentText(budget.share) + " of dense's bytes");
  table.columns = Columns();
  for (const char* baseline : kBaselines) {
    if (const RowRuns* row = setting.Find(baseline)) table.rows.push_back(RowTexts(*row, ""));
  }
  for (const RowRuns* row : budget.rows) table.rows.push_back(RowTexts(*row, Mark(budget, *row)));
  for (const RowRuns* row : budget.unmet) {
    const std::optional<double> least = row->unmet.front().least_budget;
    std::vector<std::string> texts(table.columns.size(), "");
    texts[0] = row->policy;
    texts[1] = least ? "unmet; least " + PercentText(*least) : "unmet";
    texts[4] = fmt::format("0 of {}", row->unmet.size());
    table.rows.push_back(std::move(texts));
  }
  table.notes =
      "TF        share of decisions equal to dense's, all prefixes together (95 %: Wilson)\n"
      "KL        nats, mean over prefixes (95 %: bootstrap over prefixes); T_div, ΔPPL: medians\n"
      "best      the least KL at no more bytes, upper lines apart; by the text's tokens where the "
      "text goes on\n"
      "upper line  reads every key to choose, its budget buys rows alone; beaten: a policy with no "
      "more rows\n"
      "          is nearer to dense\n"
      "reads more  than the budget: at no equal bytes\n"
      "rows      whose key is read, a KV head; control: dense summed in another order, the noise "
      "floor\n";
  return table;
}

// The best of each budget beside dense, the noise floor and the upper lines.
LabTable BestTable(const RowSetting& setting, const std::vector<Budget>& budgets) {
  LabTable table;
  table.title = "equal-bytes: " + setting.Title() + ", the best of each budget";
  table.columns = {{"budget", false, 0},    {"best", true, 0},
                   {"KL", true, 0},         {"TF", true, 1},
                   {"next", true, 1},       {"KL of next, less best's", true, 1},
                   {"upper line", true, 2}, {"its KL", true, 2}};
  if (const RowRuns* control = setting.Find("control")) {
    table.rows.push_back({"-", "control", MeanText(control->All(KlOf)),
                          MatchText(PoolMatch(*control, HardestOf)), "", "", "", ""});
  }
  for (const Budget& budget : budgets) {
    const RowRuns* best = budget.Best();
    if (best == nullptr || budget.share == 0) continue;
    const RowRuns* next = nullptr;
    const RowRuns* upper = nullptr;
    for (const RowRuns* row : budget.rows) {
      if (IsUpperLine(*row)) {
        if (upper == nullptr) upper = row;
      } else if (row != best && next == nullptr && !budget.IsOver(*row)) {
        next = row;
      }
    }
    table.rows.push_back({PercentText(budget.share), best->policy, MeanText(best->All(KlOf)),
                          MatchText(PoolMatch(*best, HardestOf)), next ? next->policy : "-",
                          next ? SignedMeanText(PairedDifferences(*next, *best, KlOf)) : "-",
                          upper ? upper->policy : "-", upper ? MeanText(upper->All(KlOf)) : "-"});
  }
  table.notes =
      "by KL under the text's own tokens where the text goes on; an interval of the difference "
      "that "
      "holds 0\n"
      "says that these prefixes do not tell the two apart\n";
  return table;
}

std::vector<LabTable> Tables(std::span<const FinishedCell> cells) {
  std::vector<LabTable> tables;
  const std::string own[] = {"budget"};
  for (const RowSetting& setting : CollectSettings(cells, own)) {
    const std::vector<Budget> budgets = ByBudget(setting);
    for (const Budget& budget : budgets) tables.push_back(BudgetTable(setting, budget));
    if (!budgets.empty()) tables.push_back(BestTable(setting, budgets));
  }
  return tables;
}

CONDENSE_REGISTER_EXPERIMENT(
    equal_bytes,
    ExperimentInfo{.name = "equal-bytes",
                   .title = "every policy at equal shares of dense's KV bytes",
                   .repeats = "nothing: arXiv 2602.06317 leaves the comparison at equal bytes open",
                   .default_spec = kDefaultSpec,
                   .make = [] { return std::make_unique<EqualBytes>(); },
                   .tables = Tables});

}  // namespace
}  // namespace condense
