// Decode speed of one experiment against depth: medians over prefixes by model and policy, and
// where a policy is faster than dense, by straight lines between the depths that were measured.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "metrics/stats.h"

namespace condense::report {

struct LabView;

struct Speeds {
  std::vector<double> rates{};  // tokens a second, one a prefix
  Quartiles quartiles{};
};

struct SpeedLine {
  std::string label;                    // of the row
  std::string mark{};                   // its letter; of a row with a budget the label
  std::map<double, Speeds> at_depth{};  // by tokens
};

// A policy beside dense at the depths at which both were measured.
struct Lead {
  struct Turn {
    double depth = 0;
    bool faster = false;  // from here on
  };
  std::string label, mark;
  size_t n_depths = 0;
  double first_depth = 0;
  bool faster = false;        // at the first depth; as fast is not faster
  std::vector<Turn> turns{};  // where one line passes the other, by depth

  // "faster from about 2,000 tokens", "no faster at any depth measured"
  std::string Said() const;
};

struct SpeedsByDepth {
  std::string model;
  std::vector<SpeedLine> lines;  // dense, as measured beside every policy, then the policies
  std::vector<Lead> leads;       // of policies that have a depth in common with dense
};

// By model, as the view orders them; of models with both dense's speed and a policy's.
std::vector<SpeedsByDepth> SpeedsOf(const LabView& lab);

}  // namespace condense::report
