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
  return several_models ? fmt::format("{}, {}", ModelName(line), tokens) : tokens;
}

std::vector<const Json*> LabView::Lines(const PolicyRow& row, const char* kind,
                                        const std::string& setting) const {
  std::vector<const Json*> lines;
  for (const Json* line : row.lines)
    if (Text(*line, "record") == kind && (setting.empty() || Setting(*line) == setting))
      lines.push_back(line);
  return lines;
}

std::vector<std::string> LabView::Teachers() const {
  std::vector<std::string> teachers = view.Teachers();
  std::erase(teachers, "");
  return teachers;
}

LabView MakeLabView(const LabRecords& lab) {
  LabView out{.lab = &lab, .view = MakeView(lab.records, 0)};
  out.view.id = "lab-" + lab.experiment;
  std::set<std::string> models;
  for (const Json& line : lab.records.policies) models.insert(ModelName(line));
  for (const Json& line : lab.masses) models.insert(ModelName(line["parameters"]));
  out.several_models = models.size() > 1;
  std::set<std::tuple<std::string, double, std::string>> ordered;
  for (const Json& line : lab.records.policies)
    ordered.emplace(ModelName(line), ContextOf(line).value_or(0), out.Setting(line));
  for (const auto& [model, context, setting] : ordered) out.settings.push_back(setting);
  return out;
}

std::optional<Pool> PoolOf(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  Pool pool{.n = values.size(), .mean = Mean(values), .median = Quantile(values, 0.5)};
  if (values.size() < 2) return pool;
  const bool counts =
      std::all_of(values.begin(), values.end(), [](double v) { return v == 0 || v == 1; });
  const Interval interval = counts ? WilsonInterval(std::count(values.begin(), values.end(), 1.0),
                                                    static_cast<int64_t>(values.size()))
                                   : BootstrapInterval(values, Mean);
  pool.low = interval.low;
  pool.high = interval.high;
  return pool;
}

std::optional<Pool> PoolField(const std::vector<const Json*>& lines, const char* field) {
  std::vector<double> values;
  for (const Json* line : lines)
    if (const auto value = Share(*line, field)) values.push_back(*value);
  return PoolOf(values);
}

std::vector<const Json*> Having(const std::vector<const Json*>& lines, const char* field,
                                const std::string& text) {
  std::vector<const Json*> out;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(out),
               [&](const Json* line) { return Text(*line, field) == text; });
  return out;
}

std::string PoolText(const Pool& pool, std::string (*format)(double)) {
  if (!pool.low) return fmt::format("{} (n {})", format(pool.mean), pool.n);
  return fmt::format("{} ({} to {}, n {})", format(pool.mean), format(*pool.low),
                     format(*pool.high), pool.n);
}

}  // namespace condense::report
