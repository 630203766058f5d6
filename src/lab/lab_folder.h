// A folder of the lab on disk: its lock, what its records hold, and where each file is gone on with
// (docs/RECORDS.md, "Lab folders"). A killed run leaves lines behind the last whole cell, cut at
// any byte; they are ignored here and cut off when that file is written again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "lab/experiment.h"
#include "lab/records.h"

namespace condense {

// Held by the one run that may write into a folder; let go when it ends, however it ends.
class LabLock {
 public:
  // Creates the folder where it is not there. Errors: a folder that cannot be written to; another
  // run at work there (who and since when). `note`: what the lock's file says beside that.
  static Result<LabLock> Take(const std::string& folder, const std::string& note = "");
  LabLock(LabLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  LabLock& operator=(LabLock&&) = delete;
  ~LabLock();

 private:
  explicit LabLock(int file) : file_(file) {}
  int file_;
};

struct LabFolder {
  std::vector<Json> runs, plans, published;  // lines of these kinds, in order
  std::vector<FinishedCell> cells;           // each once, as its last `cell` line says
  std::map<std::string, uint64_t> n_bytes;   // by file name: of whole cells, from the beginning

  // Null: none such.
  const FinishedCell* Find(const std::string& experiment, const std::string& id) const;
  // Of this experiment, done or unmet, in the order of its plans.
  std::vector<FinishedCell> Done(const std::string& experiment) const;
  // One more cell. Of two with one id the later counts, but what is done before what failed.
  void Add(FinishedCell cell);

 private:
  std::map<std::pair<std::string, std::string>, size_t> places_;
};

// A cell from its lines as they were written, the `cell` line last. Errors: no state or parameters.
Result<FinishedCell> MakeFinishedCell(std::vector<Json> lines);

// An absent folder, or one without records, holds nothing. Errors: a file that is no records of
// this schema (the schema named), or is damaged before its end (file and line named).
Result<LabFolder> ReadLabFolder(const std::string& folder);

// Every line of whole cells and every line of no cell, in order: what an export is made of.
Status ForEachLine(const std::string& folder, const std::function<Status(const Json& line)>& take);

// "records-0.jsonl"
std::string RecordsFileName(int rank);

// Of a `run` line, what decides whether figures belong together.
Json RunIdentity(const Json& run);

// Whether a run may write beside what is there; the error names the first difference and the way
// out. `run`: its `run` line.
Status CheckSameProgram(const LabFolder& kept, const Json& run, const std::string& folder);

}  // namespace condense
