#include "plugin/stats.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "plugin/log.h"
#include "plugin/state.h"

namespace condense {
namespace {

condense_layer_counters Total(const condense_counters& counters) {
  condense_layer_counters total = {};
  for (uint32_t i = 0; i < counters.n_layers && i < CONDENSE_MAX_LAYERS; ++i) {
    condense_layer_counters layer = {};
    PluginState::Get().layer_counters(i, &layer);
    total.dense_steps += layer.dense_steps;
    total.sparse_steps += layer.sparse_steps;
    total.fallback_steps += layer.fallback_steps;
    total.multi_rows += layer.multi_rows;
    total.k_bytes += layer.k_bytes;
    total.v_bytes += layer.v_bytes;
    total.summary_bytes += layer.summary_bytes;
    total.dense_bytes += layer.dense_bytes;
  }
  return total;
}

}  // namespace

void WarnIdle() {
  // Attention that was declined came, and its reason was logged.
  const condense_counters counters = PluginState::Get().counters();
  if (counters.nodes > 0 || counters.declined > 0) return;
  static std::atomic<bool> said = false;
  if (said.exchange(true)) return;
  LogWarning("loaded, but no attention came: start the program with flash attention on (-fa on)");
}

void CloseStats(bool wrote_cache) {
  PluginState& state = PluginState::Get();
  const condense_counters counters = state.counters();
  if (wrote_cache) WarnIdle();
  const char* wanted = std::getenv("CONDENSE_STATS");
  if (wanted == nullptr || *wanted == '\0' || std::strcmp(wanted, "0") == 0) return;
  const condense_layer_counters total = Total(counters);
  const double read = static_cast<double>(total.k_bytes + total.v_bytes + total.summary_bytes);
  const double share = total.dense_bytes == 0 ? 1.0 : read / static_cast<double>(total.dense_bytes);
  if (std::strcmp(wanted, "1") == 0) {
    // A warning, since llama.cpp's programs show no backend's info lines unless asked to be
    // verbose.
    LogWarning(fmt::format(
        "policy {}: {} sparse, {} dense, {} fallback one-row steps over {} layers; {} rows in "
        "prefill or verification; {:.2f} % of the dense KV bytes read; {} rebuilds, {} declined",
        state.policy_spec(), total.sparse_steps, total.dense_steps, total.fallback_steps,
        counters.n_layers, total.multi_rows, 100.0 * share, counters.rebuilds, counters.declined));
    return;
  }
  std::FILE* file = std::fopen(wanted, "a");
  if (file == nullptr) {
    LogWarning(
        fmt::format("CONDENSE_STATS: cannot append to '{}': {}", wanted, std::strerror(errno)));
    return;
  }
  fmt::print(file,
             "{{\"policy\":\"{}\",\"sparse_steps\":{},\"dense_steps\":{},\"fallback_steps\":{},"
             "\"multi_rows\":{},\"n_layers\":{},\"nodes\":{},\"kv_read_share\":{},\"rebuilds\":{},"
             "\"declined\":{}}}\n",
             state.policy_spec(), total.sparse_steps, total.dense_steps, total.fallback_steps,
             total.multi_rows, counters.n_layers, counters.nodes, share, counters.rebuilds,
             counters.declined);
  std::fclose(file);
}

}  // namespace condense
