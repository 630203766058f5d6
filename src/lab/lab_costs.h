// How long the rest of a run of the lab takes, from what cells and prefills took so far
// (lab/costs.h), by model, experiment and policy. Cost is taken to grow with the rows of the cache,
// by those whose cache is the most alike. Pure.
#pragma once

#include <string>

#include "lab/costs.h"
#include "lab/experiment.h"

namespace condense {

class LabCosts {
 public:
  // `part`: a policy's name, or kPrefill for what a group's cells share.
  static constexpr const char* kPrefill = "prefill";
  struct Work {
    std::string model, experiment, part;
    int n_rows = 0;
  };
  // Of a cell's group.
  static Work WorkOf(const Cell& cell, const std::string& part, int n_rows);

  // Of this process, or of other ranks of its run.
  void Add(const Work& work, double seconds);
  // From the records of a cell and of the prefill before it; nothing where it is not done.
  void Learn(const FinishedCell& cell, int n_rows);
  // Seconds. Of a part that is not known, what other policies of the model's experiment let expect,
  // or other experiments' prefills of the model; of a model, other models'. NaN: nothing is known.
  double Expected(const Work& work) const;

 private:
  CostHistory history_;
};

}  // namespace condense
