// `needle`: arXiv 2602.06317 v3, table 2: a fact in a long text, asked for behind it; contexts ×
// depths × facts. Judged by the first token, as there, and by the whole answer. The paper tells
// neither its facts nor where sparse decoding begins; since its figures change with `reuse`,
// several sparse steps came before the first token: here those of the question (`sparse_from`).
#include <fmt/format.h>

#include "lab/experiment.h"
#include "lab/row_figures.h"
#include "lab/tasks/item_table.h"
#include "lab/tasks/needle_items.h"

namespace condense {
namespace {

constexpr const char* kName = "needle";
constexpr const char* kFirst = "first token";

constexpr const char* kDefaultSpec = R"(experiment = "needle"
models = []                  # GGUF files; none: the default model

text = "war-and-peace.txt"   # the haystack
offset = 20000               # tokens of it that are skipped
contexts = [2000, 4000, 8000]            # tokens of the whole prompt
depths = [0.1, 0.3, 0.5, 0.7, 0.9]       # share of the text before the fact
facts = 3                    # a context and depth
distractors = 2              # sentences of the fact's form, elsewhere
seed = 1                     # of facts, distractors and their places
form = "chat"                # the model's chat template; or "plain"
# What is decoded under the policy: "question", its tokens and the answer's, the text alone being
# prefilled; "answer", the prefill has read the question. Both may be listed.
sparse_from = ["question"]
tokens = 8                   # of an answer
# Beside dense and its control, which always run. 97 rows are blocks=2.
policies = ["mean:blocks=2", "mean:blocks=2,reuse=4", "mean:blocks=2,reuse=16", "mean:budget=8%",
            "quest:budget=8%", "condense:budget=8%"]
)";

PublishedFigure Published(const char* policy, const char* value, double n) {
  return {kFirst,
          Json{{"policy", policy}},
          value,
          n / 45,
          n / 45,
          "Qwen2-0.5B, on a GPU",
          "arXiv 2602.06317 v3, table 2"};
}

std::string ColumnOf(const Json& parameters) {
  return std::to_string(parameters["context"].get<int>());
}

std::vector<LabTable> Tables(std::span<const FinishedCell> cells) {
  const ExperimentInfo& info = *FindExperiment(kName).value();
  std::vector<LabTable> tables;
  for (const ItemGrid& grid : ItemGrids(cells, NeedleSetting, ColumnOf)) {
    LabTable table;
    table.title = "Needle: right answers; " + grid.title;
    table.columns = {{"policy", true}};
    for (const std::string& column : grid.columns) {
      table.columns.push_back({FloorMarked(grid, column, false) + " first", false, 2});
      table.columns.push_back({"answer", false, 3});
    }
    table.columns.push_back({"first, %", false});
    table.columns.push_back({"answer, %", false});
    table.columns.push_back({"n", false, 1});
    table.columns.push_back({"KV read", false, 2});
    table.columns.push_back({"published", false});
    for (const std::string& policy : grid.policies) {
      std::vector<std::string> row = {policy};
      for (const std::string& column : grid.columns) {
        const ItemCounts& counts = grid.At(policy, column);
        row.push_back(CountText(counts.n_first, counts.n));
        row.push_back(CountText(counts.n_full, counts.n));
      }
      const ItemCounts all = grid.Together(policy, false);
      row.push_back(WilsonText(all.n_first, all.n));
      row.push_back(WilsonText(all.n_full, all.n));
      row.push_back(std::to_string(all.n));
      row.push_back(all.n > 0 ? PercentText(all.ReadShare()) : "–");
      row.push_back(PublishedAt(info, kFirst, Json{{"policy", policy}}));
      table.rows.push_back(std::move(row));
    }
    table.notes =
        "first: first tokens that are right, as published; %: with Wilson's interval at 95 %\n" +
        FloorNote(grid, false) + PublishedNote(info);
    tables.push_back(std::move(table));
  }
  return tables;
}

class Needle : public Experiment {
 public:
  void Read(SpecReader& spec) override { grid_ = ReadNeedleGrid(spec); }
  Result<std::vector<Cell>> Plan(LabModel& model) override {
    plan_ = ItemPlan();
    const Status planned = PlanNeedles(model, kName, grid_, /*unlike=*/false, plan_);
    if (!planned.ok()) return Error{planned.error()};
    return plan_.cells();
  }
  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    return plan_.RunGroup(run, cells);
  }

 private:
  NeedleGrid grid_;
  ItemPlan plan_;
};

CONDENSE_REGISTER_EXPERIMENT(
    needle,
    ExperimentInfo{
        .name = kName,
        .title = "a fact found again in a long text",
        .repeats =
            "arXiv 2602.06317, table 2: contexts × depths × facts at 97 rows and reuse 1, 4, "
            "16; facts, distractors and texts are ours, and the whole answer is judged too",
        .default_spec = kDefaultSpec,
        .published = {Published("dense", "27/45", 27), Published("mean:blocks=2", "8/45", 8),
                      Published("mean:blocks=2,reuse=4", "4/45", 4),
                      Published("mean:blocks=2,reuse=16", "3/45", 3)},
        .make = [] { return std::make_unique<Needle>(); },
        .tables = Tables});

}  // namespace
}  // namespace condense
