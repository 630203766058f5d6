// How much attention mass a few distant blocks hold, layer by layer: base, the heaviest blocks, a
// policy's. Repeats table 3 of arXiv 2602.06317 v3: one decision after a prompt, every layer's
// query dense's (lab/mass_probe.h). The plug-in's blocks are 16 rows; blocks of 32 and 64 are
// chosen and measured by lab/block_recall.h from the logits that the plug-in's observer reports.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/row_mask.h"
#include "base/text.h"
#include "lab/block_recall.h"
#include "lab/cells.h"
#include "lab/experiment.h"
#include "lab/mass_probe.h"
#include "lab/observation.h"
#include "lab/prefix_spec.h"
#include "lab/row_figures.h"
#include "lab/runs.h"

namespace condense {
namespace {

constexpr const char* kDefaultSpec =
    R"(# Attention mass that distant blocks hold: table 3 of arXiv 2602.06317 v3.
experiment = "mass"

# GGUF files. -m on the command line takes their place; none: the default model.
models = []

# Files of plain text: paths, or names within --texts or beside this spec.
texts = ["wikitext-2-raw-test.txt"]

# Tokens of a text before each of its prefixes. The paper has one probe.
offsets = [0, 50000, 100000, 150000, 200000]

# Tokens of a prefix; the probe is the text's next token. 2041 and it are the paper's 2,042 rows.
contexts = [2041]

# Layers, from 0; none: all. The paper's, of a model with 24.
layers = [12, 18, 22]

# Policies that score blocks, without keys of their budget; `random` is the level of chance.
# One anchor and a window of 64 rows are always read.
policies = ["mean", "random"]

# Rows read beyond these: 32 are the paper's r = 2 of 16. One block at least.
distant_rows = 32

# Rows of a block. 16 are the plug-in's, chosen by the policies as they decode. Of other sizes the
# heaviest blocks and those by mean key are chosen from logits that the plug-in reports.
block_rows = [16, 32, 64]
)";

constexpr int kAnchor = 1, kWindow = 64;
constexpr const char* kBlockMeans = "block means";

constexpr const char* kPaper = "arXiv 2602.06317 v3, table 3";
constexpr const char* kSetting = "Qwen2-0.5B on a GPU: another model and other hardware";

// Columns, and the metrics of published figures.
constexpr const char* kBase = "base";
constexpr const char* kOracle = "oracle";
constexpr const char* kPolicy = "policy";
constexpr const char* kOracleRecall = "recall, oracle";
constexpr const char* kPolicyRecall = "recall, policy";
struct Figure {
  const char* title;
  const char* key;  // of a layer_mass line
};
constexpr Figure kFigures[] = {{kBase, "base"},
                               {kOracle, "oracle"},
                               {kPolicy, "policy"},
                               {kOracleRecall, "oracle_recall"},
                               {kPolicyRecall, "policy_recall"}};

std::vector<PublishedFigure> Published() {
  struct OfLayer {
    int layer;
    double figures[5];  // as kFigures, percent
  };
  constexpr OfLayer kLayers[] = {{12, {79.59, 92.52, 92.30, 60.28, 53.75}},
                                 {18, {84.99, 94.63, 94.63, 47.13, 46.51}},
                                 {22, {69.16, 89.52, 89.47, 56.07, 55.70}}};
  std::vector<PublishedFigure> published;
  for (const OfLayer& of : kLayers) {
    for (size_t i = 0; i < std::size(kFigures); ++i) {
      PublishedFigure figure;
      figure.metric = kFigures[i].title;
      figure.at = {{"layer", of.layer}, {"block_rows", kBlockRows}};
      figure.value = fmt::format("{:.2f} %", of.figures[i]);
      figure.low = figure.high = of.figures[i] / 100;
      figure.setting = kSetting;
      figure.source = kPaper;
      published.push_back(std::move(figure));
    }
  }
  const auto larger = [&](int block_rows, const char* value, double low, double high) {
    PublishedFigure figure;
    figure.metric = kPolicyRecall;
    figure.at = {{"block_rows", block_rows}};
    figure.value = value;
    figure.low = low;
    figure.high = high;
    figure.setting = kSetting;
    figure.source = kPaper;
    published.push_back(std::move(figure));
  };
  larger(32, "31.0 to 41.6 %", 0.310, 0.416);
  larger(64, "17.9 to 31.2 %", 0.179, 0.312);
  return published;
}

Json MassLine(const LayerMass& mass) {
  return {{"record", "layer_mass"},
          {"layer", mass.layer},
          {"n_heads", mass.n_heads},
          {"base", mass.base},
          {"oracle", mass.oracle},
          {"policy", mass.policy},
          {"oracle_recall", mass.oracle_recall},
          {"policy_recall", mass.policy_recall}};
}

class Mass : public Experiment {
 public:
  void Read(SpecReader& spec) override {
    prefixes_.texts = spec.Texts("texts");
    prefixes_.offsets = spec.Ints("offsets", 0, 1'000'000'000);
    prefixes_.contexts = spec.Ints("contexts", 1, 1'000'000'000);
    prefixes_.n_generate = 1;
    layers_ = spec.Ints("layers", 0, CONDENSE_MAX_LAYERS - 1, 0);
    policies_ = spec.Policies("policies", 0);
    distant_rows_ = static_cast<int>(spec.Int("distant_rows", 1, 1'000'000));
    block_rows_ = spec.Ints("block_rows", kBlockRows, 1 << 16);
    for (int64_t rows : block_rows_) {
      if (rows % kBlockRows != 0)
        spec.Fail("block_rows", fmt::format("{} rows are no whole blocks of {}", rows, kBlockRows));
    }
    for (const std::string& policy : policies_) {
      if (!BudgetKeyOf(policy).empty())
        spec.Fail("policies", fmt::format("policy {} has a budget of its own: distant_rows sets it",
                                          Quote(policy)));
    }
  }

  Result<std::vector<Cell>> Plan(LabModel& model) override {
    const int n_layers = model.model().n_layers();
    for (int64_t layer : layers_) {
      if (layer < n_layers) continue;
      return Error{fmt::format("layers: {} has layers 0 to {}, not {}: name others in the spec",
                               model.Name(), n_layers - 1, layer)};
    }
    Result<std::vector<LabPrefix>> prefixes = PlanPrefixes(model, prefixes_);
    if (!prefixes.ok()) return Error{prefixes.error()};
    std::map<std::string, MassArms> arms;  // by policy, canonical
    for (const std::string& policy : policies_) {
      const Result<MassArms> of = ArmsOf(model, policy);
      if (!of.ok()) return Error{of.error()};
      arms[of->policy] = of.value();
    }
    std::vector<Cell> cells;
    for (LabPrefix& prefix : prefixes.value()) {
      for (int64_t rows : block_rows_) {
        Json own{{"policy", kBlockMeans},
                 {"block_rows", rows},
                 {"distant_rows", distant_rows_},
                 {"layers", LayersText()}};
        if (rows != kBlockRows) {
          cells.push_back(MakeCell("mass", prefix.shared, own, prefix.n_rows));
          continue;
        }
        for (const auto& [policy, of] : arms) {
          own["policy"] = policy;
          cells.push_back(MakeCell("mass", prefix.shared, own, prefix.n_rows));
        }
      }
      groups_[CellId(prefix.shared)] = std::move(prefix);
    }
    arms_.merge(arms);
    return cells;
  }

  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    const LabPrefix& prefix = groups_.at(cells[0].group);
    std::vector<std::string> specs;
    for (const auto& [policy, arms] : arms_) {
      specs.insert(specs.end(), {arms.base, arms.oracle, arms.policy});
    }
    const Result<Session*> session = OpenPrefilled(run, prefix.prompt, specs);
    if (!session.ok()) return Error{session.error()};
    const Token probe = prefix.continuation.front();
    const Result<std::vector<int>> layers = LayersOf(*session.value(), run.plugin(), probe);
    if (!layers.ok()) return Error{layers.error()};
    logits_.clear();
    for (const Cell& cell : cells) {
      const Status ran = RunCell(run, *session.value(), cell, probe, layers.value());
      if (!ran.ok()) return ran;
    }
    return Status();
  }

 private:
  // With the frame's default anchor and window, whatever the policy's own are.
  static Result<std::string> Spelled(const LabModel& model, const std::string& policy, int blocks) {
    return model.Canonical(
        WithKeys(policy, fmt::format("blocks={},anchor={},window={}", blocks, kAnchor, kWindow)));
  }

  Result<MassArms> ArmsOf(const LabModel& model, const std::string& policy) const {
    const int blocks = BlocksOf(kBlockRows);
    const Result<std::string> spelled = Spelled(model, policy, blocks);
    if (!spelled.ok()) {
      return Error{fmt::format("policy {} has no blocks to be measured: {}", Quote(policy),
                               spelled.error())};
    }
    const Result<std::string> base = Spelled(model, "mean", 0);
    if (!base.ok()) return Error{base.error()};
    const Result<std::string> oracle = Spelled(model, "oracle", blocks);
    if (!oracle.ok()) return Error{oracle.error()};
    return MassArms{base.value(), oracle.value(), spelled.value()};
  }

  // "12,18,22" or "all", as cells name them.
  std::string LayersText() const {
    return layers_.empty() ? "all" : fmt::format("{}", fmt::join(layers_, ","));
  }

  int BlocksOf(int64_t block_rows) const {
    return static_cast<int>(std::max<int64_t>(1, distant_rows_ / block_rows));
  }

  // The spec's, all of them with attention; none named: all that have it.
  Result<std::vector<int>> LayersOf(Session& session, const Plugin& plugin, Token probe) const {
    const Result<std::vector<int>> there = AttentionLayers(session, plugin, probe);
    if (!there.ok()) return there;
    if (there->empty())
      return Error{"the plug-in saw no attention of this model: nothing to probe"};
    if (layers_.empty()) return there;
    for (int64_t layer : layers_) {
      if (std::find(there->begin(), there->end(), layer) == there->end())
        return Error{fmt::format("layer {} has no attention that the plug-in computes", layer)};
    }
    return std::vector<int>(layers_.begin(), layers_.end());
  }

  Status RunCell(GroupRun& run, Session& session, const Cell& cell, Token probe,
                 const std::vector<int>& layers) {
    const Clock::time_point start = Clock::now();
    const int block_rows = cell.parameters["block_rows"];
    const std::string policy = cell.parameters["policy"];
    std::vector<Json> lines;
    for (int layer : layers) {
      run.Working(cell, static_cast<double>(lines.size()) / static_cast<double>(layers.size()));
      Result<LayerMass> mass =
          block_rows == kBlockRows
              ? MeasureLayerMass(session, run.plugin(), arms_.at(policy), probe, layer, {})
              : MeasureBlocks(session, run.plugin(), probe, layer, block_rows);
      if (!mass.ok()) return Error{mass.error()};
      lines.push_back(MassLine(mass.value()));
    }
    CellRecord end;
    end.policy = policy;
    end.name = PolicyName(policy);
    end.seconds = SecondsSince(start);
    return run.Finish(cell, lines, end);
  }

  Result<LayerMass> MeasureBlocks(Session& session, const Plugin& plugin, Token probe, int layer,
                                  int block_rows) {
    if (!logits_.contains(layer)) {
      const Status seen = ObserveLayer(session, plugin, probe, layer);
      if (!seen.ok()) return Error{seen.error()};
    }
    const BlockFrame frame{kAnchor, kWindow, block_rows, BlocksOf(block_rows)};
    const LayerLogits& logits = logits_.at(layer);
    return MassOfBlocks(layer, logits.heads, logits.n_kv_heads, session.position(), frame);
  }

  // The logits of one layer's query heads at the probe, the layers before it dense.
  Status ObserveLayer(Session& session, const Plugin& plugin, Token probe, int layer) {
    const Status begun = BeginRun(
        session, plugin, WithDenseBefore(fmt::format("mean:blocks=0,window={}", kWindow), layer));
    if (!begun.ok()) return begun;
    LayerLogits& logits = logits_[layer];
    const ScopedObserver observer(
        plugin,
        [&](std::span<const condense_observation> node) {
          for (const condense_observation& seen : node) {
            if (seen.layer != layer || seen.row_logits == nullptr) continue;
            logits.heads.emplace_back(seen.row_logits, seen.row_logits + seen.visible_rows);
            logits.n_kv_heads = std::max(logits.n_kv_heads, seen.kv_head + 1);
          }
        },
        /*with_logits=*/true);
    const Result<Logits> step = session.Step(probe);
    if (!step.ok()) return Error{step.error()};
    if (!logits.heads.empty()) return Status();
    return Error{
        fmt::format("layer {} left nothing out: {} visible rows are no more than are always "
                    "read; give longer contexts",
                    layer, session.position())};
  }

  PrefixSpec prefixes_;
  std::vector<int64_t> layers_, block_rows_;
  std::vector<std::string> policies_;
  int distant_rows_ = 0;
  std::map<std::string, LabPrefix> groups_;
  std::map<std::string, MassArms> arms_;
  struct LayerLogits {
    std::vector<std::vector<float>> heads;
    int32_t n_kv_heads = 0;
  };
  std::map<int, LayerLogits> logits_;  // of the group at work, by layer
};

// The probes of one policy at one block size, by layer.
struct MassRow {
  std::string policy;
  int64_t block_rows = 0;
  std::map<int, std::vector<Json>> by_layer;  // layer_mass lines, one a prefix

