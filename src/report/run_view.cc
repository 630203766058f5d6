// Gathering lines into rows, and the letters of the policies.
#include "report/run_view.h"

#include <fmt/format.h>

#include <algorithm>

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

std::string PolicyRow::Label() const { return is_sparse() ? key + "  " + policy : policy; }

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
      view.rows.push_back({.policy = policy});
      row = view.rows.end() - 1;
    }
    row->lines.push_back(&line);
  }
  std::stable_sort(view.rows.begin(), view.rows.end(),
                   [](const PolicyRow& a, const PolicyRow& b) { return RowRank(a) < RowRank(b); });
  int n_sparse = 0;
  for (PolicyRow& row : view.rows) {
    std::stable_sort(row.lines.begin(), row.lines.end(), [](const Json* a, const Json* b) {
      return TeacherRank(Text(*a, "teacher")) < TeacherRank(Text(*b, "teacher"));
    });
    if (RowRank(row) < 2) continue;
    row.key = KeyOf(n_sparse);
    row.colour = n_sparse % kColours;
    ++n_sparse;
  }
  return view;
}

std::string TeacherName(const std::string& teacher) {
  if (teacher == "greedy") return "dense-greedy";
  if (teacher == "text") return "the file's text";
  return teacher;
}

}  // namespace condense::report
