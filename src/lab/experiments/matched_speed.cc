// Speed at matched quality: of several settings, the fastest that keeps 99 % of dense's decisions,
// timed against dense in turns; beside them llama.cpp's own decoding and exact decoding
// (lab/timed_cells.h). An open question of arXiv 2602.06317 v3, which reports speed and quality
// apart.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/text.h"
#include "lab/experiment.h"
#include "lab/lab_cell.h"
#include "lab/prefix_rows.h"
#include "lab/row_figures.h"
#include "lab/timed_cells.h"

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

# Timed beside them: llama.cpp's own decoding with flash attention and without, which the plug-in
# is kept out of and which prefills each prefix anew; exact decoding, with drafts looked up in the
# context.
beside = ["llama.cpp fa on", "llama.cpp fa off", "exact lookup"]

# Pairs of blocks, dense and the other in turns, a setting and prefix: of 16 steps; of exact
# decoding, whose drafts go on for longer, of as many as `tokens`.
speed_pairs = 5
)";

constexpr double kTarget = 0.99;

class MatchedSpeed : public Experiment {
 public:
  void Read(SpecReader& spec) override {
    prefixes_ = ReadPrefixSpec(spec);
    policies_ = spec.Policies("policies");
    beside_ = spec.Texts("beside", 0);
    for (const std::string& way : beside_) {
      const std::vector<std::string> known(kTimedWays.begin(), kTimedWays.end());
      if (IsTimedWay(way)) continue;
      spec.Fail("beside", fmt::format("{} is none of {}{}", Quote(way), JoinNames(known),
                                      DidYouMean(way, known)));
    }
    n_speed_pairs_ = static_cast<int>(spec.Int("speed_pairs", 1, 1000));
  }

  Result<std::vector<Cell>> Plan(LabModel& model) override {
    const Result<std::vector<PrefixRow>> rows = RowsOfPolicies(model, policies_);
    if (!rows.ok()) return Error{rows.error()};
    left_out_.clear();
    std::vector<std::string> beside;
    for (const std::string& way : beside_) {
      const Status can = CheckTimedWay(model, way);
      if (can.ok()) {
        beside.push_back(way);
      } else {
        left_out_.push_back(fmt::format("{} is left out: {}", way, can.error()));
      }
    }
    Result<std::vector<LabPrefix>> prefixes = PlanPrefixes(model, prefixes_);
    if (!prefixes.ok()) return Error{prefixes.error()};
    std::vector<Cell> cells;
    for (LabPrefix& prefix : prefixes.value()) {
      rows_.Add(std::move(prefix), rows.value(), n_speed_pairs_, cells);
      const Cell last = cells.back();
      const Json& shared = rows_.PrefixOf(last.group).shared;
      for (const std::string& way : beside) {
        cells.push_back(MakeCell("matched-speed", shared, {{"policy", way}}, last.n_rows));
        cells.back().memory = TimedWayMemory(model, way, last.n_rows);
      }
    }
    return cells;
  }

  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    for (const std::string& text : left_out_) run.Warn(text);
    left_out_.clear();
    std::vector<Cell> rows, beside;
    for (const Cell& cell : cells)
      (IsTimedWay(cell.parameters["policy"]) ? beside : rows).push_back(cell);
    if (!rows.empty()) {
      const Status ran = rows_.RunGroup(run, rows);
      if (!ran.ok()) return ran;
    }
    if (beside.empty()) return Status();
    return RunTimedCells(run, rows_.PrefixOf(cells[0].group), beside, n_speed_pairs_);
  }

 private:
  PrefixSpec prefixes_;
  std::vector<std::string> policies_, beside_;
  int n_speed_pairs_ = 0;
  PrefixRows rows_{"matched-speed"};
  std::vector<std::string> left_out_;  // of `beside`: not told yet
};

// A row of the table: dense, the control, what is timed beside, a policy.
struct SpeedRow {
  std::string name;
  bool is_baseline = false, is_host = false, is_exact = false;
  double read = std::nan("");
  PooledMatch greedy, text;
  std::vector<double> tokens_per_second, dense_tokens_per_second;
  std::map<std::string, double> ratios;  // to dense, by prefix

