#include "app/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "base/result.h"

namespace condense {
namespace {

constexpr int kGap = 2;
constexpr int kLeastFirst = 8;  // what the first column keeps when it is shortened

bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

std::string Shorten(const std::string& text, int width) {
  if (DisplayWidth(text) <= width) return text;
  std::string cut;
  int n = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!IsContinuation(text[i]) && ++n > width - 1) break;
    cut += text[i];
  }
  return cut + "…";
}

int ColumnWidth(const TableColumn& column) {
  int width = DisplayWidth(column.title);
  for (const std::string& cell : column.cells) width = std::max(width, DisplayWidth(cell));
  return width;
}

int TotalWidth(const std::vector<TableColumn>& columns) {
  int width = -kGap;
  for (const TableColumn& column : columns) width += ColumnWidth(column) + kGap;
  return width;
}

std::string Percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f}%", 100 * share) : "-";
}

std::string Change(double ratio) {
  if (!std::isfinite(ratio)) return "-";
  const double percent = 100 * (ratio - 1);
  if (std::abs(percent) < 0.05) return "0.0%";
  return percent < 1000 ? fmt::format("{:+.1f}%", percent) : fmt::format("{:.2g}x", ratio);
}

std::string Small(double value) {
  if (!std::isfinite(value)) return "-";
  if (value == 0) return "0";
  return value < 0.00095 ? fmt::format("{:.0e}", value)
                         : fmt::format("{:.{}f}", value, value < 1 ? 3 : 2);
}

}  // namespace

int DisplayWidth(const std::string& text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return !IsContinuation(c); }));
}

std::string RenderTable(std::vector<TableColumn> columns, int width) {
  CONDENSE_CHECK(!columns.empty());
  while (TotalWidth(columns) > width) {
    const auto least = std::max_element(
        columns.begin(), columns.end(), [](const TableColumn& a, const TableColumn& b) {
          return a.priority <= b.priority;  // the rightmost among equals
        });
    if (least->priority == 0) break;
    columns.erase(least);
  }
  if (const int excess = TotalWidth(columns) - width; excess > 0) {
    const int first = std::max(kLeastFirst, ColumnWidth(columns[0]) - excess);
    for (std::string& cell : columns[0].cells) cell = Shorten(cell, first);
  }
  std::string text;
  const auto add_line = [&](const std::function<const std::string&(const TableColumn&)>& cell) {
    std::string line;
    for (const TableColumn& column : columns) {
      const std::string& content = cell(column);
      const std::string padding(ColumnWidth(column) - DisplayWidth(content), ' ');
      if (!line.empty()) line.append(kGap, ' ');
      line += column.left ? content + padding : padding + content;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([](const TableColumn& column) -> const std::string& { return column.title; });
  for (size_t row = 0; row < columns[0].cells.size(); ++row) {
    add_line([row](const TableColumn& column) -> const std::string& { return column.cells[row]; });
  }
  return text;
}

std::string CompareTable(const std::vector<CompareRow>& rows, int n_generate, int width) {
  const bool has_text = std::any_of(rows.begin(), rows.end(),
                                    [](const CompareRow& r) { return r.teachers.size() > 1; });
  const auto teacher = [](const CompareRow& row, bool text) -> const PolicyRecord* {
    const size_t index = text ? 1 : 0;
    return index < row.teachers.size() ? &row.teachers[index] : nullptr;
  };
  std::vector<TableColumn> columns;
  const auto add = [&](const std::string& title, int priority, bool text,
                       const std::function<std::string(const PolicyRecord&)>& cell,
                       bool left = false) {
    TableColumn column{.title = title, .priority = priority, .left = left, .cells = {}};
    for (const CompareRow& row : rows) {
      const PolicyRecord* record = teacher(row, text);
      column.cells.push_back(record ? cell(*record) : "-");
    }
    columns.push_back(std::move(column));
  };
  const auto first_difference = [&](const std::optional<int>& t) {
    return t ? std::to_string(*t) : fmt::format(">{}", n_generate - 1);
  };
  // Quality under the text teacher where there is one: greedy continuations of small models loop.
  const bool quality = has_text;
  add(
      "policy", 0, false, [](const PolicyRecord& r) { return r.policy; }, true);
  add("read", 0, false, [](const PolicyRecord& r) { return Percent(r.kv_read_share); });
  add("rows", 3, false,
      [](const PolicyRecord& r) { return fmt::format("{:.0f}", r.unique_rows_per_kv_head); });
  add("T_div", 0, false, [&](const PolicyRecord& r) { return first_difference(r.t_div); });
  add("T_sig", 0, false, [&](const PolicyRecord& r) { return first_difference(r.t_sig); });
  add("match", 0, false, [](const PolicyRecord& r) { return Percent(r.figures.match); });
  if (has_text)
    add("match(t)", 4, true, [](const PolicyRecord& r) { return Percent(r.figures.match); });
  add("KL", 0, quality, [](const PolicyRecord& r) { return Small(r.figures.kl_mean); });
  add("KL max", 4, quality, [](const PolicyRecord& r) { return Small(r.figures.kl_max); });
  add("ΔPPL", 1, quality, [](const PolicyRecord& r) { return Change(r.figures.ppl_ratio); });
  add("mass", 2, quality,
      [](const PolicyRecord& r) { return Percent(r.figures.omitted_mass_mean); });
  if (rows.empty() || rows[0].teachers[0].speed.n_pairs > 0) {
    add("tok/s", 1, false, [](const PolicyRecord& r) {
      return fmt::format("{:.1f}", r.speed.sparse_tokens_per_second);
    });
    add("speed", 0, false,
        [](const PolicyRecord& r) { return fmt::format("{:.2f}x", r.speed.ratio.median); });
    add("quartiles", 4, false, [](const PolicyRecord& r) {
      return fmt::format("{:.2f}-{:.2f}x", r.speed.ratio.low, r.speed.ratio.high);
    });
  }
  return RenderTable(std::move(columns), width);
}

}  // namespace condense
