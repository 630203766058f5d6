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
#include "lab/compare_cells.h"
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
  explicit PrefixRows(std::string experiment) : experiment_(std::move(experiment)) {}

  // Appends the cells of a prefix to `cells`, dense and the control first, and keeps what they are
  // run with. `rows`: without these two, which are always there. `n_speed_pairs`: pairs of dense
  // and sparse blocks a row; 0: none.
  void Add(LabPrefix prefix, std::span<const PrefixRow> rows, int n_speed_pairs,
           std::vector<Cell>& cells);
  // The cells of all prefixes of a spec, with the same rows each. Errors: of PlanPrefixes.
  Result<std::vector<Cell>> Plan(LabModel& model, const PrefixSpec& prefixes,
                                 std::span<const PrefixRow> rows, int n_speed_pairs);

  // Of a group that was added, for whichever model.
  const LabPrefix& PrefixOf(const std::string& group) const { return groups_.at(group).prefix; }
  // Runs the cells, of one group that was added.
  Status RunGroup(GroupRun& run, std::span<const Cell> cells) const;

 private:
  struct Planned {
    LabPrefix prefix;
    int n_speed_pairs = 0;
    RowsOfCells rows;
  };
  const std::string experiment_;
  std::map<std::string, Planned> groups_;
};

// Rows for policies that a spec names, as the plug-in spells them, each once; dense and the control
// are left out. Errors: what the plug-in refuses.
Result<std::vector<PrefixRow>> RowsOfPolicies(const LabModel& model,
                                              std::span<const std::string> policies);

// Rows visible to a decision, mean over those of a prefix.
double MeanVisibleRows(const LabPrefix& prefix);

}  // namespace condense
