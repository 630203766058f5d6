// Flags of `condense lab`.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace condense {

struct LabFlags {
  enum class What { kList, kRun, kStatus, kExport } what = What::kList;
  std::string spec;                 // `list --spec`: the experiment whose default spec is printed
  std::vector<std::string> specs;   // `run`: spec files or experiments' names
  std::vector<std::string> models;  // -m; empty: those of the specs
  std::string texts;
  int n_threads = 0;  // 0: the physical cores
  std::string k_type = "f16", v_type = "f16";
  double lost_after = 30;      // seconds
  std::string folder = "lab";  // --out, or what `status` and `export` name
  bool csv = false;
};

// `lab` and what is below it.
CLI::App* AddLab(CLI::App& app, LabFlags& flags);

}  // namespace condense
