// Letters stand at the points, names on the front. Where points lie close, letters move to the
// right in lanes; the places are reckoned for a chart of kPlotWidth by kPlotHeight pixels.
#include "report/grid_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/html.h"

namespace condense::report {
namespace {

constexpr double kPlotWidth = 480, kPlotHeight = 420;
constexpr int kLanes = 4;
constexpr double kLaneWidth = 13, kLetterHeight = 11;

// A distance from dense, lower being better, on a logarithmic axis.
struct Measure {
  const char* id;
  const char* title;
  const char* axis;
  const char* caption;
  const char* field;
  double (*distance)(double);
  std::string (*format)(double);
  // What a count of decisions cannot tell from none; nothing for measures that are no counts.
  double (*least)(double n);
};

const Measure kMeasures[] = {
    {"pareto-kl", "KL divergence against bytes read", "KL mean, nats (log)", "Mean over decisions.",
     "kl_mean", [](double kl) { return kl; }, FormatNumber, nullptr},
    {"pareto-match", "Decisions that differ from dense against bytes read",
     "decisions that differ (log)",
     "Share of single decisions that are not dense’s; none that differs is drawn at half a "
     "decision.",
     "tf_match", [](double match) { return 1 - match; }, FormatPercent,
     [](double n) { return 0.5 / n; }},
    {"pareto-ppl", "Change of perplexity against bytes read", "|ΔPPL| (log)",
     "The distance from dense’s perplexity, in either direction.", "ppl_ratio",
     [](double ratio) { return std::abs(ratio - 1); }, FormatPercent, nullptr}};

struct Extent {
  double low = INFINITY, high = 0;
  void Take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Where a value lies on a logarithmic axis of `length` pixels.
  double Place(double value, double length) const {
    return length * std::log(value / low) / std::log(high / low);
  }
};

std::optional<double> Distance(const RunView& view, const PolicyRow& row, const Measure& measure) {
  const Json* line = row.Line(view.MainTeacher());
  const auto value = line ? Number(*line, measure.field) : std::nullopt;
  return value ? std::optional(measure.distance(*value)) : std::nullopt;
}

Json ParetoPoints(const RunView& view, const Measure& measure) {
  Json points = Json::array();
  double least = INFINITY;
  for (const PolicyRow* row : view.SparseRows()) {
    const auto distance = Distance(view, *row, measure);
    const Json* line = row->Line(view.MainTeacher());
    const auto share = line ? Number(*line, "kv_read_share") : std::nullopt;
    if (!distance || !share || *share <= 0) continue;
    Json point = Point(*row);
    point["name"] = row->name;
    point["share"] = *share;
    point["value"] = *distance;
    point["said"] = measure.format(*distance);
    const double n = Number(*line, "n_decisions").value_or(1);
    if (*distance > 0) least = std::min(least, *distance);
    point["at"] = measure.least ? std::max(*distance, measure.least(n)) : *distance;
    points.push_back(std::move(point));
  }
  if (!std::isfinite(least)) least = 1e-9;
  for (Json& point : points)
    if (point["at"] <= 0) point["at"] = least / 3;
  return points;
}

// No other point reads as little and is as near to dense. By bytes read.
Json Front(const Json& points) {
  std::vector<Json> sorted(points.begin(), points.end());
  std::sort(sorted.begin(), sorted.end(), [](const Json& a, const Json& b) {
    return std::pair(a["share"].get<double>(), a["at"].get<double>()) <
           std::pair(b["share"].get<double>(), b["at"].get<double>());
  });
  Json front = Json::array();
  double best = INFINITY;
  for (Json& point : sorted) {
    if (point["at"] >= best) continue;
    best = point["at"];
    front.push_back(std::move(point));
  }
  return front;
}

// Gives each letter a lane in which it covers neither a point nor a letter before it.
void PlaceLetters(Json& points, const Extent& x, const Extent& y) {
  struct Spot {
    double x, y;
  };
  std::vector<Spot> taken;
  for (const Json& point : points)
    taken.push_back({x.Place(point["share"], kPlotWidth), y.Place(point["at"], kPlotHeight)});
  const size_t n_points = points.size();
  for (size_t i = 0; i < n_points; ++i) {
    int lane = 0;
    const auto is_free = [&](int tried) {
      const Spot spot{taken[i].x + kLaneWidth * (tried + 1), taken[i].y};
      return std::none_of(taken.begin(), taken.end(), [&](const Spot& other) {
        return std::abs(other.x - spot.x) < kLaneWidth * 0.8 &&
               std::abs(other.y - spot.y) < kLetterHeight;
      });
    };
    while (lane + 1 < kLanes && !is_free(lane)) ++lane;
    // Drawn a pixel nearer than it is reckoned.
    points[i]["letter_dx"] = kLaneWidth * (lane + 1) - 1;
    taken.push_back({taken[i].x + kLaneWidth * (lane + 1), taken[i].y});
  }
}

// The control's distance: the noise floor.
Json Floor(const RunView& view, const Measure& measure) {
  const PolicyRow* control = view.Row("control");
  const auto floor = control ? Distance(view, *control, measure) : std::nullopt;
  if (!floor || *floor <= 0) return Json::array();
  return Json::array({Rule("control: " + measure.format(*floor), *floor)});
}

void AddPareto(const RunView& view, const Measure& measure, std::vector<Chart>& charts) {
  Json points = ParetoPoints(view, measure), floor = Floor(view, measure);
  if (points.empty()) return;
  Extent x, y;
  x.high = 1;
  for (const Json& point : points) {
    x.Take(point["share"]);
    y.Take(point["at"]);
  }
  for (const Json& rule : floor) y.Take(rule["value"]);
  x = {x.low / 1.3, x.high * 1.1};
  y = {y.low / 1.5, y.high * 1.5};
  PlaceLetters(points, x, y);
  Json front = Front(points);
  for (size_t i = 0; i < front.size(); ++i) {
    const double share = front[i]["share"];
    // Of steps at nearly the same bytes the best is named.
    const bool passed = i + 1 < front.size() && front[i + 1]["share"] < 1.05 * share;
    front[i]["shown"] = passed ? Json("") : front[i]["label"];
    // A name to the left of its point would run over the axis here.
    front[i]["edge"] = x.Place(share, kPlotWidth) < kPlotWidth / 4;
  }
  Chart chart{
      .id = view.id + "-" + measure.id,
      .title = measure.title,
      .caption = fmt::format(
          "{} Letters: the policies, as above; the thick steps: the Pareto front, named. "
          "The dashed line is the control, dense attention against itself; dense itself, "
          "at zero, has no place on the axis. A policy that reads all keys to choose stands far to "
          "the right.",
          measure.caption),
      .spec = Spec("pareto.vl.json")};
  chart.table = TableHtml(chart.title,
                          {{"Policy", "label", FormatNumber},
                           {"KV bytes read", "share", FormatPercent},
                           {"Distance", "said", FormatNumber}},
                          points);
  SetLogAxis(chart.spec, "x", x.low, x.high, "KV bytes read, share of dense (log)", "~%");
  SetLogAxis(chart.spec, "y", y.low, y.high, measure.axis,
             measure.format == FormatPercent ? "~%" : "~g");
  chart.spec["height"] = kPlotHeight;
  SetData(chart.spec, {{"points", std::move(points)},
                       {"front", std::move(front)},
                       {"control", std::move(floor)},
                       {"dense", Json::array({Rule("dense", 1)})}});
  charts.push_back(std::move(chart));
}

void AddSurvival(const RunView& view, std::vector<Chart>& charts) {
  Json points = Json::array(), names = Json::array(), control = Json::array();
  for (const PolicyRow& row : view.rows) {
    const Json* line = row.Line("greedy") ? row.Line("greedy") : &row.Main();
    if (row.policy == "dense" || !line->contains("survival") || (*line)["survival"].is_null())
      continue;
    for (const Json& span : (*line)["survival"]) {
      Json point = {{"label", row.Label()},
                    {"name", row.name},
                    {"length", span["length"]},
                    {"share", span["share"]},
                    {"n", OrNull(Number(span, "n"))}};
      point["end"] = row.budget ? fmt::format("{:g} %", 100 * *row.budget) : row.Label();
      (row.is_sparse() ? points : control).push_back(std::move(point));
    }
  }
  if (points.empty()) return;
  Chart chart{
      .id = view.id + "-survival",
      .title = "How long decisions go on like dense’s",
      .caption =
          "Of all spans of so many successive decisions on dense’s own text, the share without a "
          "difference. Strong: the policy chosen, at its budgets; faint: all others; dashed: the "
          "control.",
      .spec = Spec("survival.vl.json")};
  SetOptions(chart.spec, "policy", "name", points);
  chart.table = TableHtml(chart.title,
                          {{"Policy", "label", FormatNumber},
                           {"Decisions", "length", FormatCount},
                           {"Spans", "n", FormatCount},
                           {"Without a difference", "share", FormatPercent}},
                          points);
  SetData(chart.spec, {{"points", std::move(points)}, {"control", std::move(control)}});
  charts.push_back(std::move(chart));
}

std::vector<HeadMass> HeadsOf(const RunView& view) {
  std::vector<HeadMass> heads;
  for (const PolicyRow* row : view.SparseRows())
    for (const Json& line : view.records->layers)
      if (Text(line, "policy") == row->policy && Text(line, "teacher") == view.MainTeacher() &&
          line.contains("omitted_mass_heads") && line["omitted_mass_heads"].is_array())
        heads.push_back({row->Label(), line["layer"], line["omitted_mass_heads"]});
  return heads;
}

void AddRowMaps(const RunView& view, std::vector<Chart>& charts) {
  Json lines = Json::array(), shapes = Json::array();
  for (const PolicyRow* row : view.SparseRows()) {
    for (const Json& map : view.records->maps) {
      if (Text(map, "policy") != row->policy || Text(map, "teacher") != view.MainTeacher())
        continue;
      const double columns = Number(map, "positions_a_column").value_or(1);
      const double decisions = Number(map, "decisions_a_line").value_or(1);
      int at = 0;
      for (const Json& line : map["map"]) {
        lines.push_back({{"label", row->Label()},
                         {"from", 1 + at * decisions},
                         {"to", 1 + (at + 1) * decisions},
                         {"step", columns},
                         {"read", line}});
        ++at;
      }
      shapes.push_back({{"label", row->Label()},
                        {"positions", OrNull(Number(map, "n_positions"))},
                        {"column", columns},
                        {"line", decisions}});
      break;
    }
  }
  if (lines.empty()) return;
  Chart chart{.id = view.id + "-rows",
              .title = "Which rows were read over time",
              .caption =
                  "Positions of the text from left to right, decisions from top to bottom. The "
                  "stronger the colour, the more of the rows there were read, over all layers and "
                  "heads; blank: none, or the step ran dense.",
              .spec = Spec("rows.vl.json")};
  SetOptions(chart.spec, "cell", "label", lines);
  chart.table = TableHtml("What a mark of the map stands for",
                          {{"Policy", "label", FormatNumber},
                           {"Positions", "positions", FormatCount},
                           {"positions a column", "column", FormatCount},
                           {"decisions a line", "line", FormatCount}},
                          shapes);
  SetData(chart.spec, {{"lines", std::move(lines)}});
  charts.push_back(std::move(chart));
}

}  // namespace

void AddHeadMass(const std::string& id, const std::vector<HeadMass>& rows,
                 std::vector<Chart>& charts) {
  Json points = Json::array(), totals = Json::array();
  size_t n_heads = 0;
  for (const HeadMass& row : rows) {
    Json recovered = Json::array();
    for (double omitted : row.omitted) {
      const double mass = 1 - omitted;
      if (totals.empty() || totals.back()["label"] != row.label)
        totals.push_back({{"label", row.label}, {"least", INFINITY}});
      if (Json& total = totals.back(); mass < total["least"]) {
        total["least"] = mass;
        total["where"] = fmt::format("layer {}, head {}", row.layer.dump(), recovered.size());
      }
      recovered.push_back(std::round(1000 * mass) / 1000);
    }
    if (recovered.empty()) continue;
    n_heads = std::max(n_heads, recovered.size());
    points.push_back({{"label", row.label}, {"layer", row.layer}, {"heads", recovered}});
  }
  if (points.empty()) return;
  Chart chart{.id = id,
              .title = "Recovered mass by layer and head",
              .caption =
                  "Share of the full attention weights on rows that were read, mean over "
                  "decisions. The stronger the colour, the more was recovered.",
              .spec = Spec("head_mass.vl.json")};
  chart.spec["height"] = 18 * n_heads;
  SetOptions(chart.spec, "cell", "label", points);
  chart.table = TableHtml("The head of which least was recovered",
                          {{"Policy", "label", FormatNumber},
                           {"Least recovered", "least", FormatPercent},
                           {"of", "where", FormatNumber}},
                          totals);
  SetData(chart.spec, {{"points", std::move(points)}});
  charts.push_back(std::move(chart));
}

void AddGridCharts(const RunView& view, std::vector<Chart>& charts) {
  for (const Measure& measure : kMeasures) AddPareto(view, measure, charts);
  AddSurvival(view, charts);
  AddHeadMass(view.id + "-heads", HeadsOf(view), charts);
  AddRowMaps(view, charts);
}

}  // namespace condense::report
