#include "lab/runs.h"

#include "base/clock.h"

namespace condense {

Result<DensePrefillResult> DensePrefill(Session& session, const Plugin& plugin,
                                        const std::vector<Token>& prompt,
                                        std::span<const std::string> policies,
                                        const Session::Progress& progress) {
  // Once in force, a policy says what it wants kept of prompts.
  for (const std::string& policy : policies) {
    const Result<std::string> wanted = plugin.SetPolicy(policy);
    if (!wanted.ok()) return Error{wanted.error()};
  }
  const Result<std::string> dense = plugin.SetPolicy("dense");
  if (!dense.ok()) return Error{dense.error()};
  plugin.ResetCounters();
  const Clock::time_point start = Clock::now();
  const Result<Logits> logits = session.Prefill(prompt, progress);
  if (!logits.ok()) return Error{logits.error()};
  return DensePrefillResult{logits.value(), SecondsSince(start)};
}

Result<Session*> OpenPrefilled(GroupRun& run, const std::vector<Token>& prompt,
                               std::span<const std::string> policies) {
  const Result<Session*> session = run.OpenSession();
  if (!session.ok() || session.value()->n_prefilled() > 0) return session;
  const Result<DensePrefillResult> prefill = DensePrefill(
      *session.value(), run.plugin(), prompt, policies,
      [&](int n_done, int n_total) { run.Preparing("dense prefill", n_done, n_total); });
  if (!prefill.ok()) return Error{prefill.error()};
  run.Spent("prefill", prefill->seconds);
  return session;
}

Status BeginRun(Session& session, const Plugin& plugin, const std::string& policy) {
  const Result<std::string> set = plugin.SetPolicy(policy);
  if (!set.ok()) return Error{set.error()};
  Status rewound = session.Rewind();
  plugin.Forget();
  plugin.ResetCounters();
  return rewound;
}

Result<std::vector<int>> AttentionLayers(Session& session, const Plugin& plugin, Token token) {
  const Status begun = BeginRun(session, plugin, "dense");
  if (!begun.ok()) return Error{begun.error()};
  const Result<Logits> step = session.Step(token);
  if (!step.ok()) return Error{step.error()};
  const CounterSnapshot counters = plugin.Counters();
  std::vector<int> layers;
  for (size_t layer = 0; layer < counters.layers.size(); ++layer) {
    if (counters.layers[layer].dense_steps > 0) layers.push_back(static_cast<int>(layer));
  }
  return layers;
}

}  // namespace condense
