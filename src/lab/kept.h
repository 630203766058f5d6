// What an earlier run of the same comparison left in its records: the rows that are finished, and
// where in the file they end. A killed run leaves lines behind them, the last one cut anywhere;
// they belong to the row that was under way and are run again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "lab/compare.h"
#include "lab/records.h"

namespace condense {

struct KeptRecords {
  uint64_t n_bytes = 0;  // of whole rows, from the file's beginning; 0: nothing is kept
  Json run;              // the `run` line
  std::optional<PromptRecord> prompt;
  std::vector<CompareRow> rows;  // in the file's order; policy lines and the cell, no layers or
                                 // steps
  std::vector<LeftOut> left_out;
};

// An empty or absent file keeps nothing. Errors: a file that is no records of this schema, or is
// damaged before its end (line named).
Result<KeptRecords> ReadKept(const std::string& path);

// Whether they are of the run described: same model, text, tokens, program and plug-in, and
// settings that figures depend on. The error names the first difference and the way out.
Status CheckSameRun(const KeptRecords& kept, const RunRecord& run, const std::string& path);

}  // namespace condense
