// Steps that are dense whatever the policy in force, which keeps all that it remembers.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "decode/plugin.h"
#include "decode/session.h"

namespace condense {

// Session::StepRows, one token too computed dense.
Result<std::vector<Logits>> StepRowsDense(Session& session, const Plugin& plugin,
                                          std::span<const Token> tokens, int n_logits = 0);

}  // namespace condense
