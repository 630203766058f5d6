// What an experiment of the lab is: one file in lab/experiments/ with a default spec, the published
// figures it stands beside, a plan of cells for a model, and a way to run those of one prefill.
// Everything around it (files, resuming, progress, locks, more than one model, failures) is the
// runner's (lab/lab_run.h). docs/ADDING_AN_EXPERIMENT.md walks through one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/plugin.h"
#include "decode/session.h"
#include "lab/lab_cell.h"
#include "lab/lab_model.h"
#include "lab/records.h"
#include "lab/spec_reader.h"

namespace condense {

// A figure that others published, as data: printed beside ours and never compared by a test.
struct PublishedFigure {
  std::string metric;  // as our own table names it, e.g. "median T_div"
  // The parameters of the cells that it stands beside, as far as it has them: {"context": 2048,
  // "policy": "mean:blocks=2"}. Policies as the plug-in spells them.
  Json at = Json::object();
  std::string value;  // as it was published, with its unit: "62.5 to 97.6 %"
  // The same as numbers in the unit of our records (shares 0 to 1), equal for a single figure;
  // empty where it is none.
  std::optional<double> low{}, high{};
  std::string setting;  // model and hardware: "Qwen2-0.5B, GPU"
  std::string source;   // "arXiv 2602.06317 v3, table 1"
};

// A cell that is finished, with its lines as they were written: what a table is made of.
struct FinishedCell {
  std::string experiment, id;
  Json parameters = Json::object();
  Json end;                 // the `cell` line
  std::vector<Json> lines;  // all before it, but `step` and `rows`, which are many

  bool failed() const { return end["state"] == "failed"; }
};

// A table for the terminal.
struct LabTable {
  struct Column {
    std::string title;
    bool left = false;
    int priority = 0;  // the highest go first where the width is short; 0 always stays
  };
  std::string title;
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;  // a text for each column
  std::string notes;                           // lines below it, each with its newline; or ""
};

// What an experiment is given to run cells of one group: the same prefill, session and model.
// Functions that return a Status fail where nothing more can be done (a full disk, a stop); give
// that error back.
class GroupRun {
 public:
  virtual ~GroupRun() = default;

  virtual LabModel& model() = 0;
  virtual const Plugin& plugin() = 0;
  // A session with an empty cache of the rows that the group's cells want; the same one at every
  // call. Errors: no memory.
  virtual Result<Session*> OpenSession() = 0;

  // A cell of the experiment that an earlier run finished; null: none such.
  virtual const FinishedCell* Kept(const std::string& id) = 0;

  // The cell under way, and how much of it is done: at least every few seconds, for the progress
  // line. Where RunGroup then fails, it is this cell that failed.
  virtual void Working(const Cell& cell, double share) = 0;
  // What all the group's cells wait for: "dense prefill".
  virtual void Preparing(const std::string& what, int64_t n_done, int64_t n_total) = 0;
  // Adds to what the run's closing lines say of where time went, e.g. "prefill".
  virtual void Spent(const std::string& part, double seconds) = 0;
  virtual void Warn(const std::string& text) = 0;

  // The cell is complete: its lines (ToJson of records, or an object with the key `record` that
  // names its kind; without schema, experiment and cell) and its end. `seconds` of `end` is the
  // cell's own time. They are written at once and together.
  virtual Status Finish(const Cell& cell, const std::vector<Json>& lines, CellRecord end) = 0;
  // The cell cannot be done, while others of the group may. Tried again by the next run.
  virtual Status Fail(const Cell& cell, const std::string& reason) = 0;
};

// Made anew for each spec; reads it once, plans for one model after another, then runs the groups
// of them all.
class Experiment {
 public:
  virtual ~Experiment() = default;

  // Reads and checks the keys of its default spec, but for `experiment` and `models`, which the
  // runner reads. Errors are told to the reader.
  virtual void Read(SpecReader& spec) = 0;

  // The cells for a model, in the order in which they are best run: those of a group together. Ids
  // must be unlike. All models are planned before the first cell runs. Errors are for the user and
  // are told before anything runs: a text that is too short, a layer that the model lacks, a policy
  // that the plug-in refuses.
  virtual Result<std::vector<Cell>> Plan(LabModel& model) = 0;

  // Runs `cells`, all of one group, in any order, each from the state at the end of the prefill, so
  // that no figure depends on what ran before. Calls Finish or Fail for each. An error fails the
  // cell under way, or all that are left where none was; the others are run by another call.
  virtual Status RunGroup(GroupRun& run, std::span<const Cell> cells) = 0;
};

struct ExperimentInfo {
  std::string name;          // its file's
  std::string title;         // one line
  std::string repeats;       // what of which paper, and what is done otherwise
  std::string default_spec;  // TOML with comments: every key there is
  std::vector<PublishedFigure> published{};
  std::function<std::unique_ptr<Experiment>()> make;
  // The tables of what a folder holds, whatever specs made it; cells in the order of planning.
  std::function<std::vector<LabTable>(std::span<const FinishedCell> cells)> tables;
};

// What was published of a metric at these parameters, no more and no fewer; "": nothing.
std::string PublishedAt(const ExperimentInfo& info, const std::string& metric, const Json& at);

// By name.
std::vector<const ExperimentInfo*> Experiments();
// Errors: unknown, with the nearest name.
Result<const ExperimentInfo*> FindExperiment(const std::string& name);

// One a file, at namespace scope: CONDENSE_REGISTER_EXPERIMENT(survival, {.name = "survival", …});
struct ExperimentRegistrar {
  explicit ExperimentRegistrar(ExperimentInfo info);
};
#define CONDENSE_REGISTER_EXPERIMENT(identifier, ...) \
  static const ::condense::ExperimentRegistrar identifier##_registrar { __VA_ARGS__ }

}  // namespace condense