  bool is_policy() const { return !is_baseline && !is_host && !is_exact; }
  std::vector<double> Ratios() const {
    std::vector<double> values;
    for (const auto& [prefix, ratio] : ratios) values.push_back(ratio);
    return values;
  }
  // To another row, by prefixes that both have.
  std::vector<double> RatiosTo(const SpeedRow& other) const {
    std::vector<double> values;
    for (const auto& [prefix, ratio] : ratios) {
      const auto its = other.ratios.find(prefix);
      if (its != other.ratios.end()) values.push_back(ratio / its->second);
    }
    return values;
  }
  double MedianRatio() const { return Quantile(Ratios(), 0.5); }
};

SpeedRow OfRuns(const RowRuns& runs) {
  SpeedRow row;
  row.name = runs.policy;
  row.is_baseline = runs.IsBaseline();
  row.read = Mean(runs.All([](const RowRun& run) { return run.read; }));
  row.greedy = PoolMatch(runs, GreedyOf);
  row.text = PoolMatch(runs, TextOf);
  for (const RowRun& run : runs.runs) {
    row.tokens_per_second.push_back(run.tokens_per_second);
    row.dense_tokens_per_second.push_back(run.dense_tokens_per_second);
    row.ratios[run.prefix] = run.speed_ratio;
  }
  return row;
}

// What is timed beside, of the cells whose parameters are `shared`, in the order of kTimedWays.
std::vector<SpeedRow> TimedRows(std::span<const FinishedCell> cells, const Json& shared) {
  std::vector<SpeedRow> rows;
  for (const char* way : kTimedWays) {
    SpeedRow row;
    row.name = way;
    row.is_host = IsHostWay(way);
    row.is_exact = !row.is_host;
    for (const FinishedCell& cell : cells) {
      if (cell.parameters.value("policy", "") != way ||
          CellId(SharedParameters(cell.parameters)) != CellId(shared))
        continue;
      for (const Json& line : cell.lines) {
        if (line.value("record", "") != "speed") continue;
        row.tokens_per_second.push_back(line["tokens_per_second"].get<double>());
        row.dense_tokens_per_second.push_back(line["dense_tokens_per_second"].get<double>());
        row.ratios[PrefixName(cell.parameters)] = line["speed_ratio_median"].get<double>();
        if (!row.is_exact) continue;
        row.read = 1;
        row.greedy.n += line["n_decisions"].get<int64_t>();
        row.greedy.n_equal += line["n_equal"].get<int64_t>();
      }
    }
    if (!row.ratios.empty()) rows.push_back(std::move(row));
  }
  return rows;
}

// Dense and the control, what is timed beside, policies by speed.
std::vector<SpeedRow> RowsOf(const RowSetting& setting, std::span<const FinishedCell> cells) {
  std::vector<SpeedRow> rows, policies;
  for (const RowRuns& runs : setting.rows) {
    if (!runs.runs.empty()) (runs.IsBaseline() ? rows : policies).push_back(OfRuns(runs));
  }
  for (SpeedRow& row : TimedRows(cells, setting.shared)) rows.push_back(std::move(row));
  std::stable_sort(policies.begin(), policies.end(), [](const SpeedRow& a, const SpeedRow& b) {
    return a.MedianRatio() > b.MedianRatio();
  });
  rows.insert(rows.end(), policies.begin(), policies.end());
  return rows;
}

// llama.cpp's faster row; null: neither was timed.
const SpeedRow* BestHost(std::span<const SpeedRow> rows) {
  const SpeedRow* best = nullptr;
  for (const SpeedRow& row : rows) {
    if (row.is_host && (best == nullptr || row.MedianRatio() > best->MedianRatio())) best = &row;
  }
  return best;
}

std::string RatioText(const std::vector<double>& ratios) {
  if (ratios.empty()) return "-";
  return fmt::format("{:.2f} ({:.2f} to {:.2f})", Quantile(ratios, 0.5),
                     *std::min_element(ratios.begin(), ratios.end()), Maximum(ratios));
}

bool Meets(const PooledMatch& match) { return match.n > 0 && match.share() >= kTarget; }
std::string MeetsText(const PooledMatch& match) {
  return match.n == 0 ? "-" : Meets(match) ? "yes" : "no";
}

// "1.30 times dense, 1.90 times llama.cpp's best"
std::string TimesText(const SpeedRow& row, const SpeedRow* host) {
  std::string text = fmt::format("{:.2f} times dense", row.MedianRatio());
  const std::vector<double> ratios = host ? row.RatiosTo(*host) : std::vector<double>();
  if (!ratios.empty())
    text += fmt::format(", {:.2f} times llama.cpp's best", Quantile(ratios, 0.5));
  return text;
}

