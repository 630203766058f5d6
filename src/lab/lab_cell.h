// The unit of an experiment's work: one set of parameters, done once and never again. Its id is a
// canonical spelling of the parameters, the same in every run and whatever the order of planning.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/records.h"

namespace condense {

// "context=2048 model=m.gguf@1a2b3c4d offset=0 policy=mean:blocks=2": parameters by name, values as
// they are; a text with blanks, quotes or control characters, and whatever is neither text nor
// number nor true or false, as JSON. `parameters`: an object.
std::string CellId(const Json& parameters);

// What a cell holds at once beside the model.
struct CellMemory {
  int n_caches = 1;          // of its group's rows each
  int64_t n_logits = 0;      // decisions whose logits are kept, [n_vocab] floats each
  uint64_t other_bytes = 0;  // beside these
};

struct Cell {
  std::string experiment;
  std::string id;     // CellId(parameters)
  std::string group;  // CellId of what it shares with the cells that run from the same prefill
  Json parameters;    // the shared ones first
  int n_rows = 0;     // rows of the KV cache that its group needs
  CellMemory memory{};
};

// `shared`: the parameters that decide the prefill; `own`: those of this cell beside them.
Cell MakeCell(const std::string& experiment, const Json& shared, const Json& own, int n_rows);

}  // namespace condense
