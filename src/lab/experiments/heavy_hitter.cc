// `heavy-hitter`: arXiv 2602.06317 v3, table 4: block means beside the rule of H2O (arXiv
// 2306.14048) at 97 rows a head and at 20 %, on needles at 1K to 2K and on the perplexity of 32
// positions of one stream of 1,024 tokens. The needles are those of `needle`, every one another
// fact; the perplexity is the text's own, of lab/compare.h's row.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "lab/compare_cells.h"
#include "lab/experiment.h"
#include "lab/row_figures.h"
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
bool IsBaseline(const std::string& policy) { return policy == "dense" || policy == "control"; }

// Where the needles of a policy stood: what was asked elsewhere is no row of the same table.
struct Places {
  std::set<int64_t> contexts;
  std::set<double> depths;

  bool operator==(const Places&) const = default;
  void Add(const Json& parameters) {
    contexts.insert(parameters["context"].get<int64_t>());
    depths.insert(parameters["depth"].get<double>());
  }
  bool Hold(const Json& parameters) const {
    return contexts.contains(parameters["context"].get<int64_t>()) &&
           depths.contains(parameters["depth"].get<double>());
  }
  std::string Text() const {
    return fmt::format("needles in contexts of {} tokens at depths {}", fmt::join(contexts, ", "),
                       fmt::join(depths, ", "));
  }
};

// Needles of one setting, of policies asked at the same places and of dense and the control there.
struct LikeNeedles {
  std::string model;
  Places places;
  ItemGrid grid;
};

std::vector<LikeNeedles> CollectNeedles(std::span<const FinishedCell> cells) {
  std::map<std::string, std::map<std::string, Places>> asked;  // by setting and policy
  for (const FinishedCell& cell : cells) {
    if (IsStream(cell.parameters)) continue;
    asked[NeedleSetting(cell.parameters)][cell.parameters["policy"]].Add(cell.parameters);
  }
  std::vector<LikeNeedles> all;
  for (const auto& [setting, by_policy] : asked) {
    std::vector<Places> tables;
    for (const auto& [policy, places] : by_policy) {
      if (!IsBaseline(policy) && std::find(tables.begin(), tables.end(), places) == tables.end())
        tables.push_back(places);
    }
    if (tables.empty()) tables.push_back(by_policy.begin()->second);  // nothing but baselines yet
    for (const Places& places : tables) {
      std::string model;
      const auto column = [&](const Json& parameters) -> std::string {
        if (IsStream(parameters) || NeedleSetting(parameters) != setting ||
            !places.Hold(parameters))
          return "";
        const std::string policy = parameters["policy"];
        if (!IsBaseline(policy) && by_policy.at(policy) != places) return "";
        model = ModelText(parameters);
        return std::to_string(parameters["context"].get<int64_t>());
      };
      for (ItemGrid& grid : ItemGrids(
               cells, [&](const Json&) { return setting; }, column))
        all.push_back({model, places, std::move(grid)});
    }
  }
  return all;
}

// Of one policy on the streams: [n_streams].
struct StreamFigures {
  std::vector<double> perplexities, changes;  // changes against dense, %
};
using StreamsByPolicy = std::map<std::string, StreamFigures>;

// "perplexity of the last 32 of 1024 tokens"
std::string StreamSetting(const Json& parameters) {
  const int64_t stream = parameters["stream"], context = parameters["context"];
  return fmt::format("perplexity of the last {} of {} tokens", stream - context - 1, stream);
}

// A model's, by what streams in one table have in common.
std::map<std::string, StreamsByPolicy> ReadStreams(std::span<const FinishedCell> cells,
                                                   const std::string& model) {
  std::map<std::string, StreamsByPolicy> settings;
  for (const FinishedCell& cell : cells) {
    if (!IsStream(cell.parameters) || ModelText(cell.parameters) != model) continue;
    StreamsByPolicy& by_policy = settings[StreamSetting(cell.parameters)];
    for (const Json& line : cell.lines) {
      if (line["record"] != "policy" || line["teacher"] != "text") continue;
      StreamFigures& of = by_policy[line["policy"]];
      of.perplexities.push_back(line["ppl_sparse"].get<double>());
      of.changes.push_back(100 * (line["ppl_ratio"].get<double>() - 1));
    }
  }
  return settings;
}

