// One run as its page shows it: policy lines gathered into rows, each sparse policy under a letter
// that stands for it in every table and chart.
#pragma once

#include <string>
#include <vector>

#include "report/records.h"

namespace condense::report {

inline constexpr int kColours = 8;  // categorical colours in assets/report.css

struct PolicyRow {
  std::string policy;                // canonical spec, "dense" or "control"
  std::string key{};                 // "A", "B", …; empty for dense and control
  int colour = 0;                    // 0 … kColours - 1
  std::string name{};                // the policy's name alone
  std::optional<double> budget{};    // that --budgets asked for, share of dense's bytes
  std::vector<const Json*> lines{};  // one per teacher: greedy, text, then any other

  bool is_sparse() const { return !key.empty(); }
  // The line of `teacher`, or null.
  const Json* Line(const std::string& teacher) const;
  // Where the fields of the autonomous run and of the cost are taken from: greedy's line, else the
  // first.
  const Json& Main() const;
  // "A mean:blocks=8"; of a budget asked for "mean 5 %"; without a key the policy alone.
  std::string Label() const;
};

struct RunView {
  const RunRecords* records = nullptr;
  std::string id;                 // "run1": prefix of every id in the page
  std::vector<PolicyRow> rows{};  // dense, control, then policies in the order of the records; of
                                  // a grid by name and budget

  const Json& run() const { return records->run; }
  const Json& prompt() const { return records->prompt; }
  const PolicyRow* Row(const std::string& policy) const;
  std::vector<const PolicyRow*> SparseRows() const;
  // Many policies at the same budgets: letters and colours are of names, and the page is one of
  // comparison.
  bool is_grid() const;
  // The teacher that charts of a grid show: the text where there is one.
  std::string MainTeacher() const;
  // Teachers that any line has: greedy, text, then any other.
  std::vector<std::string> Teachers() const;
  // Largest number of decisions of any line: the horizon of the autonomous run.
  double Horizon() const;
};

RunView MakeView(const RunRecords& records, int run_idx);

// "5 policies"; of a grid, where a policy has a row for each budget, "80 rows".
std::string CountRows(const RunView& view, size_t n);

// "greedy" → "dense-greedy", "text" → "the file's text".
std::string TeacherName(const std::string& teacher);

}  // namespace condense::report
