// How every measurement begins: one dense prefill that all runs share, and each run at its end as
// if nothing had run before. Decides nothing about what is measured.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/plugin.h"
#include "decode/session.h"
#include "lab/experiment.h"

namespace condense {

struct DensePrefillResult {
  Logits logits;
  double seconds = 0;  // of the prefill alone
};

// Computes the prompt dense, with what `policies`, those that are to run behind it, want kept of
// prompts. Leaves `dense` in force; the counters are of the prefill.
Result<DensePrefillResult> DensePrefill(Session& session, const Plugin& plugin,
                                        const std::vector<Token>& prompt,
                                        std::span<const std::string> policies,
                                        const Session::Progress& progress);

// The group's session behind the dense prefill of `prompt`, the group's, which is computed where
// nothing did so before; for `policies`, as DensePrefill. Errors: those of both, a stop.
Result<Session*> OpenPrefilled(GroupRun& run, const std::vector<Token>& prompt,
                               std::span<const std::string> policies);

// Puts `policy` in force behind the prefill, whatever ran before: the prefill's cache, no
// summaries, no counts.
Status BeginRun(Session& session, const Plugin& plugin, const std::string& policy);

// The layers whose attention the plug-in computes, ascending, as one dense step of `token` shows
// them; none: it saw no attention of this model. Begins a run.
Result<std::vector<int>> AttentionLayers(Session& session, const Plugin& plugin, Token token);

}  // namespace condense
