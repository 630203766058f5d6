// One rank's part in a run of the lab: where its groups come from and whom it tells what became of
// them. Alone, a process takes every group; of several ranks, rank 0 keeps the books (root_share.h)
// and the others ask it (worker_share.h). docs/LAB.md, "Many machines".
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "lab/lab_folder.h"
#include "lab/lab_plan.h"
#include "lab/ranks/hand_out.h"
#include "lab/records.h"

namespace condense {

// What a rank finds before it plans.
struct TakenFolder {
  LabFolder kept;  // with what other machines' folders hold, on rank 0
  // Experiment and id of what rank 0 knows to be finished, on another rank.
  std::set<std::pair<std::string, std::string>> done;
};

// What another rank did, for the records, tables and progress of rank 0.
struct ShareNews {
  enum class What { kFinished, kFailed, kSpent, kWarning } what = What::kWarning;
  std::optional<size_t> group;  // index in the plan
  std::string cell;    // id; kFinished, kFailed (a lost rank's cell: not in any records yet)
  CellRecord end;      // kFinished: name, state, reason, seconds
  std::string text;    // kSpent: the part; kFailed: the reason; kWarning
  double seconds = 0;  // kSpent
};

// Records of this run that are not in rank 0's folder.
struct RecordsElsewhere {
  int rank = 0;
  std::string host, path;
};

class WorkShare {
 public:
  virtual ~WorkShare() = default;

  virtual int rank() const { return 0; }
  virtual int n_ranks() const { return 1; }
  virtual int n_at_work() const { return 1; }  // ranks that are not lost
  // "2 ranks: here, there"; "" for one.
  virtual std::string Describe() const { return ""; }

  // In this order, each once.
  // Locks the folder and reads it. Errors: those of LabLock and ReadLabFolder, on any rank.
  virtual Result<TakenFolder> TakeFolder(const std::string& folder) = 0;
  // `plan`: see AgreedPlan. Errors: a rank that would do other work than rank 0, the difference
  // named.
  virtual Status Agree(const Json& plan) = 0;
  // `books`: the groups of the plan, as the caller knows them; only those of rank 0 count.
  virtual void Begin(HandOut books) = 0;

  // The group to run next; waits for one, calling `waiting` every now and then. None: all is done,
  // or a stop was asked for.
  virtual std::optional<HandedGroup> Next(const std::function<void()>& waiting) = 0;
  // What this rank is doing; `cell`: the id of the cell under way, "" where there is none.
  virtual void Working(const std::string& doing, const std::string& cell) = 0;
  // The cell's lines as they were written, its end last.
  virtual void Finished(const std::vector<Json>& lines) = 0;
  virtual void Spent(const std::string& part, double seconds) = 0;
  // True where the text is on its way to rank 0; else the caller says it.
  virtual bool Warn(const std::string& text) { return false; }
  // This rank cannot go on; neither can the run then.
  virtual void Fail(const std::string& why) {}
  // This rank does nothing more; rank 0 waits until that is so of all.
  virtual void Settle() {}
  // Of the other ranks, since it was last asked.
  virtual std::vector<ShareNews> TakeNews() { return {}; }
  // "; rank 1: mean:blocks=2 …": what the others are doing.
  virtual std::string Others() const { return ""; }
  // Why another rank could not go on; "".
  virtual std::string Error() const { return ""; }

  // After the run, on rank 0.
  virtual std::vector<RecordsElsewhere> Elsewhere() const { return {}; }
  virtual std::vector<FinishedCell> CellsElsewhere() const { return {}; }

  // The end of this process's part, whatever came before: the exit code to return. With a rank lost
  // it ends the process itself, with that code.
  virtual int Close(int code) { return code; }
};

// What ranks compare before they begin: `run` lines, a model each, and the cells in order.
Json AgreedPlan(const std::vector<Json>& runs, const std::vector<LabGroup>& groups);
// The first difference in words: "threads is 1 there, 2 here"; "" for none.
std::string PlanDifference(const Json& here, const Json& there);

// The groups as they are handed out: what of them is `pending`, and what `kept` has of the rest.
HandOut MakeBooks(const std::vector<LabGroup>& groups, const LabFolder& kept,
                  const std::function<bool(const Cell&)>& pending);

// A process on its own.
std::unique_ptr<WorkShare> WorkAlone();

}  // namespace condense
