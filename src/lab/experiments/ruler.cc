// `ruler`: tasks of RULER (arXiv 2404.06654) that need no file, scored by string_match_all:
// retrieval among repeated sentences and among needles, variable tracking, frequent words. A prompt
// is prefilled dense but for its last token; the whole answer is decoded under the policy.
#include "lab/tasks/ruler.h"

#include <fmt/format.h>

#include "lab/experiment.h"
#include "lab/row_figures.h"
#include "lab/tasks/item_run.h"
#include "lab/tasks/item_table.h"

namespace condense {
namespace {

constexpr const char* kName = "ruler";

constexpr const char* kDefaultSpec = R"(experiment = "ruler"
models = []                  # GGUF files; none: the default model

tasks = ["niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "fwe"]
contexts = [4096]            # tokens of prompt and answer together, at most
samples = 10                 # a task and context
seed = 1                     # of the samples
form = "chat"                # the model's chat template; or "plain"
# Beside dense and its control, which always run.
policies = ["mean:budget=8%", "quest:budget=8%", "condense:budget=8%"]
)";

std::string TitleOf(const Json& parameters) {
  return fmt::format("{}, {} tokens, {} form", ModelText(parameters),
                     parameters["context"].get<int>(), parameters["form"].get<std::string>());
}

// Hundredths of a score: RULER's unit.
std::string ScoreText(const ItemCounts& counts) {
  return counts.n == 0 ? "–" : fmt::format("{:.0f}", 100 * counts.scores / counts.n);
}

std::vector<LabTable> Tables(std::span<const FinishedCell> cells) {
  std::vector<LabTable> tables;
  const auto task = [](const Json& parameters) { return parameters["task"].get<std::string>(); };
  for (const ItemGrid& grid : ItemGrids(cells, TitleOf, task)) {
    LabTable table;
    table.title = "RULER: string_match_all, %; " + grid.title;
    table.columns = {{"policy", true}};
    for (const std::string& column : grid.columns)
      table.columns.push_back({FloorMarked(grid, column, true), false, 1});
    table.columns.push_back({"mean", false});
    table.columns.push_back({"n", false});
    table.columns.push_back({"all right, %", false, 2});
    table.columns.push_back({"KV read", false, 3});
    for (const std::string& policy : grid.policies) {
      std::vector<std::string> row = {policy};
      for (const std::string& column : grid.columns)
        row.push_back(ScoreText(grid.At(policy, column)));
      const ItemCounts all = grid.Together(policy, true);
      row.push_back(ScoreText(all));
      row.push_back(std::to_string(all.n));
      row.push_back(WilsonText(all.n_full, all.n));
      row.push_back(all.n > 0 ? PercentText(all.ReadShare()) : "–");
      table.rows.push_back(std::move(row));
    }
    table.notes = "all right: items of which nothing is missing, with Wilson's interval at 95 %\n" +
                  FloorNote(grid, true);
    tables.push_back(std::move(table));
  }
  return tables;
}

class Ruler : public Experiment {
 public:
  void Read(SpecReader& spec) override {
    constexpr int64_t kMaxTokens = int64_t{1} << 30;
    tasks_ = spec.Texts("tasks");
    for (const std::string& task : tasks_) {
      const Status known = CheckRulerTask(task);
      if (!known.ok()) spec.Fail("tasks", known.error());
    }
    contexts_ = spec.Ints("contexts", 1, kMaxTokens);
    n_samples_ = static_cast<int>(spec.Int("samples", 1, 100'000));
    seed_ = static_cast<uint64_t>(spec.Int("seed", 0, kMaxTokens));
    form_ = spec.Choice("form", {"chat", "plain"});
    policies_ = spec.Policies("policies", 0);
  }

  Result<std::vector<Cell>> Plan(LabModel& model) override {
    std::vector<Cell> cells;
    const Result<std::vector<std::string>> rows = RowsOf(model, policies_);
    if (!rows.ok()) return Error{rows.error()};
    const Result<TaskTokeniser> tokeniser = TokeniserOf(model.model(), form_);
    if (!tokeniser.ok()) return Error{tokeniser.error()};
    for (const int64_t context : contexts_) {
      for (const std::string& task : tasks_) {
        for (int sample = 0; sample < n_samples_; ++sample) {
          const Result<TaskItem> item =
              MakeRuler(tokeniser.value(), {.task = task,
                                            .seed = seed_,
                                            .n_context = static_cast<int>(context),
                                            .sample = sample});
          if (!item.ok()) return Error{item.error()};
          Json shared = model.Parameters();
          shared["form"] = form_;
          shared["seed"] = seed_;
          shared["context"] = context;
          shared["task"] = task;
          shared["sample"] = sample;
          const Status added =
              plan_.Add(model, shared, item.value(), SparseFrom::kAnswer, rows.value(), cells);
          if (!added.ok()) return Error{added.error()};
        }
      }
    }
    return cells;
  }

  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    return plan_.RunGroup(run, cells);
  }

 private:
  std::vector<std::string> tasks_, policies_;
  std::vector<int64_t> contexts_;
  int n_samples_ = 0;
  uint64_t seed_ = 0;
  std::string form_;
  ItemPlan plan_{kName};
};

CONDENSE_REGISTER_EXPERIMENT(ruler,
                             ExperimentInfo{
                                 .name = kName,
                                 .title = "tasks of RULER that need no file",
                                 .repeats = "arXiv 2404.06654: niah_single_1, niah_multikey_2, "
                                            "niah_multikey_3, vt, fwe, by its settings and "
                                            "string_match_all; draws and key words are ours",
                                 .default_spec = kDefaultSpec,
                                 .make = [] { return std::make_unique<Ruler>(); },
                                 .tables = Tables});

}  // namespace
}  // namespace condense
