// A chart shows one setting at a time, chosen in the page; its table holds all of them.
#include "report/lab_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "metrics/stats.h"
#include "report/grid_charts.h"
#include "report/html.h"
#include "report/lab_cost_charts.h"
#include "report/lab_decoding_charts.h"

namespace condense::report {
namespace {

struct Score {
  const char* id;
  const char* title;
  const char* axis;
  const char* caption;
  bool of_items;  // else of runs under a teacher
  const char* field;
  bool log;
  std::string (*format)(double);
};

constexpr size_t kManyMarks = 60;
constexpr const char* kPooled =
    "Means over prefixes with 95 % bootstrap intervals; the shaded band is the control’s, dense "
    "attention summed in another order: within it a policy is not to be told from rounding.";
constexpr const char* kCounted =
    "Shares of items with Wilson’s 95 % intervals; the line is dense, the shaded band the "
    "control’s, dense attention summed in another order.";

const Score kScores[] = {
    {"match", "Same decision as dense, against bytes read", "same decision as dense", kPooled,
     false, "tf_match", false, FormatPercent},
    {"kl", "KL divergence from dense, against bytes read", "KL, nats (log)", kPooled, false,
     "kl_mean", true, FormatNumber},
    {"first", "First token of the answer, against bytes read", "first token found", kCounted, true,
     "first_token_match", false, FormatPercent},
    {"score", "Whole answer, against bytes read", "answer found", kCounted, true, "score", false,
     FormatPercent}};

// Which of the lines are pooled: those of a teacher, or of a task.
const char* SeriesField(const Score& score) { return score.of_items ? "task" : "teacher"; }

std::vector<std::string> SeriesOf(const LabView& lab, const Score& score) {
  if (!score.of_items) return lab.view.Teachers();
  std::vector<std::string> tasks;
  for (const Json& line : lab.lab->records.policies)
    if (const std::string task = Text(line, "task");
        !task.empty() && std::find(tasks.begin(), tasks.end(), task) == tasks.end())
      tasks.push_back(task);
  return tasks;
}

std::string SeriesName(const Score& score, const std::string& series) {
  return score.of_items ? series : TeacherName(series);
}

void AddScore(const LabView& lab, const Score& score, std::vector<Chart>& charts) {
  Json points = Json::array(), dense = Json::array(), control = Json::array();
  Json table = Json::array();
  double x_low = 1, x_high = 1, y_low = INFINITY, y_high = 0;
  for (const std::string& setting : lab.settings) {
    for (const std::string& series : SeriesOf(lab, score)) {
      const std::string series_name = SeriesName(score, series);
      for (const PolicyRow& row : lab.view.rows) {
        const auto lines = Having(lab.Lines(row, score.of_items ? "item" : "policy", setting),
                                  SeriesField(score), series);
        const auto value = PoolField(lines, score.field, score.of_items);
        const auto share = MeanField(lines, "kv_read_share");
        if (!value) continue;
        Json point = Point(row);
        point.update({{"setting", setting},
                      {"series", series_name},
                      {"name", row.name},
                      {"value", value->mean},
                      {"said", score.format(value->mean)},
                      {"interval", IntervalText(*value, score.format)},
                      {"low", value->low.value_or(value->mean)},
                      {"high", value->high.value_or(value->mean)},
                      {"n", value->n},
                      {"share", OrNull(share)}});
        table.push_back(point);
        if (score.log && value->mean <= 0) continue;
        if (!row.is_sparse()) {
          point["label"] = fmt::format("{}: {}", row.policy, score.format(value->mean));
          (row.policy == "dense" ? dense : control).push_back(point);
        } else if (share && *share > 0) {
          x_low = std::min(x_low, *share);
          x_high = std::max(x_high, *share);
          points.push_back(point);
        } else {
          continue;
        }
        y_low =
            std::min({y_low, value->mean,
                      double{point["low"]} > 0 || !score.log ? double{point["low"]} : value->mean});
        y_high = std::max({y_high, value->mean, double{point["high"]}});
      }
    }
  }
  if (points.empty()) return;
  if (score.log) {
    y_low /= 1.5;
    y_high *= 1.5;
    for (Json* list : {&points, &control})
      for (Json& point : *list) point["low"] = std::max(double{point["low"]}, y_low);
  }
  Chart chart{.id = lab.view.id + "-" + score.id,
              .title = score.title,
              .caption = score.caption,
              .spec = Spec("lab_score.vl.json")};
  chart.table = TableHtml(chart.title,
                          {{"Setting", "setting", FormatNumber},
                           {score.of_items ? "Task" : "Fed", "series", FormatNumber},
                           {"Policy", "label", FormatNumber},
                           {"KV bytes read", "share", FormatPercent},
                           {"n", "n", FormatCount},
                           {"Mean", "said", FormatNumber},
                           {"95 %", "interval", FormatNumber}},
                          table);
  SetLogAxis(chart.spec, "x", x_low / 1.3, x_high * 1.05, "KV bytes read, share of dense (log)",
             "~%");
  if (score.log) {
    SetLogAxis(chart.spec, "y", y_low, y_high, score.axis, "~g");
  } else {
    const double room = std::max(0.02, 0.06 * (y_high - y_low));
    SetAxis(chart.spec, "y",
            {{"nice", false},
             {"zero", false},
             {"domain", {std::max(0.0, y_low - room), std::min(1.0, y_high) + room}}},
            {{"title", score.axis}, {"format", "~%"}, {"tickCount", 6}});
  }
  SetOptions(chart.spec, "setting", "setting", points);
  SetOptions(chart.spec, "series", "series", points);
  if (score.of_items) chart.spec["params"][1]["bind"]["name"] = "Task";
  SetData(chart.spec, {{"points", std::move(points)},
                       {"dense", std::move(dense)},
                       {"control", std::move(control)}});
  charts.push_back(std::move(chart));
}

std::string PrefixName(const Json& line) {
  const std::string text = Text(line, "text");
  const auto offset = Number(line, "offset");
  return fmt::format("{}{}", text.substr(0, text.rfind('@')),
                     offset ? fmt::format(" from {}", FormatCount(*offset)) : "");
}

void AddMatchPpl(const LabView& lab, std::vector<Chart>& charts) {
  Json points = Json::array();
  double least = 0.6, low = 0.9, high = 2.5;
  for (const PolicyRow& row : lab.view.rows) {
    if (row.policy == "dense") continue;
    for (const Json* line : lab.Lines(row, "policy", "")) {
      const auto match = Number(*line, "tf_match"), ratio = Number(*line, "ppl_ratio");
      if (!match || !ratio || *ratio <= 0) continue;
      Json point = Point(row);
      point.update({{"setting", lab.Setting(*line)},
                    {"teacher", TeacherName(Text(*line, "teacher"))},
                    {"prefix", PrefixName(*line)},
                    {"n", OrNull(Number(*line, "n_decisions"))},
                    {"match", *match},
                    {"ratio", *ratio},
                    {"said", FormatSignedPercent(*ratio - 1)}});
      points.push_back(std::move(point));
      least = std::min(least, *match);
      low = std::min(low, *ratio);
      high = std::max(high, *ratio);
    }
  }
  if (points.empty()) return;
  least -= 0.03;
  high *= 1.3;
  Json region = Json::array({{{"match", least},
                              {"match_to", kLostMatch},
                              {"ratio", kLostPplRatio},
                              {"ratio_to", high},
                              {"label", "lost: under 70 %, above +100 %"}}});
  Chart chart{
      .id = lab.view.id + "-lost",
      .title = "Same decision against change of perplexity, run by run",
      .caption =
          "One mark a prefix and policy; without a colour: the control. Shaded: where the original "
          "found its runs lost, less than 70 % of decisions kept and more than +100 % "
          "perplexity; there all seven of its runs under 70 % lay.",
      .spec = Spec("lab_match_ppl.vl.json")};
  chart.table = TableHtml(chart.title,
                          {{"Policy", "label", FormatNumber},
                           {"Setting", "setting", FormatNumber},
                           {"Prefix", "prefix", FormatNumber},
                           {"Fed", "teacher", FormatNumber},
                           {"Decisions", "n", FormatCount},
                           {"Same decision", "match", FormatPercent},
                           {"ΔPPL", "said", FormatNumber}},
                          points);
  SetAxis(chart.spec, "x", {{"nice", false}, {"zero", false}, {"domain", {least, 1}}},
          {{"title", "same decision as dense"}, {"format", "~%"}, {"tickCount", 6}});
  SetLogAxis(chart.spec, "y", low / 1.05, high, "ΔPPL (log of the ratio)", "~g");
  for (Json& layer : chart.spec["layer"])
    if (Json& y = layer["encoding"]["y"]; y.contains("axis"))
      y["axis"]["labelExpr"] =
          "(datum.value === 1 ? '0' : format(100 * (datum.value - 1), '+,.0f')) + ' %'";
  for (Json& layer : chart.spec["layer"])
    if (Json& encoding = layer["encoding"]; encoding.contains("shape"))
      encoding["shape"]["scale"]["domain"] = lab.settings;
  // Letters at many marks hide each other; the legend above has the colours.
  if (points.size() > kManyMarks)
    std::erase_if(chart.spec["layer"].get_ref<Json::array_t&>(), [](const Json& layer) {
      return layer["encoding"].contains("text") && layer["data"]["name"] == "points";
    });
  SetOptions(chart.spec, "teacher", "teacher", points);
  SetData(chart.spec, {{"points", std::move(points)},
                       {"region", std::move(region)},
                       {"dense", Json::array({{{"ratio", 1}, {"label", "dense"}}})}});
  charts.push_back(std::move(chart));
}

// When each run of the lines parted from dense; the horizon and one more where it did not.
std::vector<double> Partings(const std::vector<const Json*>& lines, const char* field,
                             double horizon) {
  std::vector<double> partings;
  for (const Json* line : OncePerCell(lines, field))
    partings.push_back(Number(*line, field).value_or(horizon + 1));
  return partings;
}

void AddCurve(const LabView& lab, const PolicyRow& row, const std::string& setting,
              const char* field, const char* series, Json& points, Json& table) {
  const double horizon = lab.view.Horizon();
  const std::vector<double> partings = Partings(lab.Lines(row, "policy", setting), field, horizon);
  if (partings.empty()) return;
  const auto n = static_cast<int64_t>(partings.size());
  std::set<double> steps(partings.begin(), partings.end());
  steps.insert({0, horizon});
  steps.erase(horizon + 1);
  for (double decision : steps) {
    const int64_t alive = std::count_if(partings.begin(), partings.end(),
                                        [&](double parting) { return parting > decision; });
    const Interval interval = WilsonInterval(alive, n);
    points.push_back({{"setting", setting},
                      {"series", series},
                      {"label", row.Label()},
                      {"decision", decision},
                      {"share", static_cast<double>(alive) / static_cast<double>(n)},
                      {"low", interval.low},
                      {"high", interval.high},
                      {"n", n}});
  }
  const int64_t survive = std::count(partings.begin(), partings.end(), horizon + 1);
  const Quartiles quartiles = QuartilesOf(partings);
  const auto said = [&](double parting) {
    return parting > horizon ? fmt::format(">{}", FormatCount(horizon)) : FormatNumber(parting);
  };
  table.push_back({{"setting", setting},
                   {"series", series},
                   {"label", row.Label()},
                   {"n", n},
                   {"survive", fmt::format("{} of {}", survive, n)},
                   {"low", said(quartiles.low)},
                   {"median", said(quartiles.median)},
                   {"high", said(quartiles.high)}});
}

void AddSurvival(const LabView& lab, std::vector<Chart>& charts) {
  Json points = Json::array(), table = Json::array();
  for (const auto& [field, series] : {std::pair("t_div", "every difference (T_div)"),
                                      std::pair("t_sig", "beyond rounding (T_sig)")})
    for (const std::string& setting : lab.settings)
      for (const PolicyRow& row : lab.view.rows)
        if (row.policy != "dense") AddCurve(lab, row, setting, field, series, points, table);
  if (points.empty()) return;
  Chart chart{.id = lab.view.id + "-survival",
              .title = "How many runs still write dense’s text",
              .caption =
                  "Whole runs, written freely from the same dense prefill: the share whose every "
                  "decision so far is dense’s. Dashed: the control. Shaded: Wilson’s 95 % interval "
                  "of the policy chosen.",
              .spec = Spec("lab_survival.vl.json")};
  SetOptions(chart.spec, "setting", "setting", points);
  SetOptions(chart.spec, "series", "series", points);
  SetOptions(chart.spec, "policy", "label", points);
  SetLabels(chart.spec, lab.view, "dense");
  chart.table = TableHtml("Runs by the decision at which they part",
                          {{"Counting", "series", FormatNumber},
                           {"Setting", "setting", FormatNumber},
                           {"Policy", "label", FormatNumber},
                           {"Runs", "n", FormatCount},
                           {"Survive", "survive", FormatNumber},
                           {"lower quartile", "low", FormatNumber},
                           {"Median", "median", FormatNumber},
                           {"upper quartile", "high", FormatNumber}},
                          table);
  SetData(chart.spec, {{"points", std::move(points)}});
  charts.push_back(std::move(chart));
}

// Means over prefixes, under the first teacher.
std::vector<HeadMass> PooledHeads(const LabView& lab) {
  struct Sum {
    int n = 0;
    std::vector<double> omitted;  // by head
  };
  std::map<std::pair<std::string, std::string>, std::map<int, Sum>> sums;  // setting, policy; layer
  const std::vector<std::string> teachers = lab.view.Teachers();
  for (const Json& line : lab.lab->records.layers) {
    if (teachers.empty() || Text(line, "teacher") != teachers.front() ||
        !line.contains("omitted_mass_heads") || !line["omitted_mass_heads"].is_array())
      continue;
    Sum& sum = sums[{lab.Setting(line), Text(line, "policy")}][line["layer"].get<int>()];
    const auto omitted = line["omitted_mass_heads"].get<std::vector<double>>();
    sum.omitted.resize(std::max(sum.omitted.size(), omitted.size()));
    for (size_t i = 0; i < omitted.size(); ++i) sum.omitted[i] += omitted[i];
    ++sum.n;
  }
  std::vector<HeadMass> heads;
  for (const std::string& setting : lab.settings) {
    for (const PolicyRow* row : lab.view.SparseRows()) {
      for (auto& [layer, sum] : sums[{setting, row->policy}]) {
        for (double& omitted : sum.omitted) omitted /= sum.n;
        heads.push_back({fmt::format("{}, {}", row->Label(), setting), layer, sum.omitted});
      }
    }
  }
  return heads;
}

}  // namespace

std::vector<Chart> MakeLabCharts(const LabView& lab) {
  std::vector<Chart> charts;
  for (const Score& score : kScores) AddScore(lab, score, charts);
  AddHeatMaps(lab, charts);
  AddSurvival(lab, charts);
  AddMatchPpl(lab, charts);
  AddHeadMass(lab.view.id + "-heads", PooledHeads(lab), charts);
  AddLayerMass(lab, charts);
  AddSpeedByDepth(lab, charts);
  AddCostSplit(lab, charts);
  AddDraftPlaces(lab, charts);
  AddDraftSpeeds(lab, charts);
  AddGuardRisks(lab, charts);
  Describe(charts, lab.view);
  return charts;
}

}  // namespace condense::report
