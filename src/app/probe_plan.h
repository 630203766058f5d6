// From the policy that `condense probe mass` is given to the three specs that it runs.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "lab/records.h"

namespace condense {

struct ProbeArms {
  std::string policy, base, oracle;  // canonical specs
};

// The base is the policy without distant blocks in any layer; the oracle has the policy's frame,
// layer by layer: its blocks, anchor, window and whatever else both take, the policy's defaults
// where the spec says nothing. `policies`: what condense_api.policies_json says. `canonical` spells
// a spec, or says what is wrong with it. Errors: a policy outside the common frame, layers that
// the spec keeps dense, a budget in bytes.
Result<ProbeArms> PlanProbe(
    const Json& policies, const std::string& policy,
    const std::function<Result<std::string>(const std::string& spec)>& canonical);

}  // namespace condense
