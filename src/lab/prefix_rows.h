// Cells that are rows of a comparison (lab/compare.h) from a prefix of a text: planned together,
// run from one dense prefill. What experiments of this kind differ in is the rows that they ask for
// and the tables that they make. Prints nothing.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "lab/cells.h"
#include "lab/experiment.h"
#include "lab/prefix_spec.h"

namespace condense {

// A row that is wanted, and the parameters of its cell beside those of the prefix and `policy`.
struct PrefixRow {
  CompareCell cell;
  Json own = Json::object();
};

class PrefixRows {
 public:
  // Forgets what was planned for the model before; a group's prefix is needed until it has run.
  // `experiment`: its name. `rows`: without dense and the control, which are always there.
  // `timing`: pairs of dense and sparse blocks a row; 0: none.
  void Add(const std::string& experiment, LabPrefix prefix, std::span<const PrefixRow> rows,
           int n_speed_pairs);

  // Of all prefixes, in the order of Add. dense and control come first.
  const std::vector<Cell>& cells() const { return cells_; }
  void ClearCells() { cells_.clear(); }

  const LabPrefix& PrefixOf(const std::string& group) const { return groups_.at(group).prefix; }
  // Runs the cells, of one group that was added.
  Status RunGroup(GroupRun& run, std::span<const Cell> cells) const;

 private:
  struct Planned {
    LabPrefix prefix;
    int n_speed_pairs = 0;
    std::map<std::string, CompareCell> rows;  // by policy
  };
  std::vector<Cell> cells_;
  std::map<std::string, Planned> groups_;
};

// Rows for policies that a spec names, as the plug-in spells them, each once; dense and the control
// are left out. Errors: what the plug-in refuses.
Result<std::vector<PrefixRow>> RowsOfPolicies(const LabModel& model,
                                              std::span<const std::string> policies);

// Rows visible to a decision, mean over those of a prefix.
double MeanVisibleRows(const LabPrefix& prefix);

}  // namespace condense
