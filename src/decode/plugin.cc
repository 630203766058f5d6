#include "decode/plugin.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "decode/log.h"
#include "ggml-backend.h"

namespace condense {
namespace {

constexpr const char* kLibraryName = "libggml-condense.so";
constexpr const char* kFallbackNames[CONDENSE_FALLBACK_COUNT] = {"short", "nan",    "bias",
                                                                 "layer", "budget", "untracked"};

}  // namespace

double StepCounts::ReadShare() const {
  if (dense_bytes == 0) return 1;
  return static_cast<double>(k_bytes + v_bytes + summary_bytes) / static_cast<double>(dense_bytes);
}

void StepCounts::Add(const condense_layer_counters& layer) {
  dense_steps += layer.dense_steps;
  sparse_steps += layer.sparse_steps;
  fallback_steps += layer.fallback_steps;
  visible_rows += layer.visible_rows;
  unique_rows += layer.unique_rows;
  nominal_rows += layer.nominal_rows;
  k_bytes += layer.k_bytes;
  v_bytes += layer.v_bytes;
  summary_bytes += layer.summary_bytes;
  dense_bytes += layer.dense_bytes;
}

const char* FallbackName(int reason) {
  return reason >= 0 && reason < CONDENSE_FALLBACK_COUNT ? kFallbackNames[reason] : "unknown";
}

std::map<std::string, uint64_t> FallbackCounts(const condense_counters& counters) {
  std::map<std::string, uint64_t> counts;
  for (int reason = 0; reason < CONDENSE_FALLBACK_COUNT; ++reason) {
    if (counters.fallbacks[reason] > 0) counts[FallbackName(reason)] = counters.fallbacks[reason];
  }
  return counts;
}

std::string ExecutableDirectory() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : self.parent_path().string();
}

Result<std::string> Plugin::FindPath() {
  namespace fs = std::filesystem;
  std::error_code error;
  if (const char* named = std::getenv("CONDENSE_PLUGIN"); named && *named) {
    if (!fs::is_regular_file(named, error)) {
      return Error{fmt::format("CONDENSE_PLUGIN names '{}', which is not a file", named)};
    }
    return fs::absolute(named).string();
  }
  const fs::path beside = fs::path(ExecutableDirectory()).parent_path() / "lib" / kLibraryName;
  if (fs::is_regular_file(beside, error)) return beside.string();
  return Error{fmt::format(
      "the plug-in is not at '{}': build the target ggml-condense, or name it in CONDENSE_PLUGIN",
      beside.string())};
}

Result<Plugin> Plugin::Load(const std::string& path) {
  ggml_backend_reg_t reg = ggml_backend_reg_by_name("Condense");
  if (!reg) {
    ErrorLines host_errors;
    reg = ggml_backend_load(path.c_str());
    if (!reg) {
      const std::string why = host_errors.First();
      return Error{
          fmt::format("cannot load the plug-in '{}'{}{}", path, why.empty() ? "" : ": ", why)};
    }
  }
  const auto get_api =
      reinterpret_cast<condense_api_fn>(ggml_backend_reg_get_proc_address(reg, CONDENSE_API_NAME));
  const condense_api* api = get_api ? get_api() : nullptr;
  if (!api || api->version != CONDENSE_API_VERSION) {
    return Error{fmt::format("'{}' is no Condense plug-in of interface version {}", path,
                             CONDENSE_API_VERSION)};
  }
  return Plugin(api, path);
}

Result<std::string> Plugin::SetPolicy(const std::string& spec) const {
  char error[1024] = "";
  if (api_->set_policy(spec.c_str(), error, sizeof error) != 0) return Error{error};
  return Policy();
}

std::string Plugin::Policy() const {
  std::string spec(256, '\0');
  size_t length = api_->get_policy(spec.data(), spec.size());
  if (length >= spec.size()) {
    spec.resize(length + 1);
    length = api_->get_policy(spec.data(), spec.size());
  }
  spec.resize(length);
  return spec;
}

CounterSnapshot Plugin::Counters() const {
  CounterSnapshot snapshot;
  api_->get_counters(&snapshot.process);
  for (uint32_t layer = 0; layer < snapshot.process.n_layers; ++layer) {
    condense_layer_counters counters = {};
    if (api_->get_layer_counters(layer, &counters) != 0) break;
    snapshot.layers.push_back(counters);
    snapshot.total.Add(counters);
  }
  return snapshot;
}

}  // namespace condense
