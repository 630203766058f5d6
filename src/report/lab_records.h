// Folders of `condense lab run` as the report reads them: the finished cells of each experiment,
// their lines beside the cell's parameters. A cell counts once: as its last `cell` line that is not
// of a failure says, in the order of the folders, of their files and of the lines. What stands
// behind no `cell` line was cut off by a stop and counts nowhere. docs/RECORDS.md.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "report/records.h"

namespace condense::report {

// A cell that was tried and has no figures.
struct OpenCell {
  std::string cell, state, reason;
};

// A `run` line that stands nearest before finished cells in their own files.
struct LabRun {
  Json run;
  std::vector<std::string> files{};  // of those cells
};

struct LabRecords {
  std::string experiment;
  std::vector<std::string> files{};  // that hold its lines, in the order of reading
  // Under `policies` every line that is of a policy, `policy`, `item`, `exact` and `guard` lines
  // alike, each with the parameters of its cell as fields; under `layers` the same. No steps and no
  // maps.
  RunRecords records{};
  std::vector<Json> masses{};       // `layer_mass` lines, the cell's parameters under `parameters`
  std::vector<LabRun> runs{};       // one for each model, program and machine
  std::vector<Json> published{};    // figures of others, each once
  std::set<std::string> planned{};  // ids of cells
  int n_done = 0;
  std::vector<OpenCell> open{};
};

// By name of the experiment in the order of the records. Errors: a folder without records, and as
// ReadRecords.
Result<std::vector<LabRecords>> ReadLabFolders(const std::vector<std::string>& folders);

}  // namespace condense::report
