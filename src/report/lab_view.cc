// Settings are ordered by model and context, whatever the order of the cells.
#include "report/lab_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "metrics/bootstrap.h"
#include "metrics/stats.h"
#include "report/html.h"

namespace condense::report {
namespace {

std::vector<double> ValuesOf(const std::vector<const Json*>& lines, const char* field) {
  std::vector<double> values;
  for (const Json* line : lines)
    if (const auto value = Share(*line, field)) values.push_back(*value);
  return values;
}

// An item found in part counts in part; the spread of such is below that of found or not, for which
// Wilson's interval is made.
Interval ItemsInterval(double share, size_t n) {
  const auto lower = [&](double of) {
    return of <= 0 ? 0 : WilsonLowerBound(std::min(of, 1.0), static_cast<int64_t>(n), kZ95);
  };
  return {lower(share), 1 - lower(1 - share)};
}

}  // namespace

std::string ModelName(const Json& line) {
  std::string name = Text(line, "model");
  name = name.substr(0, name.rfind('@'));
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name;
}

std::optional<double> ContextOf(const Json& line) {
  const auto context = Number(line, "context");
  return context ? context : Number(line, "n_prompt");
}

std::string LabView::Setting(const Json& line) const {
  const auto context = ContextOf(line);
  const std::string tokens = context ? FormatCount(*context) + " tokens" : "any context";
  return several_models() ? fmt::format("{}, {}", ModelName(line), tokens) : tokens;
}

std::vector<const Json*> LabView::Lines(const PolicyRow& row, const char* kind,
                                        const std::string& setting) const {
  std::vector<const Json*> lines;
  for (const Json* line : row.lines)
    if (Text(*line, "record") == kind && (setting.empty() || Setting(*line) == setting))
      lines.push_back(line);
  return lines;
}

LabView MakeLabView(const LabRecords& lab) {
  LabView out{.lab = &lab, .view = MakeView(lab.records, 0)};
  out.view.id = "lab-" + lab.experiment;
  std::set<std::string> models;
  for (const Json& line : lab.records.policies) models.insert(ModelName(line));
  for (const Json& line : lab.masses) models.insert(ModelName(line["parameters"]));
  out.models.assign(models.begin(), models.end());
  std::set<std::tuple<std::string, double, std::string>> ordered;
  for (const Json& line : lab.records.policies)
    ordered.emplace(ModelName(line), ContextOf(line).value_or(0), out.Setting(line));
  for (const auto& [model, context, setting] : ordered) out.settings.push_back(setting);
  out.speeds = SpeedsOf(out);
  return out;
}

std::vector<const Json*> OncePerCell(const std::vector<const Json*>& lines, const char* field) {
  std::vector<const Json*> out;
  std::set<std::pair<std::string, std::string>> seen;
  for (const Json* line : lines)
    if (line->contains(field) && seen.emplace(Text(*line, "cell"), Text(*line, "model")).second)
      out.push_back(line);
  return out;
}

std::vector<const Json*> Having(const std::vector<const Json*>& lines, const char* field,
                                const std::string& text) {
  std::vector<const Json*> out;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(out),
               [&](const Json* line) { return Text(*line, field) == text; });
  return out;
}

std::optional<Pool> PoolOf(const std::vector<double>& values, bool of_items) {
  if (values.empty()) return std::nullopt;
  Pool pool{.n = values.size(), .mean = Mean(values)};
  if (values.size() < 2) return pool;
  const Interval interval =
      of_items ? ItemsInterval(pool.mean, pool.n) : BootstrapInterval(values, Mean);
  pool.low = interval.low;
  pool.high = interval.high;
  return pool;
}

std::optional<Pool> PoolField(const std::vector<const Json*>& lines, const char* field,
                              bool of_items) {
  return PoolOf(ValuesOf(lines, field), of_items);
}

std::optional<double> MeanField(const std::vector<const Json*>& lines, const char* field) {
  const std::vector<double> values = ValuesOf(lines, field);
  return values.empty() ? std::nullopt : std::optional(Mean(values));
}

Json IntervalText(const Pool& pool, std::string (*format)(double)) {
  return pool.low ? Json(fmt::format("{} to {}", format(*pool.low), format(*pool.high)))
                  : Json(nullptr);
}

std::string PoolText(const Pool& pool, std::string (*format)(double)) {
  const Json interval = IntervalText(pool, format);
  return fmt::format("{} ({}n {})", format(pool.mean),
                     interval.is_null() ? "" : interval.get<std::string>() + ", ", pool.n);
}

}  // namespace condense::report
