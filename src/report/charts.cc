// Figures into datasets. The specs know shapes and scales; everything that depends on a run is
// here.
#include "report/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/chart_parts.h"
#include "report/grid_charts.h"
#include "report/html.h"

namespace condense::report {
namespace {

// On logarithmic axes zero has no place: margins and logit changes below this are drawn at it.
constexpr double kLogitFloor = 1e-3;

// Half as much again on either side of the shares, so that even one point stands among ticks.
void SetShareDomain(Json& spec, const Json& points) {
  double low = 1, high = 0;
  for (const Json& point : points) {
    low = std::min(low, point["share"].get<double>());
    high = std::max(high, point["share"].get<double>());
  }

  for (Json& layer : spec["layer"])
    if (Json& x = layer["encoding"]["x"]; x.contains("scale"))
      x["scale"]["domain"] = {low / 1.5, high > 1 ? high : std::min(1.0, high * 1.5)};
}

void AddDivergence(const RunView& view, std::vector<Chart>& charts) {
  const double horizon = view.Horizon();
  Json points = Json::array(), control_rules = Json::array();
  for (const PolicyRow* row : view.SparseRows()) {
    const Json& line = row->Main();
    const auto share = Number(line, "kv_read_share");
    if (!share || *share <= 0 || !line.contains("t_div")) continue;
    Json point = Point(*row);
    const auto t_div = Number(line, "t_div"), t_sig = Number(line, "t_sig");
    point["share"] = *share;
    point["t_div"] = OrNull(t_div);
    point["t_sig"] = line.contains("t_sig") ? OrNull(t_sig) : Json(nullptr);
    point["t_div_at"] = t_div.value_or(horizon);
    point["t_sig_at"] = line.contains("t_sig") ? t_sig.value_or(horizon) : t_div.value_or(horizon);
    point["t_div_said"] = t_div ? FormatCount(*t_div) : "survives";
    point["t_sig_said"] = !line.contains("t_sig") ? kNoFigure
                          : t_sig                 ? FormatCount(*t_sig)
                                                  : "survives";
    point["ends"] = t_div ? "differs" : "survives";
    points.push_back(std::move(point));
  }
  if (points.empty() || horizon <= 0) return;
  if (const PolicyRow* control = view.Row("control");
      control && control->Main().contains("t_div")) {
    const auto t_div = Number(control->Main(), "t_div");
    control_rules.push_back(
        Rule(t_div ? fmt::format("control: {}", FormatCount(*t_div)) : "control: survives",
             t_div.value_or(horizon)));
  }
  Json dense =
      Json::array({Rule(fmt::format("dense: all {} decisions", FormatCount(horizon)), horizon)});
  Chart chart{.id = view.id + "-t-div",
              .title = "First difference of the autonomous run",
              .caption =
                  "Filled: T_div, the first decision that differs; a triangle at the top survived "
                  "the horizon. Hollow: T_sig, the first that differs beyond rounding. The dashed "
                  "line is the control, dense attention against itself. One text gives one value, "
                  "so there is no interval to draw.",
              .spec = Spec("t_div.vl.json")};
  chart.table = TableHtml(chart.title,
                          {{"Policy", "label", FormatNumber},
                           {"KV bytes read", "share", FormatPercent},
                           {"T_div", "t_div_said", FormatCount},
                           {"T_sig", "t_sig_said", FormatCount}},
                          points);
  SetShareDomain(chart.spec, points);
  SetData(chart.spec, {{"points", std::move(points)},
                       {"dense", std::move(dense)},
                       {"control", std::move(control_rules)}});
  charts.push_back(std::move(chart));
}

// One point per policy and teacher with a value of `field`.
Json QualityPoints(const RunView& view, const char* field) {
  Json points = Json::array();
  for (const PolicyRow* row : view.SparseRows()) {
    for (const Json* line : row->lines) {
      // A line's own share where it has one: the teachers' runs read different blocks.
      auto share = Number(*line, "kv_read_share");
      if (!share) share = Number(row->Main(), "kv_read_share");
      const auto value = Number(*line, field);
      if (!share || *share <= 0 || !value) continue;
      Json point = Point(*row);
      point["teacher"] = TeacherName(Text(*line, "teacher"));
      point["share"] = *share;
      point["value"] = *value;
      point["n"] = OrNull(Number(*line, "n_decisions"));
      point["low"] = OrNull(Number(*line, "tf_match_low"));
      point["high"] = OrNull(Number(*line, "tf_match_high"));
      point["stderr"] = OrNull(Number(*line, "kl_stderr"));
      points.push_back(std::move(point));
    }
  }
  return points;
}

// A figure of policies and teachers over the bytes read.
struct Quality {
  const char* id;
  const char* title;
  const char* caption;
  const char* value_head;  // of the figure's column
  Column columns[2];       // behind it
  Json scale, axis, tooltips;
};

// `points` with their places `at`, `low` and `high`.
void AddQuality(const RunView& view, const Quality& of, std::string (*format)(double), Json points,
                Json dense, Json control, std::vector<Chart>& charts) {
  Chart chart{.id = view.id + of.id,
              .title = of.title,
              .caption = of.caption,
              .spec = Spec("quality.vl.json")};
  std::vector<Column> columns = {{"Policy", "label", FormatNumber},
                                 {"Teacher", "teacher", FormatNumber},
                                 {"KV bytes read", "share", FormatPercent},
                                 {"n", "n", FormatCount},
                                 {of.value_head, "value", format}};
  for (const Column& column : of.columns)
    if (column.head) columns.push_back(column);
  chart.table = TableHtml(chart.title, columns, points);
  SetShareDomain(chart.spec, points);
  for (Json& layer : chart.spec["layer"].back()["layer"]) {
    Json& encoding = layer["encoding"];
    encoding["y"]["scale"] = of.scale;
    encoding["y"]["axis"] = of.axis;
    if (!encoding.contains("tooltip")) continue;
    Json& tooltip = encoding["tooltip"];
    tooltip.insert(tooltip.end() - 1, of.tooltips.begin(), of.tooltips.end());
  }
  SetData(chart.spec, {{"points", std::move(points)},
                       {"dense", std::move(dense)},
                       {"control", std::move(control)}});
  charts.push_back(std::move(chart));
}

Json Tooltip(const char* field, const char* title, const char* format) {
  return {{"field", field}, {"title", title}, {"format", format}, {"type", "quantitative"}};
}

void AddMatch(const RunView& view, std::vector<Chart>& charts) {
  Json points = QualityPoints(view, "tf_match");
  if (points.empty()) return;
  for (Json& point : points) point["at"] = point["value"];
  const Quality match{
      .id = "-match",
      .title = "Decisions kept, teacher-forced",
      .caption =
          "Share of single decisions that equal dense’s, each fed the teacher’s tokens. "
          "Bars: Wilson’s 95 % interval. A point within the control’s reach is not to be "
          "told from rounding.",
      .value_head = "Same decision",
      .columns = {{"from", "low", FormatPercent}, {"to", "high", FormatPercent}},
      .scale = {{"zero", false}},
      .axis = {{"title", "same decision as dense"}, {"format", "~%"}, {"tickCount", 6}},
      .tooltips = {Tooltip("value", "same decision", ".1%"), Tooltip("low", "from", ".1%"),
                   Tooltip("high", "to", ".1%")}};
  AddQuality(view, match, FormatPercent, std::move(points), Json::array({Rule("dense: 100 %", 1)}),
             ControlRules(view, "tf_match", FormatPercent), charts);
}

// Dense itself, at zero, has no place on the axis.
void AddKl(const RunView& view, std::vector<Chart>& charts) {
  Json points = QualityPoints(view, "kl_mean");
  Json control_rules = ControlRules(view, "kl_mean", FormatNumber);
  double least = INFINITY;
  for (const Json* list : {&points, &control_rules})
    for (const Json& point : *list)
      if (const double value = point["value"]; value > 0) least = std::min(least, value);
  if (points.empty() || !std::isfinite(least)) return;
  const double floor = least / 3;
  std::erase_if(control_rules.get_ref<Json::array_t&>(),
                [](const Json& rule) { return rule["value"] <= 0; });
  for (Json& point : points) {
    const double value = point["value"],
                 error = point["stderr"].is_number() ? double{point["stderr"]} : 0;
    point["at"] = std::max(value, floor);
    point["low"] = std::max(value - 1.96 * error, floor);
    point["high"] = std::max(value + 1.96 * error, floor);
  }
  const Quality kl{
      .id = "-kl",
      .title = "KL divergence from dense",
      .caption =
          "Mean over decisions in nats, on a logarithmic axis: dense itself, at zero, has "
          "no place on it. Bars: 1.96 standard errors; a bar that would pass zero ends at "
          "the axis.",
      .value_head = "KL mean",
      .columns = {{"standard error", "stderr", FormatNumber}},
      .scale = {{"type", "log"}},
      .axis = LogAxis("KL mean, nats (log)", "~g"),
      .tooltips = {Tooltip("value", "KL mean", ".3~g"),
                   Tooltip("stderr", "standard error", ".2~g")}};
  AddQuality(view, kl, FormatNumber, std::move(points), Json::array(), std::move(control_rules),
             charts);
}

void AddOmittedMass(const RunView& view, std::vector<Chart>& charts) {
  Json points = Json::array();
  for (const std::string& teacher : view.Teachers()) {
    for (const PolicyRow* row : view.SparseRows()) {
      for (const Json& line : view.records->layers) {
        const auto mass = Number(line, "omitted_mass_mean");
        if (!mass || Text(line, "policy") != row->policy || Text(line, "teacher") != teacher)
          continue;
        Json point = Point(*row);
        point["teacher"] = TeacherName(teacher);
        point["layer"] = line["layer"];
        point["mass"] = *mass;
        point["most"] = OrNull(Number(line, "omitted_mass_max"));
        point["bound"] = OrNull(Number(line, "bound_mean"));
        point["read"] = OrNull(Number(line, "read_share"));
        points.push_back(std::move(point));
      }
    }
  }
  if (points.empty()) return;
  Chart chart{.id = view.id + "-mass",
              .title = "Omitted mass by layer",
              .caption =
                  "Share of the full attention weights on rows that were not read: the mean over "
                  "query heads and decisions. The stronger the colour, the more was left out.",
              .spec = Spec("omitted_mass.vl.json")};
  SetOptions(chart.spec, "teacher", "teacher", points);
  chart.table = TableHtml(chart.title,
                          {{"Policy", "label", FormatNumber},
                           {"Teacher", "teacher", FormatNumber},
                           {"Layer", "layer", FormatCount},
                           {"Omitted mass", "mass", FormatPercent},
                           {"maximum", "most", FormatPercent},
                           {"bound E_l", "bound", FormatNumber},
                           {"KV bytes read", "read", FormatPercent}},
                          points);
  SetHeight(chart.spec, points, "label", 34);
  SetData(chart.spec, {{"points", std::move(points)}});
  charts.push_back(std::move(chart));
}

void AddSpeed(const RunView& view, std::vector<Chart>& charts) {
  Json points = Json::array();
  for (const PolicyRow* row : view.SparseRows()) {
    const Json& line = row->Main();
    const auto ratio = Number(line, "speed_ratio_median");
    if (!ratio) continue;
    Json point = Point(*row);
    point["ratio"] = *ratio;
    point["low"] = OrNull(Number(line, "speed_ratio_low"));
    point["high"] = OrNull(Number(line, "speed_ratio_high"));
    point["sparse"] = OrNull(Number(line, "sparse_tokens_per_second"));
    point["dense"] = OrNull(Number(line, "dense_tokens_per_second"));
    point["said"] = FormatTimes(*ratio);
    point["text_at"] = std::max(*ratio, Number(line, "speed_ratio_high").value_or(*ratio));
    points.push_back(std::move(point));
  }
  if (points.empty()) return;
  Chart chart{.id = view.id + "-speed",
              .title = "Decode speed against dense",
              .caption =
                  "Sparse over dense time of steps taken in turn at this depth: the median of the "
                  "pairs, with quartiles. The line at 1 is dense.",
              .spec = Spec("speed.vl.json")};
  chart.table = TableHtml(chart.title,
                          {{"Policy", "label", FormatNumber},
                           {"Median ratio", "ratio", FormatTimes},
                           {"lower quartile", "low", FormatTimes},
                           {"upper quartile", "high", FormatTimes},
                           {"Sparse tokens/s", "sparse", FormatNumber},
                           {"Dense tokens/s", "dense", FormatNumber}},
                          points);
  double most = 1;
  for (const Json& point : points) most = std::max(most, point["text_at"].get<double>());
  // Room for the figure beside the longest bar.
  for (Json& layer : chart.spec["layer"])
    if (Json& x = layer["encoding"]["x"]; x.contains("scale")) x["scale"]["domainMax"] = 1.2 * most;
  SetHeight(chart.spec, points, "label", 34);
  SetData(chart.spec, {{"points", std::move(points)}});
  charts.push_back(std::move(chart));
}

void AddMargins(const RunView& view, std::vector<Chart>& charts) {
  // In the order of the specs' colour scale.
  const char* const cases[2][2] = {{"not held, differs", "not held, equal"},
                                   {"held, differs", "held, equal"}};
  Json points = Json::array(), counts = Json::array();
  double most = 1;
  std::vector<const PolicyRow*> rows = view.SparseRows();
  if (const PolicyRow* control = view.Row("control")) rows.push_back(control);
  for (const std::string& teacher : view.Teachers()) {
    for (const PolicyRow* row : rows) {
      Json count = Point(*row);
      count["teacher"] = TeacherName(teacher);
      for (const auto& held : cases)
        for (const char* name : held) count[name] = 0;
      int n = 0;
      for (const Json& step : view.records->steps) {
        const auto margin = Number(step, "margin_dense"), delta = Number(step, "delta");
        if (!margin || !delta || Text(step, "policy") != row->policy ||
            Text(step, "teacher") != teacher)
          continue;
        const bool held = *delta < *margin / 2;
        const bool equal = step.contains("token_dense") && step.contains("token_sparse")
                               ? step["token_dense"] == step["token_sparse"]
                               : step.value("match", Json(false)) == Json(true);
        const char* name = cases[held][equal];
        count[name] = count[name].get<int>() + 1;
        ++n;
        most = std::max({most, *margin, *delta});
        points.push_back({{"label", row->Label()},
                          {"teacher", count["teacher"]},
                          {"decision", step["decision"]},
                          {"margin", *margin},
                          {"delta", *delta},
                          {"margin_at", std::max(*margin, kLogitFloor)},
                          {"delta_at", std::max(*delta, kLogitFloor)},
                          {"case", name}});
      }
      if (n > 0) counts.push_back(std::move(count));
    }
  }
  if (points.empty()) return;
  Chart chart{
      .id = view.id + "-margins",
      .title = "Margins and logit changes",
      .caption =
          "One mark a decision. Below the line the largest logit change δ is under half the "
          "dense margin γ, which is sufficient for the same token, not necessary. “Held, "
          "differs” cannot happen: a mark of that kind is an error of the measurement.",
      .spec = Spec("margins.vl.json")};
  SetOptions(chart.spec, "policy", "label", points);
  SetOptions(chart.spec, "teacher", "teacher", points);
  chart.table = TableHtml("δ < γ/2 held or not, token equal or not: decisions",
                          {{"Policy", "label", FormatNumber},
                           {"Teacher", "teacher", FormatNumber},
                           {"held, equal", "held, equal", FormatCount},
                           {"held, differs", "held, differs", FormatCount},
                           {"not held, equal", "not held, equal", FormatCount},
                           {"not held, differs", "not held, differs", FormatCount}},
                          counts);
  chart.table += TableHtml("Every decision",
                           {{"Policy", "label", FormatNumber},
                            {"Teacher", "teacher", FormatNumber},
                            {"Decision", "decision", FormatCount},
                            {"Margin γ", "margin", FormatNumber},
                            {"Logit change δ", "delta", FormatNumber},
                            {"Case", "case", FormatNumber}},
                           points);
  SetData(chart.spec,
          {{"points", std::move(points)},
           {"line", Json::array({{{"margin_at", 2 * kLogitFloor}, {"delta_at", kLogitFloor}},
                                 {{"margin_at", 2 * most}, {"delta_at", most}}})}});
  charts.push_back(std::move(chart));
}

}  // namespace

std::vector<Chart> MakeCharts(const RunView& view) {
  std::vector<Chart> charts;
  if (view.is_grid()) {
    AddGridCharts(view, charts);
  } else {
    AddDivergence(view, charts);
    AddMatch(view, charts);
    AddKl(view, charts);
    AddOmittedMass(view, charts);
    AddSpeed(view, charts);
    AddMargins(view, charts);
  }
  Describe(charts, view);
  return charts;
}

}  // namespace condense::report
