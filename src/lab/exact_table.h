// Tables of the experiment `exact`: acceptance and speed of draft sources by kind of text, and
// acceptance by place in the draft. Pure.
#pragma once

#include <span>
#include <vector>

#include "lab/experiment.h"

namespace condense {

std::vector<LabTable> ExactTables(std::span<const FinishedCell> cells);

}  // namespace condense
