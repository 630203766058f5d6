// Counts are of all prefixes together: a draft or a decision is one, whichever prefix it is from.
#include "report/lab_decoding_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "metrics/stats.h"
#include "report/html.h"
#include "report/lab_cost_charts.h"

namespace condense::report {
namespace {

constexpr double kEachSide = 0.975;  // of a two-sided 95 % interval

std::vector<int64_t> Counts(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_array() ? found->get<std::vector<int64_t>>()
                                                  : std::vector<int64_t>();
}

int64_t Count(const Json& line, const char* key) {
  return static_cast<int64_t>(Number(line, key).value_or(0));
}

void Add(const std::vector<int64_t>& more, std::vector<int64_t>& sums) {
  sums.resize(std::max(sums.size(), more.size()));
  for (size_t i = 0; i < more.size(); ++i) sums[i] += more[i];
}

// The values of a field of a row's lines of a kind, in their order.
std::vector<std::string> Values(const std::vector<const Json*>& lines, const char* field) {
  std::vector<std::string> values;
  for (const Json* line : lines) {
    const std::string value = Text(*line, field);
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  }
  return values;
}

// "wiki.txt, fed dense-greedy"
std::string TextFed(const Json& line) {
  const std::string text = Text(line, "text");
  return fmt::format("{}, fed {}", text.substr(0, text.rfind('@')),
                     TeacherName(Text(line, "teacher")));
}

struct Places {
  std::vector<int64_t> drafted, accepted;
};

// Of the lines of one kind of text, those with the longest drafts.
Places LongestDrafts(const std::vector<const Json*>& lines) {
  std::map<std::string, Places> by_length;
  for (const Json* line : lines) {
    Places& places = by_length[Text(*line, "draft_tokens")];
    Add(Counts(*line, "drafted_at"), places.drafted);
    Add(Counts(*line, "accepted_at"), places.accepted);
  }
  Places longest;
  for (const auto& [length, places] : by_length) {
    if (places.drafted.size() > longest.drafted.size()) longest = places;
  }
  longest.accepted.resize(longest.drafted.size());
  return longest;
}

void SetCharts(const LabView& lab, Chart& chart, Json points, Json::object_t others) {
  SetOptions(chart.spec, "setting", "setting", points);
  SetOptions(chart.spec, "series", "series", points);
  SetLabels(chart.spec, lab.view, "dense");
  others["points"] = std::move(points);
  SetData(chart.spec, std::move(others));
}

}  // namespace

void AddDraftPlaces(const LabView& lab, std::vector<Chart>& charts) {
  Json points = Json::array();
  for (const std::string& setting : lab.settings) {
    for (const PolicyRow* row : lab.view.SparseRows()) {
      const auto lines = lab.Lines(*row, "exact", setting);
      for (const std::string& kind : Values(lines, "kind")) {
        const Places places = LongestDrafts(Having(lines, "kind", kind));
        for (size_t i = 0; i < places.drafted.size(); ++i) {
          if (places.drafted[i] == 0) continue;
          Json point = Point(*row);
          point.update({{"setting", setting},
                        {"series", kind},
                        {"place", i + 1},
                        {"share", static_cast<double>(places.accepted[i]) /
                                      static_cast<double>(places.drafted[i])},
                        {"n", places.drafted[i]}});
          points.push_back(std::move(point));
        }
      }
    }
  }
  if (points.empty()) return;
  Chart chart{.id = lab.view.id + "-places",
              .title = "How far drafts are confirmed",
              .caption =
                  "Of the drafts that reach a place, those whose tokens up to it were all dense’s; "
                  "of each source its longest drafts, all prefixes together.",
              .spec = Spec("lab_draft_places.vl.json")};
  chart.table = TableHtml(chart.title,
                          {{"Draft", "label", FormatNumber},
                           {"Setting", "setting", FormatNumber},
                           {"Text", "series", FormatNumber},
                           {"Place", "place", FormatCount},
                           {"Drafts", "n", FormatCount},
                           {"Confirmed", "share", FormatPercent}},
                          points);
  SetCharts(lab, chart, std::move(points), {});
  charts.push_back(std::move(chart));
}

void AddDraftSpeeds(const LabView& lab, std::vector<Chart>& charts) {
  Json points = Json::array();
  for (const std::string& setting : lab.settings) {
    for (const PolicyRow* row : lab.view.SparseRows()) {
      const auto lines = lab.Lines(*row, "exact", setting);
      for (const std::string& kind : Values(lines, "kind")) {
        const auto of_kind = Having(lines, "kind", kind);
        for (const std::string& length : Values(of_kind, "draft_tokens")) {
          std::vector<double> ratios;
          bool identical = true;
          for (const Json* line : Having(of_kind, "draft_tokens", length)) {
            if (const auto ratio = Number(*line, "speed_ratio_median")) ratios.push_back(*ratio);
            identical = identical && line->value("identical", false);
          }
          if (ratios.empty()) continue;
          Json point = Point(*row);
          point.update({{"setting", setting},
                        {"series", kind},
                        {"length", length},
                        {"ratio", Quantile(ratios, 0.5)},
                        {"low", *std::min_element(ratios.begin(), ratios.end())},
                        {"high", Maximum(ratios)},
                        {"identical", identical ? "yes" : "no"},
                        {"n", ratios.size()}});
          points.push_back(std::move(point));
        }
      }
    }
  }
  if (points.empty()) return;
  Chart chart{.id = lab.view.id + "-drafts",
              .title = "Tokens a second with drafts, over dense",
              .caption =
                  "The same tokens decoded dense and from drafts in turns: medians over prefixes, "
                  "with their range. Dashed: dense. “auto” chooses its lengths by measured cost.",
              .spec = Spec("lab_draft_speed.vl.json")};
  chart.table = TableHtml(chart.title,
                          {{"Draft", "label", FormatNumber},
                           {"Setting", "setting", FormatNumber},
                           {"Text", "series", FormatNumber},
                           {"Tokens of a draft", "length", FormatNumber},
                           {"n", "n", FormatCount},
                           {"Over dense", "ratio", FormatNumber},
                           {"from", "low", FormatNumber},
                           {"to", "high", FormatNumber},
                           {"Dense’s text", "identical", FormatNumber}},
                          points);
  SetCharts(lab, chart, std::move(points), {{"dense", Json::array({{{"ratio", 1}}})}});
  charts.push_back(std::move(chart));
}

void AddGuardRisks(const LabView& lab, std::vector<Chart>& charts) {
  Json points = Json::array();
  for (const std::string& setting : lab.settings) {
    for (const PolicyRow* row : lab.view.SparseRows()) {
      std::map<std::string, std::vector<const Json*>> by_series;
      for (const Json* line : lab.Lines(*row, "guard", setting))
        by_series[TextFed(*line)].push_back(line);
      for (const auto& [series, lines] : by_series) {
        int64_t n = 0, n_differ = 0, n_fallbacks = 0;
        for (const Json* line : lines) {
          n += Count(*line, "n_decisions");
          n_differ += Count(*line, "n_differ");
          n_fallbacks += Count(*line, "n_fallbacks");
        }
        if (n == 0) continue;
        const auto share = [&](int64_t part) {
          return static_cast<double>(part) / static_cast<double>(n);
        };
        Json point = Point(*row);
        point.update(
            {{"setting", setting},
             {"series", series},
             {"seen", share(n_differ)},
             {"low", n_differ == 0 ? 0 : 1 - BinomialUpperBound(n - n_differ, n, kEachSide)},
             {"high", BinomialUpperBound(n_differ, n, kEachSide)},
             {"promised", OrNull(Number(*lines.front(), "risk"))},
             {"certified", lines.front()->value("certified", false) ? "yes" : "no"},
             {"redone", share(n_fallbacks)},
             {"n", n}});
        points.push_back(std::move(point));
      }
    }
  }
  if (points.empty()) return;
  Chart chart{.id = lab.view.id + "-risks",
              .title = "Risk of a guard on texts, beside what was promised",
              .caption =
                  "Decisions whose sparse token was taken and is not dense’s, of all decisions, "
                  "with Clopper-Pearson’s 95 % interval; the upright tick is the promise. A guard "
                  "that was not certified promises nothing.",
              .spec = Spec("lab_guard.vl.json")};
  chart.table = TableHtml(chart.title,
                          {{"Policy", "label", FormatNumber},
                           {"Setting", "setting", FormatNumber},
                           {"Text", "series", FormatNumber},
                           {"Decisions", "n", FormatCount},
                           {"Redone", "redone", FormatPercent},
                           {"Risk", "seen", FormatPercent},
                           {"from", "low", FormatPercent},
                           {"to", "high", FormatPercent},
                           {"Promised", "promised", FormatPercent},
                           {"Certified", "certified", FormatNumber}},
                          points);
  SetCharts(lab, chart, std::move(points), {});
  for (Json& layer : chart.spec["layer"])
    if (layer["encoding"].contains("color")) layer["encoding"]["color"]["legend"] = nullptr;
  charts.push_back(std::move(chart));
}

}  // namespace condense::report
