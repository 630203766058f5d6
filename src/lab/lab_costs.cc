#include "lab/lab_costs.h"

#include <limits>

namespace condense {

void LabCosts::Add(const std::string& experiment, const std::string& part, int n_rows,
                   double seconds) {
  Sum& sum = parts_[{experiment, part}];
  sum.seconds += seconds;
  sum.rows += n_rows;
}

void LabCosts::Learn(const FinishedCell& cell, int n_rows) {
  if (cell.end["state"] != CellRecord().state) return;
  Add(cell.experiment, cell.end.value("name", ""), n_rows, cell.end.value("seconds", 0.0));
  for (const Json& line : cell.lines) {
    if (line["record"] == "prompt" && line["prefill_seconds"].is_number())
      Add(cell.experiment, kPrefill, n_rows, line["prefill_seconds"].get<double>());
  }
}

double LabCosts::Expected(const std::string& experiment, const std::string& part,
                          int n_rows) const {
  Sum sum;
  if (const auto own = parts_.find({experiment, part}); own != parts_.end()) {
    sum = own->second;
  } else {
    // Prefills cost alike in every experiment, cells of other policies in this one.
    for (const auto& [name, known] : parts_) {
      const bool is_prefill = name.second == kPrefill;
      if (part == kPrefill ? !is_prefill : (is_prefill || name.first != experiment)) continue;
      sum.seconds += known.seconds;
      sum.rows += known.rows;
    }
  }
  if (sum.rows == 0) return std::numeric_limits<double>::quiet_NaN();
  return sum.seconds / sum.rows * n_rows;
}

}  // namespace condense
