#include "lab/guard_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "lab/cells.h"
#include "lab/lab_cell.h"
#include "lab/row_figures.h"

namespace condense {
namespace {

// Parameters that differ between rows of one setting, beside the policy.
const std::vector<std::string> kOwn = {
    "of", "risk", "every", "calibrate_texts", "calibrate_offsets", "confidence", "rewrite"};

std::string ShareText(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  return PercentText(static_cast<double>(part) / static_cast<double>(whole), 2);
}

bool IsCalibration(const FinishedCell& cell) { return !cell.parameters.contains("offset"); }

std::string ModelName(const Json& parameters) {
  const std::string model = parameters.value("model", "");
  return model.substr(0, model.find('@'));
}

// "wiki.txt" of "wiki.txt@1a2b3c4d".
std::string TextName(const Json& parameters) {
  const std::string text = parameters.value("text", "");
  return text.substr(0, text.find('@'));
}

LabTable CertifiedTable(const std::string& model, int64_t context,
                        const std::vector<const FinishedCell*>& cells) {
  LabTable table;
  table.title = fmt::format("guard: {}, context {}: what was certified", model, context);
  table.columns = {{"policy", true, 0},    {"promised", false, 0}, {"threshold", false, 0},
                   {"certified", true, 0}, {"on", true, 1},        {"redone", false, 0},
                   {"differ", false, 1},   {"bound", false, 0},    {"calibrated on", true, 2}};
  for (const FinishedCell* cell : cells) {
    for (const Json& line : cell->lines) {
      if (line.value("record", "") != "guard_trial" || !line.value("chosen", false)) continue;
      const int64_t n = line.value("n_decisions", int64_t{0});
      table.rows.push_back({line.value("policy", ""), PrintPercent(line.value("risk", 0.0)),
                            fmt::format("{:g}", line.value("threshold", 0.0)),
                            line.value("certified", false) ? "yes" : "no",
                            line.value("teacher", ""),
                            ShareText(line.value("n_fallbacks", int64_t{0}), n),
                            fmt::format("{} of {}", line.value("n_differ", int64_t{0}), n),
                            PercentText(line.value("bound", 1.0), 2),
                            cell->parameters.value("calibrate_texts", "")});
    }
  }
  table.notes =
      "promised   share of all decisions whose token is taken and is not dense's, at most\n"
      "certified  no: no threshold held; the guard then decodes at the largest that the search "
      "found, and promises nothing\n"
      "redone, differ, bound  on the part held out (bound: one-sided, Clopper-Pearson); teachers: "
      "greedy, dense's\n"
      "           continuation; text, the text's own next tokens\n";
  return table;
}

// A guard on one text under one teacher, over the text's prefixes.
struct GuardRow {
  std::string text, policy, teacher;
  double risk = 0;
  bool certified = false;
  int64_t n = 0, n_differ = 0, n_fallbacks = 0;
  int64_t steps = 0, redone = 0, ahead = 0;  // of the autonomous runs
};

std::vector<GuardRow> CollectGuards(const std::vector<const FinishedCell*>& cells) {
  std::vector<GuardRow> rows;
  for (const FinishedCell* cell : cells) {
    for (const Json& line : cell->lines) {
      if (line.value("record", "") != "guard") continue;
      GuardRow wanted;
      wanted.text = TextName(cell->parameters);
      wanted.policy = line.value("policy", "");
      wanted.teacher = line.value("teacher", "");
      wanted.risk = line.value("risk", 0.0);
      wanted.certified = line.value("certified", false);
      auto row = std::find_if(rows.begin(), rows.end(), [&](const GuardRow& known) {
        return known.text == wanted.text && known.policy == wanted.policy &&
               known.teacher == wanted.teacher;
      });
      if (row == rows.end()) row = rows.insert(row, std::move(wanted));
      row->n += line.value("n_decisions", int64_t{0});
      row->n_differ += line.value("n_differ", int64_t{0});
      row->n_fallbacks += line.value("n_fallbacks", int64_t{0});
      row->steps += line.value("autonomous_steps", int64_t{0});
      row->redone += line.value("autonomous_fallbacks", int64_t{0});
      row->ahead += line.value("autonomous_ahead", int64_t{0});
    }
  }
  return rows;
}

std::string Held(const GuardRow& row, const Interval& seen) {
  if (!row.certified) return "none given";
  return seen.low > row.risk ? "NO" : seen.high <= row.risk ? "yes" : "open";
}

LabTable RiskTable(const RowSetting& setting, const std::vector<GuardRow>& rows) {
  LabTable table;
  table.title = "guard: " + setting.Title() + ": risk on texts beside what was promised";
  table.columns = {{"text", true, 0},         {"policy", true, 0},   {"on", true, 0},
                   {"redone", false, 0},      {"differ", false, 0},  {"of taken", false, 2},
                   {"risk seen", true, 0},    {"promise", false, 1}, {"kept", true, 0},
                   {"run: redone", false, 2}, {"ahead", false, 2}};
  for (const GuardRow& row : rows) {
    const Interval seen = ExactInterval(row.n_differ, row.n);
    table.rows.push_back({row.text, row.policy, row.teacher, ShareText(row.n_fallbacks, row.n),
                          fmt::format("{} of {}", row.n_differ, row.n),
                          ShareText(row.n_differ, row.n - row.n_fallbacks),
                          fmt::format("{} ({:.2f} to {:.2f})", ShareText(row.n_differ, row.n),
                                      100 * seen.low, 100 * seen.high),
                          PrintPercent(row.risk), Held(row, seen), ShareText(row.redone, row.steps),
                          ShareText(row.ahead, row.steps)});
  }
  table.notes =
      "redone     steps decoded dense again; differ: tokens that were taken and are not dense's, "
      "of "
      "all decisions and of\n"
      "           those taken; all prefixes of a text together, without look-ahead, as calibrated\n"
      "risk seen  with Clopper-Pearson's 95 % interval, as if decisions were drawn one by one; "
      "kept: NO where it lies\n"
      "           above the promise, open where it holds it\n"
      "run        what `condense run --mode guard` does, with look-ahead: redone, and done in "
      "advance by those calls\n";
  return table;
}

LabTable WaysTable(const RowSetting& setting) {
  LabTable table;
  table.title = "guard: " + setting.Title() + ": ways of decoding";
  table.columns = {{"way", true, 0},        {"read", false, 2},     {"n", false, 2},
                   {"T_div", true, 0},      {"T_sig", false, 1},    {"TF, greedy", true, 0},
                   {"KL, greedy", true, 1}, {"tokens/s", false, 1}, {"dense", false, 2},
                   {"over dense", true, 0}};
  for (const RowRuns& row : setting.rows) {
    if (row.runs.empty()) continue;
    const int horizon = row.horizon();
    const std::vector<double> t_div = row.All([](const RowRun&run) { return run.t_div; }),
                              t_sig = row.All([](const RowRun&run) { return run.t_sig; }),
                              ratios = row.All([](const RowRun&run) { return run.speed_ratio; });
    const auto median = [&](const std::function<double(const RowRun&)>& figure) {
      const double value = Quantile(row.All(figure), 0.5);
      return value > 0 ? fmt::format("{:.1f}", value) : std::string("-");
    };
    table.rows.push_back(
        {row.policy, PercentText(Mean(row.All([](const RowRun& run) { return run.read; }))),
         fmt::format("{}", row.runs.size()),
         fmt::format("{} ({} to {})", DecisionText(Quantile(t_div, 0.5), horizon),
                     DecisionText(*std::min_element(t_div.begin(), t_div.end()), horizon),
                     DecisionText(Maximum(t_div), horizon)),
         DecisionText(Quantile(t_sig, 0.5), horizon), MatchText(PoolMatch(row, GreedyOf)),
         MeanText(row.All([](const RowRun& run) { return run.greedy->kl; })),
         median([](const RowRun& run) { return run.tokens_per_second; }),
         median([](const RowRun& run) { return run.dense_tokens_per_second; }),
         Quantile(ratios, 0.5) > 0
             ? fmt::format("{:.2f} ({:.2f} to {:.2f})", Quantile(ratios, 0.5),
                           *std::min_element(ratios.begin(), ratios.end()), Maximum(ratios))
             : "-"});
  }
  table.notes =
      "read       bytes of a decision beside dense's, a redone step's both readings counted; a "
      "pass "
      "over several rows\n"
      "           reads what a dense step reads\n"
      "T_div, T_sig  medians over prefixes, T_div with its range; of a guard as `run` decodes, "
      "with "
      "look-ahead\n"
      "TF, KL     on dense's continuation, share of equal decisions of all prefixes (95 %: "
      "Wilson), "
      "and nats\n"
      "over dense  medians over prefixes, dense and the way in turns, with the range\n"
      "refresh R  every R-th step dense, the rows before it rewritten; control: dense summed in "
      "another order\n";
  return table;
}

// Guards of one name that were calibrated otherwise (other texts or confidence, rewriting or not)
// get the number of their calibration: 2, 3, …
std::vector<FinishedCell> TellCalibrationsApart(std::span<const FinishedCell> finished) {
  std::vector<FinishedCell> cells(finished.begin(), finished.end());
  std::vector<std::string> calibrations;
  for (FinishedCell& cell : cells) {
    Json of = Json::object();
    for (const char* key :
         {"calibrate_texts", "calibrate_offsets", "confidence", "on", "rewrite"}) {
      if (cell.parameters.contains(key)) of[key] = cell.parameters[key];
    }
    if (!of.contains("calibrate_texts")) continue;
    auto known = std::find(calibrations.begin(), calibrations.end(), CellId(of));
    if (known == calibrations.end()) known = calibrations.insert(known, CellId(of));
    if (known == calibrations.begin()) continue;
    const std::string number = fmt::format(" [{}]", known - calibrations.begin() + 1);
    cell.parameters["policy"] = cell.parameters["policy"].get<std::string>() + number;
    for (Json& line : cell.lines) {
      if (line["record"] == "guard" || line["record"] == "guard_trial")
        line["policy"] = line["policy"].get<std::string>() + number;
    }
  }
  return cells;
}

}  // namespace

Interval ExactInterval(int64_t n_seen, int64_t n) {
  if (n == 0) return {0, 1};
  constexpr double kEachSide = 0.975;
  return {n_seen == 0 ? 0 : 1 - BinomialUpperBound(n - n_seen, n, kEachSide),
          BinomialUpperBound(n_seen, n, kEachSide)};
}

std::vector<LabTable> GuardTables(std::span<const FinishedCell> finished) {
  const std::vector<FinishedCell> cells = TellCalibrationsApart(finished);
  std::vector<LabTable> tables;
  const auto add = [&](LabTable table) {
    if (!table.rows.empty()) tables.push_back(std::move(table));
  };
  std::vector<std::pair<std::string, int64_t>> certified;  // model, context
  std::vector<std::vector<const FinishedCell*>> calibrations;
  std::vector<FinishedCell> ways;
  for (const FinishedCell& cell : cells) {
    if (!IsCalibration(cell)) {
      ways.push_back(cell);
      continue;
    }
    const std::pair setting{ModelName(cell.parameters),
                            cell.parameters.value("context", int64_t{0})};
    const auto known = std::find(certified.begin(), certified.end(), setting);
    if (known == certified.end()) {
      certified.push_back(setting);
      calibrations.push_back({&cell});
    } else {
      calibrations[known - certified.begin()].push_back(&cell);
    }
  }
  for (size_t i = 0; i < certified.size(); ++i)
    add(CertifiedTable(certified[i].first, certified[i].second, calibrations[i]));
  const std::vector<RowSetting> settings = CollectSettings(ways, kOwn);
  for (const RowSetting& setting : settings) {
    std::vector<const FinishedCell*> its;
    for (const FinishedCell& cell : ways) {
      if (CellId(SharedParameters(cell.parameters, kOwn)) == CellId(setting.shared))
        its.push_back(&cell);
    }
    add(RiskTable(setting, CollectGuards(its)));
  }
  for (const RowSetting& setting : settings) add(WaysTable(setting));
  return tables;
}

}  // namespace condense
