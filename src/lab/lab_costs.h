// How long the rest of a run takes, from what cells and prefills took so far. Cost is taken to grow
// with the rows of the cache, policies to differ by far more. Pure.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "lab/experiment.h"

namespace condense {

class LabCosts {
 public:
  // `part`: a policy's name, or kPrefill for what a group's cells share.
  static constexpr const char* kPrefill = "prefill";
  void Add(const std::string& experiment, const std::string& part, int n_rows, double seconds);
  // From the records of a cell and of the prefill before it; nothing where it is not done.
  void Learn(const FinishedCell& cell, int n_rows);
  // Seconds; NaN where neither this part nor another of the experiment is known.
  double Expected(const std::string& experiment, const std::string& part, int n_rows) const;

 private:
  struct Sum {
    double seconds = 0, rows = 0;
  };
  std::map<std::pair<std::string, std::string>, Sum> parts_;
};

}  // namespace condense
