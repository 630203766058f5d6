// `heavy-hitter`: arXiv 2602.06317 v3, table 4: block means beside the rule of H2O (arXiv
// 2306.14048) at 97 rows a head and at 20 %, on needles at 1K to 2K and on the perplexity of 32
// positions of one stream of 1,024 tokens. The needles are those of `needle`, every one another
// fact; the perplexity is the text's own, of lab/compare.h's row.
#include <fmt/format.h>

#include <map>

#include "lab/experiment.h"
#include "lab/prefix_rows.h"
#include "lab/tasks/item_table.h"
#include "lab/tasks/needle_items.h"
#include "metrics/stats.h"

namespace condense {
namespace {

constexpr const char* kName = "heavy-hitter";
constexpr const char* kNeedles = "needles";
constexpr const char* kPerplexity = "PPL";

constexpr const char* kDefaultSpec = R"(experiment = "heavy-hitter"
models = []                  # GGUF files; none: the default model

# Needles: contexts × depths × facts, 30 in all; keys as in `needle`.
text = "war-and-peace.txt"
offset = 20000
contexts = [1000, 1500, 2000]
depths = [0.1, 0.3, 0.5, 0.7, 0.9]
facts = 2                    # a context and depth, all of a context unlike
distractors = 2
seed = 1
form = "chat"
sparse_from = ["question"]
tokens = 8

# Perplexity: the last `positions` of `stream` tokens of a text, each by a decode step.
stream_text = "wikitext-2-raw-test.txt"
stream_offsets = [0]
stream = 1024
positions = 32

# Beside dense and its control, which always run; of both parts.
policies = ["h2o:tokens=97", "mean:tokens=97", "h2o:budget=20%", "mean:budget=20%",
            "condense:budget=8%", "condense:budget=20%"]
)";

constexpr const char* kSetting = "Qwen2-0.5B, on a GPU";
constexpr const char* kSource = "arXiv 2602.06317 v3, table 4";

PublishedFigure Needles(const char* policy, const char* value, double n) {
  return {kNeedles, Json{{"policy", policy}}, value, n / 30, n / 30, kSetting, kSource};
}
PublishedFigure Perplexity(const char* policy, const char* value, double figure) {
  return {kPerplexity, Json{{"policy", policy}}, value, figure, figure, kSetting, kSource};
}

bool IsStream(const Json& parameters) { return parameters.contains("stream"); }

// Of one policy on the streams: [n_streams].
struct StreamFigures {
  std::vector<double> perplexities, changes;  // changes against dense, %
};

std::map<std::string, StreamFigures> ReadStreams(std::span<const FinishedCell> cells,
                                                 const std::string& model) {
  std::map<std::string, StreamFigures> figures;
  for (const FinishedCell& cell : cells) {
    if (!IsStream(cell.parameters) || cell.parameters["model"] != model) continue;
    for (const Json& line : cell.lines) {
      if (line["record"] != "policy" || line["teacher"] != "text") continue;
      StreamFigures& of = figures[line["policy"]];
      of.perplexities.push_back(line["ppl_sparse"].get<double>());
      of.changes.push_back(100 * (line["ppl_ratio"].get<double>() - 1));
    }
  }
  return figures;
}

std::string MeanText(const std::vector<double>& values, const char* form) {
  return values.empty() ? "–" : fmt::format(fmt::runtime(form), Mean(values));
}

std::vector<LabTable> Tables(std::span<const FinishedCell> cells) {
  const ExperimentInfo& info = *FindExperiment(kName).value();
  const auto model = [](const Json& parameters) { return parameters["model"].get<std::string>(); };
  const auto column = [](const Json& parameters) {
    return IsStream(parameters) ? "" : std::to_string(parameters["context"].get<int>());
  };
  std::vector<LabTable> tables;
  for (const ItemGrid& grid : ItemGrids(cells, model, column)) {
    std::map<std::string, StreamFigures> streams = ReadStreams(cells, grid.title);
    LabTable table;
    table.title = "Heavy hitters and block means; " + grid.title;
    table.columns = {{"policy", true}, {"first, %", false},   {"answer, %", false, 1},
                     {"n", false, 1},  {"KV read", false, 2}, {"published", false},
                     {"PPL", false},   {"ΔPPL", false, 1},    {"published", false}};
    for (const std::string& policy : grid.policies) {
      const ItemCounts all = grid.Together(policy, false);
      const StreamFigures& stream = streams[policy];
      table.rows.push_back(
          {policy, WilsonText(all.n_first, all.n), WilsonText(all.n_full, all.n),
           std::to_string(all.n), all.n > 0 ? PercentText(all.ReadShare()) : "–",
           PublishedAt(info, kNeedles, policy), MeanText(stream.perplexities, "{:.2f}"),
           MeanText(stream.changes, "{:+.1f} %"), PublishedAt(info, kPerplexity, policy)});
    }
    std::string floors;
    for (const std::string& context : grid.columns) {
      if (grid.AtFloor(context, false))
        floors += (floors.empty() ? "" : ", ") + context + " tokens *";
    }
    table.notes =
        "first: first tokens of needles that are right, as published; %: with Wilson's interval at "
        "95 %\n" +
        (floors.empty() ? "" : floors + "; ") + FloorNote(grid, false) + PublishedNote(info);
    tables.push_back(std::move(table));
  }
  return tables;
}

class HeavyHitter : public Experiment {
 public:
  void Read(SpecReader& spec) override {
    grid_ = ReadNeedleGrid(spec);
    streams_.texts = {spec.Text("stream_text")};
    streams_.offsets = spec.Ints("stream_offsets", 0, int64_t{1} << 30);
    const int64_t stream = spec.Int("stream", 3, 1 << 20);
    const int64_t positions = spec.Int("positions", 1, 1 << 20);
    // The token before the first position is the first that a step is fed.
    if (positions + 2 > stream)
      spec.Fail("positions", fmt::format("{} positions need a stream of {} tokens or more",
                                         positions, positions + 2));
    streams_.n_generate = static_cast<int>(positions) + 1;
    streams_.contexts = {stream - streams_.n_generate};
    n_stream_ = stream;
  }

