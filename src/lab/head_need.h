// How much attention mass each KV head has outside its first and last rows, for the profile that
// `duo` reads: the mean over decode steps on the text's own tokens of the omitted mass, over the
// query heads of the KV head. Every layer's query is dense's: the layers before it are kept dense,
// as in lab/mass_probe.h. DuoAttention (arXiv 2410.10819) optimises gates over heads by
// distillation instead; this is a measurement, not that.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "decode/plugin.h"
#include "decode/session.h"

namespace condense {

struct HeadNeedPrefix {
  std::vector<Token> prompt;   // longer than sink + window
  std::vector<Token> history;  // fed to the decode steps
};

struct HeadNeedSpec {
  std::vector<HeadNeedPrefix> prefixes;
  int sink = 64, window = 256;
};

struct HeadNeeds {
  int n_layers = 0, n_kv_heads = 0;
  int64_t n_steps = 0;       // of each layer
  std::vector<double> mass;  // [n_layers, n_kv_heads], mean share of the attention, [0, 1]
  double Largest() const;
};

using HeadNeedProgress = std::function<void(int n_done, int n_total)>;

// Errors: decoding fails or is stopped, the plug-in saw no attention, no step left rows out, layers
// with unlike numbers of KV heads (a profile has no place for these).
Result<HeadNeeds> MeasureHeadNeeds(Session& session, const Plugin& plugin, const HeadNeedSpec& spec,
                                   const Session::Progress& on_prefill,
                                   const HeadNeedProgress& on_step);

}  // namespace condense
