#include "lab/lab_costs.h"

#include <cmath>
#include <limits>

namespace condense {
namespace {

CostHistory::Kind KindOf(const LabCosts::Work& work) {
  return {work.model, work.experiment, work.part};
}

}  // namespace

LabCosts::Work LabCosts::WorkOf(const Cell& cell, const std::string& part, int n_rows) {
  return {cell.parameters.value("model", ""), cell.experiment, part, n_rows};
}

void LabCosts::Add(const Work& work, double seconds) {
  history_.Add(KindOf(work), work.n_rows, seconds);
}

void LabCosts::Learn(const FinishedCell& cell, int n_rows) {
  if (cell.end["state"] != CellRecord().state) return;
  const std::string model = cell.parameters.value("model", "");
  const std::string name = cell.end.value("name", "");
  history_.Record({model, cell.experiment, name}, n_rows, cell.end.value("seconds", 0.0));
  for (const Json& line : cell.lines) {
    if (line["record"] == "prompt" && line["prefill_seconds"].is_number())
      history_.Record({model, cell.experiment, kPrefill}, n_rows,
                      line["prefill_seconds"].get<double>());
  }
}

double LabCosts::Expected(const Work& work) const {
  const double own = history_.Expected(KindOf(work), work.n_rows);
  if (!std::isnan(own)) return own;
  for (const bool same_model : {true, false}) {
    const double like = history_.ExpectedLike(
        [&](const CostHistory::Kind& kind) {
          if (same_model && kind[0] != work.model) return false;
          if (work.part == kPrefill) return kind[2] == kPrefill;
          return kind[1] == work.experiment && kind[2] != kPrefill;
        },
        work.n_rows);
    if (!std::isnan(like)) return like;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace condense