std::string MeanText(const std::vector<double>& values, const char* form) {
  return values.empty() ? "–" : fmt::format(fmt::runtime(form), Mean(values));
}

// `of_streams`: their setting, "" where there are none.
LabTable HitterTable(const LikeNeedles& needles, const std::string& of_streams,
                     StreamsByPolicy streams) {
  const ExperimentInfo& info = *FindExperiment(kName).value();
  const ItemGrid& grid = needles.grid;
  LabTable table;
  table.title = "Heavy hitters and block means; " + grid.title;
  table.columns = {{"policy", true}, {"first, %", false},   {"answer, %", false, 1},
                   {"n", false, 1},  {"KV read", false, 2}, {"published", false},
                   {"PPL", false},   {"ΔPPL", false, 1},    {"published", false}};
  for (const std::string& policy : grid.policies) {
    const Json at{{"policy", policy}};
    const ItemCounts all = grid.Together(policy, false);
    const StreamFigures& stream = streams[policy];
    table.rows.push_back({policy, WilsonText(all.n_first, all.n), WilsonText(all.n_full, all.n),
                          std::to_string(all.n), all.n > 0 ? PercentText(all.ReadShare()) : "–",
                          PublishedAt(info, kNeedles, at), MeanText(stream.perplexities, "{:.2f}"),
                          MeanText(stream.changes, "{:+.1f} %"),
                          PublishedAt(info, kPerplexity, at)});
  }
  std::string floors;
  for (const std::string& context : grid.columns) {
    if (grid.AtFloor(context, false))
      floors += (floors.empty() ? "" : ", ") + context + " tokens *";
  }
  table.notes =
      needles.places.Text() + (of_streams.empty() ? "" : "; " + of_streams) +
      "\nfirst: first tokens of needles that are right, as published; %: with Wilson's interval at "
      "95 %\n" +
      (floors.empty() ? "" : floors + "; ") + FloorNote(grid, false) + PublishedNote(info);
  return table;
}

std::vector<LabTable> Tables(std::span<const FinishedCell> cells) {
  std::vector<LabTable> tables;
  for (const LikeNeedles& needles : CollectNeedles(cells)) {
    const auto settings = ReadStreams(cells, needles.model);
    if (settings.empty()) tables.push_back(HitterTable(needles, "", {}));
    for (const auto& [setting, streams] : settings)
      tables.push_back(HitterTable(needles, setting, streams));
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
    plan_ = ItemPlan();
    const Status planned = PlanNeedles(model, kName, grid_, /*unlike=*/true, plan_);
    if (!planned.ok()) return Error{planned.error()};
    std::vector<Cell> cells = plan_.cells();
    const Result<std::vector<std::string>> rows = RowsOf(model, grid_.policies);
    if (!rows.ok()) return Error{rows.error()};
    Result<std::vector<LabPrefix>> prefixes = PlanPrefixes(model, streams_);
    if (!prefixes.ok()) return Error{prefixes.error()};
    for (LabPrefix& prefix : prefixes.value()) {
      prefix.shared["stream"] = n_stream_;
      for (const std::string& row : rows.value())
        cells.push_back(MakeCell(kName, prefix.shared, Json{{"policy", row}}, prefix.n_rows));
      prefixes_[cells.back().group] = std::move(prefix);
    }
    return cells;
  }

  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    const auto prefix = prefixes_.find(cells[0].group);
    if (prefix == prefixes_.end()) return plan_.RunGroup(run, cells);
    CompareSpec spec;
    spec.n_generate = streams_.n_generate;
    spec.n_speed_pairs = 0;
    return RunCompareCells(run, prefix->second, std::move(spec), cells);
  }

 private:
  NeedleGrid grid_;
  PrefixSpec streams_;
  int64_t n_stream_ = 0;
  ItemPlan plan_;
  std::map<std::string, LabPrefix> prefixes_;  // by group
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
