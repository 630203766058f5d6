// Runs experiments into a folder: plans their cells, leaves out what the folder holds already, runs
// the others group by group, writes each as it is done. Killed or stopped, it loses the cell under
// way; a cell that fails says why in its record and is tried again by the next run. Prints nothing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/plugin.h"
#include "lab/lab_plan.h"
#include "lab/ranks/work_share.h"
#include "lab/records.h"

namespace condense {

struct LabOptions {
  std::string folder;
  std::vector<LabSpec> specs;
  std::vector<std::string> models;  // of -m; empty: those of the specs
  std::string default_model;        // file; "" where there is none
  std::string texts;                // folder of --texts; "" where not given
  int n_threads = 1;
  std::string k_type = "f16", v_type = "f16";
  // The `run` line's facts, without those of a text.
  std::function<RunRecord(const LabModel&)> describe;
  // Whether what a cell holds fits in memory. May be empty.
  std::function<Status(const ModelFile&, const LabMemory&)> check_memory;
};

struct LabProgress {
  int n_cells = 0, n_done = 0, n_failed = 0;  // of all that were asked for
  std::string doing;                          // the cell under way, or what its group waits for
  double seconds_left = 0;                    // NaN: not known yet
};

struct LabEvents {
  // Once, before the first cell runs.
  std::function<void(const LabProgress&)> on_plan;
  // Every step of decoding; at least every few seconds.
  std::function<void(const LabProgress&)> on_progress;
  std::function<void(const Cell&, const CellRecord& end)> on_cell;
  std::function<void(const std::string&)> on_warning;
};

// Where time went: what experiments say they spent, and cells by policy.
struct LabSpent {
  std::string part;
  int n = 0;
  double seconds = 0;
};

struct LabOutcome {
  int n_cells = 0;               // that were asked for
  int n_kept = 0;                // done by earlier runs
  int n_done = 0, n_failed = 0;  // by this one, whichever rank ran them
  bool stopped = false;          // by the user
  std::string error;             // why the run ended before its end, as a full disk; ""
  std::vector<LabSpent> spent;
  double seconds = 0;  // of this process

  int n_left() const { return n_cells - n_kept - n_done - n_failed; }
};

// Errors: everything that shows before the first cell runs; nothing was written then but the folder
// and its lock. `share`: this process's part of the work, not closed by it; the events, the outcome
// and the plan's records are rank 0's, over all ranks.
Result<LabOutcome> RunLab(const Plugin& plugin, const LabOptions& options, const LabEvents& events,
                          WorkShare& share);

}  // namespace condense
