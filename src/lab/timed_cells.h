// Cells of a prefix that are timed in turns with dense and tell no decisions of a policy:
// llama.cpp's own decoding, which the plug-in is kept out of, and exact decoding. A `speed` line
// each (docs/RECORDS.md).
#pragma once

#include <array>
#include <span>
#include <string>

#include "base/result.h"
#include "lab/experiment.h"
#include "lab/prefix_spec.h"

namespace condense {

// As the parameter `policy` of their cells names them.
inline constexpr const char* kHostFlash = "llama.cpp fa on";
inline constexpr const char* kHostNoFlash = "llama.cpp fa off";
inline constexpr const char* kExactLookup = "exact lookup";
inline constexpr std::array<const char*, 3> kTimedWays = {kHostFlash, kHostNoFlash, kExactLookup};

bool IsTimedWay(const std::string& policy);
bool IsHostWay(const std::string& policy);
// Why it cannot be done with this model and its cache's types, or success.
Status CheckTimedWay(const LabModel& model, const std::string& way);

// What the way holds of `n_rows` rows: llama.cpp's, a cache and a compute buffer of their own
// beside the session's.
CellMemory TimedWayMemory(const LabModel& model, const std::string& way, int n_rows);

// Runs the cells, of one group, `n_pairs` pairs of blocks each. llama.cpp's: a context of its own
// in this process, with the session's rows, types and threads, prefilled with the same prompt;
// blocks of 16 steps on the text's tokens. Exact: a block decodes as many tokens as the prefix
// generates, behind the text's next; drafts are looked up in the context. Errors: those of
// decoding, a plug-in that computes what is llama.cpp's, or does not compute what is its own.
Status RunTimedCells(GroupRun& run, const LabPrefix& prefix, std::span<const Cell> cells,
                     int n_pairs);

}  // namespace condense
