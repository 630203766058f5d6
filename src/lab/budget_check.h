// Whether a policy can meet a byte budget at this depth, found by decoding one step under it, and
// where it cannot, the least budget that it can. The run itself would be dense, or read the rows
// that are always read and nothing else: no figure of the policy.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "decode/plugin.h"
#include "decode/session.h"
#include "lab/cells.h"

namespace condense {

struct BudgetCheck {
  std::string unmet;            // "": it can be met
  std::optional<double> least;  // share, to a tenth of a percent; empty: none was found
};

// Decodes single steps of `token` after the session's prefill and rewinds. The cell's policy solves
// its budget (CompareCell::solves_budget). Leaves another policy in force.
Result<BudgetCheck> CheckBudget(Session& session, const Plugin& plugin, Token token,
                                const CompareCell& cell);

}  // namespace condense
