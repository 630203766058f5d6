#include "plugin/api.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "condense_version.h"
#include "kernels/target.h"
#include "plugin/state.h"
#include "select/registry.h"

namespace condense {
namespace {

// Copies into a caller's buffer, cut at its size, always ended by a NUL.
size_t CopyText(const std::string& text, char* to, size_t size) {
  if (to != nullptr && size > 0) {
    const size_t n = std::min(text.size(), size - 1);
    std::memcpy(to, text.data(), n);
    to[n] = '\0';
  }
  return text.size();
}

int Outcome(const Status& status, char* error, size_t error_size) {
  if (status.ok()) return 0;
  CopyText(status.error(), error, error_size);
  return -1;
}

}  // namespace

const condense_api* CondenseApi() {
  static const condense_api api = {
      .version = CONDENSE_API_VERSION,
      .set_policy =
          [](const char* spec, char* error, size_t error_size) {
            return Outcome(PluginState::Get().SetPolicy(spec), error, error_size);
          },
      .get_policy =
          [](char* spec, size_t size) {
            return CopyText(PluginState::Get().policy_spec(), spec, size);
          },
      .policies_json = []() -> const char* {
        static const std::string json = PoliciesJson();
        return json.c_str();
      },
      .get_counters = [](condense_counters* out) { *out = PluginState::Get().counters(); },
      .get_layer_counters =
          [](uint32_t layer, condense_layer_counters* out) {
            return PluginState::Get().layer_counters(layer, out) ? 0 : -1;
          },
      .reset_counters = [] { PluginState::Get().ResetCounters(); },
      .set_observer = [](condense_observer observer,
                         void* user) { PluginState::Get().SetObserver(observer, user); },
      .observe_logits = [](int on) { PluginState::Get().ObserveLogits(on != 0); },
      .forget = [] { PluginState::Get().Forget(); },
      .version_string = []() -> const char* {
        return "condense " CONDENSE_VERSION " (" CONDENSE_COMMIT ")";
      },
      .instruction_set = []() -> const char* {
        static thread_local std::string name;
        name = CurrentTarget();
        return name.c_str();
      },
      .force_instruction_set =
          [](const char* name, char* error, size_t error_size) {
            return Outcome(ForceTarget(name == nullptr ? "" : name), error, error_size);
          },
      .set_dense = [](int on) { PluginState::Get().SetDense(on != 0); },
      .leave_to_host = [](int on) { PluginState::Get().LeaveToHost(on != 0); },
  };
  return &api;
}

}  // namespace condense
