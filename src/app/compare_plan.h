// From the flags of `condense compare` to the cells it runs, and what it must leave out.
#pragma once

#include "app/arguments.h"
#include "base/result.h"
#include "decode/plugin.h"
#include "lab/cells.h"

namespace condense {

// What condense_api.policies_json says; an error where that is no list.
Result<Json> DescribedPolicies(const Plugin& plugin);

// The cells of --policy (else, without --policies, the default ones), then those of --policies at
// --budgets: canonical spellings, each once, without the rows that are always there.
// `visible_rows`: mean over the decisions to come. Leaves another policy in force.
Result<CellPlan> PlanComparison(const Plugin& plugin, const CompareFlags& flags,
                                double visible_rows);

}  // namespace condense
