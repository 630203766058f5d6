// Rows of a chart are policies, dense and the control among them.
#include "report/lab_cost_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "report/html.h"
#include "report/tables.h"

namespace condense::report {
namespace {

constexpr size_t kFewPolicies = 10;
constexpr int kCellHeight = 30, kBarHeight = 26;  // pixels

struct Found {
  const char* id;
  const char* title;
  const char* field;
};

constexpr Found kFound[] = {
    {"needle-first", "First token of the answer by context and depth", "first_token_match"},
    {"needle", "Whole answer by context and depth", "full_match"}};

std::string PanelTitle(const PolicyRow& row, bool several_models, const std::string& model) {
  const std::string key = row.is_sparse() ? KeyHtml(row) + " " : "";
  const std::string name = row.budget ? EscapeHtml(row.Label()) : SpecHtml(row.policy);
  return key + name + (several_models ? ", " + EscapeHtml(model) : "");
}

// Items of one task and model at a context and a depth.
using Spot = std::pair<double, double>;  // context, depth

std::map<Spot, std::vector<double>> FoundAt(const std::vector<const Json*>& items,
                                            const std::string& task, const std::string& model,
                                            const char* field) {
  std::map<Spot, std::vector<double>> spots;
  for (const Json* item : items) {
    const auto context = ContextOf(*item), depth = Number(*item, "depth");
    const auto found = Share(*item, field);
    if (context && depth && found && Text(*item, "task") == task && ModelName(*item) == model)
      spots[{*context, *depth}].push_back(*found);
  }
  return spots;
}

void AddHeatMap(const LabView& lab, const Found& found, const std::string& task,
                const std::string& model, Chart& chart, Json& table) {
  for (const PolicyRow& row : lab.view.rows) {
    const auto spots = FoundAt(lab.Lines(row, "item", ""), task, model, found.field);
    if (spots.empty()) continue;
    Json cells = Json::array();
    double n_found = 0, n_all = 0;
    for (const auto& [spot, values] : spots) {
      const Pool pool = *PoolOf(values, /*of_items=*/true);
      const double hits = pool.mean * static_cast<double>(pool.n);
      n_found += hits;
      n_all += static_cast<double>(pool.n);
      cells.push_back({{"label", row.Label()},
                       {"context", spot.first},
                       {"depth", spot.second},
                       {"share", pool.mean},
                       {"said", fmt::format("{:g}/{}", hits, pool.n)},
                       {"interval", IntervalText(pool, FormatPercent)}});
      table.push_back(cells.back());
      table.back()["model"] = model;
      table.back()["n"] = pool.n;
    }
    Json spec = Spec("lab_heat.vl.json");
    spec["description"] =
        fmt::format("{}, {}: {:g} of {:g} found.", chart.title, row.Label(), n_found, n_all);
    SetHeight(spec, cells, "depth", kCellHeight);
    SetData(spec, {{"cells", std::move(cells)}});
    chart.panels.push_back(
        {fmt::format("{}<span class=\"interval\">{:g} of {:g} found</span>",
                     PanelTitle(row, lab.several_models(), model), n_found, n_all),
         std::move(spec)});
  }
}

}  // namespace

void SetLabels(Json& spec, const RunView& view, const std::string& leave_out) {
  Json labels = Json::array(), colours = Json::array();
  for (const PolicyRow& row : view.rows) {
    if (row.policy == leave_out) continue;
    labels.push_back(row.Label());
    colours.push_back(row.is_sparse() ? fmt::format("var(--c{})", row.colour + 1) : "var(--ink)");
  }
  for (Json& layer : spec["layer"]) {
    if (!layer["encoding"].contains("color")) continue;
    Json& colour = layer["encoding"]["color"];
    colour["scale"] = {{"domain", labels}, {"range", colours}};
    if (view.rows.size() > kFewPolicies) colour["legend"] = nullptr;
  }
}

void AddHeatMaps(const LabView& lab, std::vector<Chart>& charts) {
  std::set<std::string> tasks;
  for (const Json& line : lab.lab->records.policies)
    if (Number(line, "depth")) tasks.insert(Text(line, "task"));
  for (const std::string& task : tasks) {
    for (const Found& found : kFound) {
      Chart chart{.id = fmt::format("{}-{}-{}", lab.view.id, found.id, charts.size()),
                  .title = fmt::format("{}: {}", task, found.title),
                  .caption =
                      "Items found of items asked, by the length of the text and the place of the "
                      "fact in it; the stronger the colour, the more."};
      Json table = Json::array();
      for (const std::string& model : lab.models) AddHeatMap(lab, found, task, model, chart, table);
      if (chart.panels.empty()) continue;
      chart.table = TableHtml(chart.title,
                              {{"Model", "model", FormatNumber},
                               {"Policy", "label", FormatNumber},
                               {"Tokens", "context", FormatCount},
                               {"Depth", "depth", FormatPercent},
                               {"n", "n", FormatCount},
                               {"Found", "said", FormatNumber},
                               {"Share", "share", FormatPercent},
                               {"95 %", "interval", FormatNumber}},
                              table);
      charts.push_back(std::move(chart));
    }
  }
}

void AddSpeedByDepth(const LabView& lab, std::vector<Chart>& charts) {
  Json points = Json::array(), marks = Json::array(), table = Json::array();
  std::set<double> depths;
  for (const SpeedsByDepth& of : lab.speeds) {
    for (const SpeedLine& line : of.lines) {
      for (const auto& [depth, speeds] : line.at_depth) {
        depths.insert(depth);
        points.push_back({{"model", of.model},
                          {"label", line.label},
                          {"depth", depth},
                          {"rate", speeds.quartiles.median},
                          {"low", speeds.quartiles.low},
                          {"high", speeds.quartiles.high},
                          {"n", speeds.rates.size()}});
      }
    }
    for (const Lead& lead : of.leads) {
      table.push_back({{"model", of.model}, {"label", lead.label}, {"said", lead.Said()}});
      for (const Lead::Turn& turn : lead.turns)
        marks.push_back({{"model", of.model},
                         {"depth", turn.depth},
                         {"said", fmt::format("{} {} {}", lead.mark, turn.faster ? "from" : "to",
                                              FormatCount(turn.depth))}});
    }
  }
  if (points.empty()) return;
  Chart chart{.id = lab.view.id + "-depth",
              .title = "Tokens a second against depth",
              .caption =
                  "Medians of decode steps at each depth with quartiles over prefixes; dashed: "
                  "dense, in turns with the policies. A dotted line marks from where on, or up to "
                  "where, a policy is faster than dense, between two depths that were measured.",
              .spec = Spec("lab_speed.vl.json")};
  chart.table = TableHtml(chart.title,
                          {{"Model", "model", FormatNumber},
                           {"Policy", "label", FormatNumber},
                           {"Depth", "depth", FormatCount},
                           {"n", "n", FormatCount},
                           {"Tokens/s", "rate", FormatNumber},
                           {"lower quartile", "low", FormatNumber},
                           {"upper quartile", "high", FormatNumber}},
                          points);
  if (!table.empty())
    chart.table += TableHtml("Where a policy is faster than dense",
                             {{"Model", "model", FormatNumber},
                              {"Policy", "label", FormatNumber},
                              {"Beside dense", "said", FormatNumber}},
                             table);
  SetOptions(chart.spec, "model", "model", points);
  SetLabels(chart.spec, lab.view, "control");
  for (Json& layer : chart.spec["layer"])
    if (Json& x = layer["encoding"]["x"]; x.contains("axis")) x["axis"]["values"] = depths;
  SetData(chart.spec, {{"points", std::move(points)}, {"crossings", std::move(marks)}});
  charts.push_back(std::move(chart));
}

void AddLayerMass(const LabView& lab, std::vector<Chart>& charts) {
  struct Of {
    const char *field, *recall, *said;
  };
  constexpr Of kOf[] = {{"base", "", "always read"},
                        {"policy", "policy_recall", "with the policy’s blocks"},
                        {"oracle", "oracle_recall", "with the heaviest blocks"}};
  std::map<std::pair<std::string, int>, std::vector<const Json*>> by_layer;
  std::vector<std::string> labels;
  for (const Json& line : lab.lab->masses) {
    const std::string label =
        Text(line["parameters"], "policy") + ", " + lab.Setting(line["parameters"]);
    if (std::find(labels.begin(), labels.end(), label) == labels.end()) labels.push_back(label);
    by_layer[{label, line["layer"].get<int>()}].push_back(&line);
  }
  Json points = Json::array();
  for (const std::string& label : labels) {
    for (const auto& [key, lines] : by_layer) {
      if (key.first != label) continue;
      for (const Of& of : kOf) {
        const auto mass = PoolField(lines, of.field, /*of_items=*/false);
        if (!mass) continue;
        points.push_back({{"label", label},
                          {"layer", key.second},
                          {"of", of.said},
                          {"mass", mass->mean},
                          {"low", mass->low.value_or(mass->mean)},
                          {"high", mass->high.value_or(mass->mean)},
                          {"recall", OrNull(MeanField(lines, of.recall))},
                          {"n", mass->n}});
      }
    }
  }
  if (points.empty()) return;
  Chart chart{.id = lab.view.id + "-layers",
              .title = "Attention mass that chosen blocks recover",
              .caption =
                  "Of each layer alone, the layers before it dense: the mass on the rows that are "
                  "always read, with the blocks that the policy chose, and with the truly heaviest "
                  "ones. Means with 95 % bootstrap intervals where there are several probes.",
              .spec = Spec("lab_layer_mass.vl.json")};
  SetOptions(chart.spec, "cell", "label", points);
  chart.table = TableHtml(chart.title,
                          {{"Policy", "label", FormatNumber},
                           {"Layer", "layer", FormatCount},
                           {"Mass", "of", FormatNumber},
                           {"n", "n", FormatCount},
                           {"Share", "mass", FormatPercent},
                           {"from", "low", FormatPercent},
                           {"to", "high", FormatPercent},
                           {"Recall of distant mass", "recall", FormatPercent}},
                          points);
  SetData(chart.spec, {{"points", std::move(points)}});
  charts.push_back(std::move(chart));
}

void AddCostSplit(const LabView& lab, std::vector<Chart>& charts) {
  struct Part {
    const char *name, *field, *colour;
  };
  constexpr Part kParts[] = {{"select", "select_share", "var(--c1)"},
                             {"gather", "gather_share", "var(--c5)"},
                             {"attend", "attend_share", "var(--c3)"},
                             {"upkeep", "upkeep_share", "var(--c2)"}};
  Json parts = Json::array();
  std::set<std::string> shown;
  for (const std::string& setting : lab.settings) {
    for (const PolicyRow* row : lab.view.SparseRows()) {
      const std::vector<const Json*> lines = lab.Lines(*row, "policy", setting);
      const auto n = std::count_if(lines.begin(), lines.end(), [](const Json* line) {
        return Number(*line, "select_share").has_value();
      });
      if (n == 0) continue;
      std::map<std::string, double> shares;
      double rest = 1;
      for (const auto& [part, field, colour] : kParts) {
        const auto mean = MeanField(lines, field);
        if (!mean) continue;
        shares[part] = *mean;
        rest -= *mean;
      }
      if (!shares.contains("attend")) shares["attend"] = std::max(0.0, rest);
      int order = 0;
      for (const auto& [part, field, colour] : kParts) {
        ++order;
        if (!shares.contains(part)) continue;
        shown.insert(part);
        Json record = Point(*row);
        record.update({{"setting", setting},
                       {"part", part},
                       {"share", shares[part]},
                       {"order", order},
                       {"n", n}});
        parts.push_back(std::move(record));
      }
    }
  }
  if (parts.empty()) return;
  Chart chart{.id = lab.view.id + "-split",
              .title = "Where attention’s time goes",
              .caption =
                  "Of the time of sparse attention in decode steps: choosing rows and attending "
                  "over them; means over prefixes. Chosen rows are attended where they lie, so "
                  "there is a part for gathering only where one is recorded.",
              .spec = Spec("lab_split.vl.json")};
  chart.table = TableHtml(chart.title,
                          {{"Setting", "setting", FormatNumber},
                           {"Policy", "label", FormatNumber},
                           {"Part", "part", FormatNumber},
                           {"n", "n", FormatCount},
                           {"Share", "share", FormatPercent}},
                          parts);
  SetHeight(chart.spec, parts, "label", kBarHeight);
  Json& scale = chart.spec["encoding"]["color"]["scale"];
  scale["domain"] = Json::array();
  scale["range"] = Json::array();
  for (const Part& part : kParts) {
    if (!shown.contains(part.name)) continue;
    scale["domain"].push_back(part.name);
    scale["range"].push_back(part.colour);
  }
  SetOptions(chart.spec, "setting", "setting", parts);
  SetData(chart.spec, {{"parts", std::move(parts)}});
  charts.push_back(std::move(chart));
}

}  // namespace condense::report
