// Gathering lines into rows, and the letters of the policies.
#include "report/run_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace condense::report {
namespace {

int TeacherRank(const std::string& teacher) {
  return teacher == "greedy" ? 0 : teacher == "text" ? 1 : 2;
}

int RowRank(const PolicyRow& row) {
  return row.policy == "dense" ? 0 : row.policy == "control" ? 1 : 2;
}

std::string KeyOf(int idx) {
  std::string key(1, static_cast<char>('A' + idx % 26));
  return idx < 26 ? key : KeyOf(idx / 26 - 1) + key;
}

}  // namespace

const Json* PolicyRow::Line(const std::string& teacher) const {
  for (const Json* line : lines)
    if (Text(*line, "teacher") == teacher) return line;
  return nullptr;
}

const Json& PolicyRow::Main() const {
  const Json* greedy = Line("greedy");
  return greedy ? *greedy : *lines.front();
}

std::string PolicyRow::Label() const {
  if (budget) return fmt::format("{} {:g} %", name, 100 * *budget);
  return is_sparse() ? key + "  " + policy : policy;
}

const PolicyRow* RunView::Row(const std::string& policy) const {
  for (const PolicyRow& row : rows)
    if (row.policy == policy) return &row;
  return nullptr;
}

std::vector<const PolicyRow*> RunView::SparseRows() const {
  std::vector<const PolicyRow*> sparse;
  for (const PolicyRow& row : rows)
    if (row.is_sparse()) sparse.push_back(&row);
  return sparse;
}

std::vector<std::string> RunView::Teachers() const {
  std::vector<std::string> teachers;
  for (const PolicyRow& row : rows)
    for (const Json* line : row.lines)
      if (std::string teacher = Text(*line, "teacher");
          !teacher.empty() &&
          std::find(teachers.begin(), teachers.end(), teacher) == teachers.end())
        teachers.push_back(std::move(teacher));
  std::stable_sort(teachers.begin(), teachers.end(),
                   [](const auto& a, const auto& b) { return TeacherRank(a) < TeacherRank(b); });
  return teachers;
}

bool RunView::is_grid() const {
  return std::any_of(rows.begin(), rows.end(), [](const PolicyRow& row) { return row.budget; });
}

std::string RunView::MainTeacher() const {
  const std::vector<std::string> teachers = Teachers();
  const bool has_text = std::find(teachers.begin(), teachers.end(), "text") != teachers.end();
  return has_text || teachers.empty() ? "text" : teachers.front();
}

double RunView::Horizon() const {
  double horizon = 0;
  for (const PolicyRow& row : rows)
    for (const Json* line : row.lines)
      horizon = std::max(horizon, Number(*line, "n_decisions").value_or(0));
  return horizon;
}

RunView MakeView(const RunRecords& records, int run_idx) {
  RunView view{.records = &records, .id = fmt::format("run{}", run_idx + 1)};
  for (const Json& line : records.policies) {
    const std::string policy = Text(line, "policy");
    auto row = std::find_if(view.rows.begin(), view.rows.end(),
                            [&](const PolicyRow& known) { return known.policy == policy; });
    if (row == view.rows.end()) {
      view.rows.push_back({.policy = policy,
                           .name = policy.substr(0, policy.find(':')),
                           .budget = Number(line, "budget")});
      row = view.rows.end() - 1;
    }
    row->lines.push_back(&line);
  }
  std::stable_sort(view.rows.begin(), view.rows.end(),
                   [](const PolicyRow& a, const PolicyRow& b) { return RowRank(a) < RowRank(b); });
  const bool is_grid = view.is_grid();
  if (is_grid) {
    std::stable_sort(view.rows.begin(), view.rows.end(), [](const auto& a, const auto& b) {
      return std::tuple(RowRank(a), a.name, a.budget.value_or(2)) <
             std::tuple(RowRank(b), b.name, b.budget.value_or(2));
    });
  }
  int n_sparse = 0;
  std::string last_name;
  for (PolicyRow& row : view.rows) {
    std::stable_sort(row.lines.begin(), row.lines.end(), [](const Json* a, const Json* b) {
      return TeacherRank(Text(*a, "teacher")) < TeacherRank(Text(*b, "teacher"));
    });
    if (RowRank(row) < 2) continue;
    if (!is_grid || row.name != last_name) ++n_sparse;
    last_name = row.name;
    row.key = KeyOf(n_sparse - 1);
    row.colour = (n_sparse - 1) % kColours;
  }
  return view;
}

std::string CountRows(const RunView& view, size_t n) {
  return fmt::format("{} {}", n, view.is_grid() ? "rows" : "policies");
}

std::string TeacherName(const std::string& teacher) {
  if (teacher == "greedy") return "dense-greedy";
  if (teacher == "text") return "the file's text";
  return teacher;
}

}  // namespace condense::report