  Result<std::vector<Cell>> Plan(LabModel& model) override {
    std::vector<Cell> cells;
    const Status planned = PlanNeedles(model, grid_, /*unlike=*/true, needles_, cells);
    if (!planned.ok()) return Error{planned.error()};
    const Result<std::vector<PrefixRow>> rows = RowsOfPolicies(model, grid_.policies);
    if (!rows.ok()) return Error{rows.error()};
    Result<std::vector<LabPrefix>> prefixes = PlanPrefixes(model, streams_);
    if (!prefixes.ok()) return Error{prefixes.error()};
    for (LabPrefix& prefix : prefixes.value()) {
      prefix.shared["stream"] = n_stream_;
      rows_.Add(std::move(prefix), rows.value(), /*n_speed_pairs=*/0, cells);
    }
    return cells;
  }

  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    return IsStream(cells[0].parameters) ? rows_.RunGroup(run, cells)
                                         : needles_.RunGroup(run, cells);
  }

 private:
  NeedleGrid grid_;
  PrefixSpec streams_;
  int64_t n_stream_ = 0;
  ItemPlan needles_{kName};
  PrefixRows rows_{kName};
};

CONDENSE_REGISTER_EXPERIMENT(
    heavy_hitter,
    ExperimentInfo{
        .name = kName,
        .title = "block means beside heavy hitters, on needles and perplexity",
        .repeats = "arXiv 2602.06317, table 4: 30 needles at 1K to 2K and the perplexity of 32 "
                   "positions, at 97 rows a head and at 20 %; facts and texts are ours",
        .default_spec = kDefaultSpec,
        .published =
            {Needles("dense", "17/30", 17), Perplexity("dense", "12.02", 12.02),
             Needles("h2o:tokens=97", "0/30", 0), Perplexity("h2o:tokens=97", "26.48", 26.48),
             Needles("mean:tokens=97", "9/30", 9), Perplexity("mean:tokens=97", "21.53", 21.53),
             Needles("h2o:budget=20%", "10/30", 10), Perplexity("h2o:budget=20%", "21.26", 21.26),
             Perplexity("mean:budget=20%", "12.91", 12.91)},
        .make = [] { return std::make_unique<HeavyHitter>(); },
        .tables = Tables});

}  // namespace
}  // namespace condense