// "on dense's continuation: condense:budget=20%, 1.30 times dense, keeps …"
std::string Fastest(std::span<const SpeedRow> rows, PooledMatch SpeedRow::*teacher,
                    const char* name) {
  const SpeedRow* host = BestHost(rows);
  std::string control;
  const SpeedRow* fastest = nullptr;
  bool any = false;
  for (const SpeedRow& row : rows) {
    const PooledMatch& match = row.*teacher;
    any = any || match.n > 0;
    if (row.name == "control" && match.n > 0) control = "; the control keeps " + MatchText(match);
    if (!row.is_policy() || !Meets(match)) continue;
    if (fastest == nullptr) fastest = &row;  // the rows are by speed
  }
  if (!any) return "";
  if (fastest == nullptr) return fmt::format("on {}: none of these settings{}\n", name, control);
  return fmt::format("on {}: {}, {}, keeps {}{}\n", name, fastest->name, TimesText(*fastest, host),
                     MatchText(fastest->*teacher), control);
}

std::string ExactNote(std::span<const SpeedRow> rows) {
  for (const SpeedRow& row : rows) {
    if (!row.is_exact) continue;
    return fmt::format(
        "exact decoding with drafts looked up in the context: {}, keeps {};\n"
        "          faster the more of the text was there before\n",
        TimesText(row, BestHost(rows)), MatchText(row.greedy));
  }
  return "every decision is kept by exact decoding alone: `condense run --mode exact`\n";
}

std::string HostNote(std::span<const SpeedRow> rows) {
  const SpeedRow* best = BestHost(rows);
  if (best == nullptr)
    return "llama.cpp itself was not timed here: `beside` in the spec; `make bench` does, too\n";
  return fmt::format(
      "llama.cpp  its own attention, in contexts of this process that the plug-in is kept out of, "
      "prefilled\n"
      "          by itself, with the same cache types and threads; in turns with dense\n"
      "to llama.cpp  ratio over that of {}, its faster row, on the same prefix\n",
      best->name);
}

LabTable SpeedTable(const RowSetting& setting, std::span<const FinishedCell> cells) {
  const std::vector<SpeedRow> rows = RowsOf(setting, cells);
  const SpeedRow* host = BestHost(rows);
  LabTable table;
  table.title = "matched-speed: " + setting.Title();
  table.columns = {{"setting", true, 0},    {"read", false, 1},       {"n", false, 2},
                   {"TF, greedy", true, 1}, {"99 %", true, 0},        {"TF, text", true, 1},
                   {"99 %", true, 2},       {"tokens/s", false, 0},   {"dense", false, 1},
                   {"ratio", true, 0},      {"to llama.cpp", true, 0}};
  for (const SpeedRow& row : rows) {
    table.rows.push_back(
        {row.name, PercentText(row.read), row.greedy.n == 0 ? "-" : fmt::format("{}", row.greedy.n),
         MatchText(row.greedy), MeetsText(row.greedy), MatchText(row.text), MeetsText(row.text),
         fmt::format("{:.1f}", Quantile(row.tokens_per_second, 0.5)),
         fmt::format("{:.1f}", Quantile(row.dense_tokens_per_second, 0.5)), RatioText(row.Ratios()),
         host ? RatioText(row.RatiosTo(*host)) : std::string("-")});
  }
  table.notes = "fastest setting that keeps 99 % of dense's decisions,\n" +
                Fastest(rows, &SpeedRow::greedy, "dense's continuation") +
                Fastest(rows, &SpeedRow::text, "the text's own tokens") + ExactNote(rows) +
                "TF, 99 %  share of decisions equal to dense's, all prefixes together (95 %: "
                "Wilson, its lower bound first);\n"
                "          yes: the share itself reaches 99 %\n"
                "tokens/s  medians over prefixes, blocks of dense and the setting in turns; ratio "
                "with its range\n" +
                HostNote(rows);
  return table;
}

std::vector<LabTable> Tables(std::span<const FinishedCell> cells) {
  std::vector<FinishedCell> rows;
  for (const FinishedCell& cell : cells) {
    if (!IsTimedWay(cell.parameters.value("policy", ""))) rows.push_back(cell);
  }
  std::vector<LabTable> tables;
  for (const RowSetting& setting : CollectSettings(rows))
    tables.push_back(SpeedTable(setting, cells));
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
