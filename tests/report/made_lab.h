// Folders of the lab made up for the tests of the report: shaped as docs/RECORDS.md says of
// `condense lab run`, with figures drawn from a fixed seed. They measure nothing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace condense {

struct MadeLab {
  std::vector<std::string> models = {"made-model-Q4_1.gguf"};
  std::vector<std::string> policies = {"mean:blocks=2", "mean:blocks=8", "mean:blocks=20",
                                       "quest:blocks=8"};
  std::vector<int> contexts = {2048, 8192, 16384};
  int n_prefixes = 5;
  bool control = true;
  bool needles = true;  // the experiment `needle` beside `survival`
  bool masses = true;   // the experiment `mass`
};

// The lines of a rank's file, in the order in which they are written: of every cell its lines, then
// its `cell` line.
std::vector<nlohmann::json> MakeLabRecords(const MadeLab& made);

// One line of a cell, as the lab marks it.
nlohmann::json LabLine(const char* kind, const std::string& experiment, const std::string& cell);

}  // namespace condense
