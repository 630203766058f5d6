// Dense is timed in turns with every policy, so its line pools what stands in all of their lines.
#include "report/lab_speed.h"

#include <fmt/format.h>

#include "report/html.h"
#include "report/lab_view.h"

namespace condense::report {
namespace {

void AddRates(const std::vector<const Json*>& lines, const std::string& model, const char* field,
              std::map<double, Speeds>& at_depth) {
  for (const Json* line : OncePerCell(lines, field)) {
    const auto rate = Number(*line, field), depth = ContextOf(*line);
    if (rate && *rate > 0 && depth && ModelName(*line) == model)
      at_depth[*depth].rates.push_back(*rate);
  }
}

void SetQuartiles(SpeedLine& line) {
  for (auto& [depth, speeds] : line.at_depth) speeds.quartiles = QuartilesOf(speeds.rates);
}

Lead LeadOf(const SpeedLine& line, const SpeedLine& dense) {
  Lead lead{.label = line.label, .mark = line.mark};
  double last_depth = 0, last_beyond = 0;
  bool faster = false;
  for (const auto& [depth, speeds] : line.at_depth) {
    const auto other = dense.at_depth.find(depth);
    if (other == dense.at_depth.end()) continue;
    const double beyond = speeds.quartiles.median - other->second.quartiles.median;
    if (lead.n_depths++ == 0) {
      lead.first_depth = depth;
      lead.faster = faster = beyond > 0;
    } else if (faster != (beyond > 0)) {
      faster = !faster;
      lead.turns.push_back(
          {last_depth + (depth - last_depth) * last_beyond / (last_beyond - beyond), faster});
    }
    last_depth = depth;
    last_beyond = beyond;
  }
  return lead;
}

}  // namespace

std::string Lead::Said() const {
  if (n_depths == 1)
    return fmt::format("{} at {} tokens, the one depth measured", faster ? "faster" : "no faster",
                       FormatCount(first_depth));
  if (turns.empty())
    return faster ? "faster at every depth measured" : "no faster at any depth measured";
  std::string out = faster ? "faster up" : "faster";
  for (size_t i = 0; i < turns.size(); ++i)
    out += fmt::format("{} {} about {}", i > 0 && turns[i].faster ? " and" : "",
                       turns[i].faster ? "from" : "to", FormatCount(turns[i].depth));
  return out + " tokens";
}

std::vector<SpeedsByDepth> SpeedsOf(const LabView& lab) {
  std::vector<SpeedsByDepth> all;
  for (const std::string& model : lab.models) {
    SpeedsByDepth of{.model = model, .lines = {{.label = "dense"}}, .leads = {}};
    for (const PolicyRow* row : lab.view.SparseRows()) {
      const std::vector<const Json*> own = lab.Lines(*row, "policy", "");
      AddRates(own, model, "dense_tokens_per_second", of.lines.front().at_depth);
      SpeedLine line{.label = row->Label(), .mark = row->budget ? row->Label() : row->key};
      AddRates(own, model, "sparse_tokens_per_second", line.at_depth);
      if (!line.at_depth.empty()) of.lines.push_back(std::move(line));
    }
    if (of.lines.front().at_depth.empty()) continue;
    for (SpeedLine& line : of.lines) SetQuartiles(line);
    for (size_t i = 1; i < of.lines.size(); ++i)
      if (Lead lead = LeadOf(of.lines[i], of.lines.front()); lead.n_depths > 0)
        of.leads.push_back(std::move(lead));
    all.push_back(std::move(of));
  }
  return all;
}

}  // namespace condense::report
