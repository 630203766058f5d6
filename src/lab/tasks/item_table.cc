#include "lab/tasks/item_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "metrics/stats.h"

namespace condense {
namespace {

void AddOnce(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

}  // namespace

void ItemCounts::Add(const Json& item) {
  ++n;
  n_first += item["first_token_match"] == true ? 1 : 0;
  n_full += item["full_match"] == true ? 1 : 0;
  scores += item["score"].get<double>();
  read_shares += item["kv_read_share"].get<double>();
}

void ItemCounts::Add(const ItemCounts& other) {
  n += other.n;
  n_first += other.n_first;
  n_full += other.n_full;
  scores += other.scores;
  read_shares += other.read_shares;
}

const ItemCounts& ItemGrid::At(const std::string& policy, const std::string& column) const {
  static const ItemCounts none;
  const auto found = counts.find({policy, column});
  return found == counts.end() ? none : found->second;
}

bool ItemGrid::AtFloor(const std::string& column, bool scored) const {
  const ItemCounts& dense = At("dense", column);
  if (dense.n == 0) return false;
  return (scored ? dense.scores : dense.n_full) < kFloorShare * dense.n;
}

ItemCounts ItemGrid::Together(const std::string& policy, bool scored) const {
  ItemCounts all;
  for (const std::string& column : columns) {
    if (!AtFloor(column, scored)) all.Add(At(policy, column));
  }
  return all;
}

std::vector<ItemGrid> ItemGrids(std::span<const FinishedCell> cells,
                                const std::function<std::string(const Json& parameters)>& title,
                                const std::function<std::string(const Json& parameters)>& column) {
  std::vector<ItemGrid> grids;
  for (const FinishedCell& cell : cells) {
    const std::string name = column(cell.parameters);
    if (name.empty()) continue;
    const std::string of = title(cell.parameters);
    auto grid = std::find_if(grids.begin(), grids.end(),
                             [&](const ItemGrid& other) { return other.title == of; });
    if (grid == grids.end()) grid = grids.insert(grids.end(), ItemGrid{of, {}, {}, {}});
    // Without a line where the policy's budget cannot be met.
    const std::string policy = cell.parameters.value("policy", "");
    AddOnce(grid->policies, policy);
    AddOnce(grid->columns, name);
    for (const Json& line : cell.lines) {
      if (line["record"] == "item") grid->counts[{policy, name}].Add(line);
    }
  }
  return grids;
}

std::string ModelText(const Json& parameters) {
  std::string text = parameters["model"].get<std::string>();
  for (const auto& [key, name] : {std::pair("k_type", "keys"), std::pair("v_type", "values")}) {
    if (parameters.contains(key))
      text += fmt::format(", {} {}", parameters[key].get<std::string>(), name);
  }
  return text;
}

std::string CountText(int n_right, int n) {
  return n == 0 ? "–" : fmt::format("{}/{}", n_right, n);
}

std::string WilsonText(int n_right, int n) {
  if (n == 0) return "–";
  const Interval interval = WilsonInterval(n_right, n);
  return fmt::format("{:.0f} ({:.0f} to {:.0f})", 100.0 * n_right / n, 100 * interval.low,
                     100 * interval.high);
}

std::string FloorMarked(const ItemGrid& grid, const std::string& column, bool scored) {
  return column + (grid.AtFloor(column, scored) ? " *" : "");
}

std::string FloorNote(const ItemGrid& grid, bool scored) {
  const bool any = std::any_of(grid.columns.begin(), grid.columns.end(),
                               [&](const auto& column) { return grid.AtFloor(column, scored); });
  if (!any) return "";
  return fmt::format(
      "* dense itself is right on fewer than {:.0f} %: at its floor, left out of what is summed\n",
      100 * kFloorShare);
}

std::string PublishedNote(const ExperimentInfo& info) {
  if (info.published.empty()) return "";
  const PublishedFigure& figure = info.published.front();
  return fmt::format("published: {}, other facts and texts ({})\n", figure.setting, figure.source);
}

}  // namespace condense
