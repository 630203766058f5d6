// From what a user names (experiments, spec files, models) to groups of cells, checked before
// anything runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "lab/experiment.h"
#include "lab/lab_model.h"

namespace condense {

// What a cell holds beside the model: caches of so many rows, logits, what else.
struct LabMemory {
  int n_rows = 0, n_caches = 1;
  uint64_t logits_bytes = 0, other_bytes = 0;
};

// A spec as it is to be run: the file's text, or the experiment's default.
struct LabSpec {
  const ExperimentInfo* info = nullptr;
  std::string path;  // "" for the default spec
  std::string text;

  // How messages name it: its path, or the experiment's name.
  const std::string& Name() const { return path.empty() ? info->name : path; }
};

// `named`: a file (its name ends in .toml or has a slash), whose key `experiment` says which it is
// of; or an experiment's name. Errors: neither, no TOML, an unknown experiment.
Result<LabSpec> ReadLabSpec(const std::string& named);

// The spec's copy in the folder: the name of the file that holds it already, else of a new one.
Result<std::string> CopySpec(const std::string& folder, const LabSpec& spec);

// A spec that was read by its experiment.
struct LabJob {
  LabSpec spec;
  std::unique_ptr<Experiment> experiment;
  std::vector<std::string> models;  // files
};

// `plugin`: says which policies there are. `models`: -m, in place of the spec's own;
// `default_model` where neither names any. Errors: those of the spec, with lines; no model.
Result<LabJob> MakeLabJob(LabSpec spec, const Plugin& plugin,
                          const std::vector<std::string>& models, const std::string& default_model);

// Cells that run from one prefill.
struct LabGroup {
  size_t job = 0;     // index of the spec
  std::string model;  // file
  std::vector<Cell> cells;
  int n_rows = 0;  // the most that a cell wants
};

// The groups of one spec for a loaded model, in the order of planning. `texts`: --texts.
Result<std::vector<LabGroup>> PlanLabGroups(const LabJob& job, size_t job_idx, LabModel& model,
                                            const std::string& texts);

// Of a cell in a group whose cache has `n_rows` rows.
LabMemory MemoryOf(const Cell& cell, int n_rows, int n_vocab);

// "survival mean:blocks=2 context=2048 offset=0", for people: without what is the same in a run.
std::string CellLabel(const Cell& cell);

// The name of the cell's policy; "" where it has none.
std::string PolicyOf(const Cell& cell);

// The end of a cell that could not be run.
CellRecord FailedRecord(const Cell& cell, const std::string& reason);

}  // namespace condense
