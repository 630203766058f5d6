// Records made up for the tests of the report: shaped as `condense compare --records` writes them,
// with figures drawn from a fixed seed. They say of themselves that they are made, and measure
// nothing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace condense {

struct MadeRun {
  std::string model = "made-model-Q4_1.gguf";
  std::vector<std::string> policies = {"mean:blocks=2,window=64", "mean:blocks=8,window=64",
                                       "mean:blocks=20,window=64", "mean:blocks=44,window=64",
                                       "quest:blocks=8,window=64"};
  int n_decisions = 127;
  int n_layers = 30;
  bool text_teacher = true;
  bool steps = true;
  bool control = true;
  bool odd_text = false;  // emoji over two tokens, </script>, control bytes, no valid UTF-8
  // Policies of the list that are finished; the others' lines are missing, as when the run was cut.
  int n_finished = 1 << 20;
  // As `--policies … --budgets` writes them: `policies` are names, each at these shares of dense's
  // bytes; the last one cannot meet the first budget, and one more is left out.
  std::vector<double> budgets = {};
};

// One line of a file each, in the order in which they are written.
std::vector<nlohmann::json> MakeRecords(const MadeRun& made);

// As a file: one object a line. Bytes that are no valid UTF-8 become U+FFFD.
std::string ToLines(const std::vector<nlohmann::json>& records);

}  // namespace condense