  std::vector<double> All(int layer, const char* key) const {
    std::vector<double> values;
    for (const Json& line : by_layer.at(layer)) {
      if (line[key].is_number()) values.push_back(line[key].get<double>());
    }
    return values;
  }
};

struct MassSetting {
  Json shared;
  std::vector<MassRow> rows;
};

std::vector<MassSetting> Collect(std::span<const FinishedCell> cells) {
  std::vector<MassSetting> settings;
  const std::string own[] = {"block_rows"};
  for (const FinishedCell& cell : cells) {
    Json shared = SharedParameters(cell.parameters, own);
    auto setting = std::find_if(settings.begin(), settings.end(), [&](const MassSetting& known) {
      return CellId(known.shared) == CellId(shared);
    });
    if (setting == settings.end())
      setting = settings.insert(settings.end(), MassSetting{std::move(shared), {}});
    const std::string policy = cell.parameters.value("policy", "");
    const int64_t block_rows = cell.parameters.value("block_rows", int64_t{0});
    auto row = std::find_if(setting->rows.begin(), setting->rows.end(), [&](const MassRow& known) {
      return known.policy == policy && known.block_rows == block_rows;
    });
    if (row == setting->rows.end())
      row = setting->rows.insert(setting->rows.end(), MassRow{policy, block_rows, {}});
    for (const Json& line : cell.lines) {
      if (line.value("record", "") == "layer_mass") row->by_layer[line["layer"]].push_back(line);
    }
  }
  return settings;
}

// What was published there; empty where nothing was.
std::vector<std::string> PublishedRow(const std::string& layer, int64_t block_rows,
                                      const Json& at) {
  const ExperimentInfo& info = *FindExperiment("mass").value();
  std::vector<std::string> texts = {layer, fmt::format("{}", block_rows), "published, mean keys",
                                    "1"};
  bool any = false;
  for (const Figure& figure : kFigures) {
    const std::string value = PublishedAt(info, figure.title, at);
    any = any || !value.empty();
    texts.push_back(value.empty() ? "-" : value);
  }
  return any ? texts : std::vector<std::string>();
}

std::string ShareText(const std::vector<double>& sample) {
  if (sample.empty()) return "-";
  std::vector<double> percent;
  for (double share : sample) percent.push_back(100 * share);
  return MeanText(percent);
}

LabTable MassTable(const MassSetting& setting) {
  LabTable table;
  table.title =
      "mass: " + setting.shared.value("model", "") +
      fmt::format(", {} rows before the probe, {} distant rows", setting.shared.value("context", 0),
                  setting.shared.value("distant_rows", 0));
  table.columns = {
      {"layer", false, 0}, {"block rows", false, 0}, {"blocks by", true, 0}, {"n", false, 1}};
  for (const Figure& figure : kFigures) table.columns.push_back({figure.title, true, 1});
  table.rows.push_back({"all", "-", "dense, control", "-", "100", "100", "100", "100", "100"});
  std::vector<int> layers;
  std::vector<int64_t> sizes;
  for (const MassRow& row : setting.rows) {
    for (const auto& [layer, lines] : row.by_layer) {
      if (std::find(layers.begin(), layers.end(), layer) == layers.end()) layers.push_back(layer);
    }
    if (std::find(sizes.begin(), sizes.end(), row.block_rows) == sizes.end())
      sizes.push_back(row.block_rows);
  }
  std::sort(layers.begin(), layers.end());
  const auto add_published = [&](const std::string& layer, int64_t size, const Json& at) {
    std::vector<std::string> row = PublishedRow(layer, size, at);
    if (!row.empty()) table.rows.push_back(std::move(row));
  };
  for (int64_t size : sizes) {
    for (int layer : layers) {
      for (const MassRow& row : setting.rows) {
        if (row.block_rows != size || !row.by_layer.contains(layer)) continue;
        std::vector<std::string> texts = {fmt::format("{}", layer), fmt::format("{}", size),
                                          row.policy,
                                          fmt::format("{}", row.by_layer.at(layer).size())};
        for (const Figure& figure : kFigures)
          texts.push_back(ShareText(row.All(layer, figure.key)));
        table.rows.push_back(std::move(texts));
      }
      add_published(fmt::format("{}", layer), size, {{"layer", layer}, {"block_rows", size}});
    }
    add_published("12 to 22", size, {{"block_rows", size}});
  }
  table.notes = fmt::format(
      "percent of the attention mass, mean over query heads, then over probes (95 %: bootstrap)\n"
      "recall     share of the mass beyond anchor and window that the chosen blocks hold\n"
      "blocks of {} rows are the plug-in's and its policies' choice; of other sizes the heaviest "
      "blocks, and those\n"
      "           by mean key, are chosen here from the logits of the rows that the plug-in "
      "reports\n"
      "dense, control  read every row: all the mass, whatever the order of sums\n"
      "published  {}: {}\n",
      kBlockRows, kPaper, kSetting);
  return table;
}

std::vector<LabTable> Tables(std::span<const FinishedCell> cells) {
  std::vector<LabTable> tables;
  for (const MassSetting& setting : Collect(cells)) tables.push_back(MassTable(setting));
  return tables;
}

CONDENSE_REGISTER_EXPERIMENT(
    mass,
    ExperimentInfo{.name = "mass",
                   .title = "attention mass that distant blocks hold, by layer and block size",
                   .repeats = "arXiv 2602.06317 v3, table 3; other models, more probes, and the "
                              "level of chance beside",
                   .default_spec = kDefaultSpec,
                   .published = Published(),
                   .make = [] { return std::make_unique<Mass>(); },
                   .tables = Tables});

}  // namespace
}  // namespace condense
