// The ggml backend: an ACCEL device over the CPU's buffers that claims FLASH_ATTN_EXT and the
// SET_ROWS that write a KV cache. One backend instance per llama_context; each keeps its own block
// indexes, keyed by the memory of the cache tensor.
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

#include "attention/layer_attention.h"
#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "plugin/api.h"
#include "plugin/huge_pages.h"
#include "plugin/log.h"
#include "plugin/nodes.h"
#include "plugin/state.h"
#include "plugin/stats.h"

#if GGML_BACKEND_API_VERSION < 2 || GGML_BACKEND_API_VERSION > 3
#error "ggml's backend interface has changed: only API versions 2 and 3 are known"
#endif

namespace condense {
namespace {

struct CachedLayer {
  LayerCache cache;
  int layer = -1;
  int64_t rows_per_stream = 0;
  uint64_t rebuilds_seen = 0;
};

struct Backend {
  int n_threads = 1;
  uint64_t generation = 0, forget_generation = 0;
  std::unordered_map<const void*, CachedLayer> layers;
  std::unordered_map<const void*, HugePages> buffers;  // the host's, by their address
  int next_layer = 0;
  int last_layer = -1;         // of the last attention node: layers ascend within a step
  bool check_pending = false;  // no layer with summaries was looked at as a whole in this step yet
  bool wrote_cache = false, attended = false;
};

// Each reason is logged once a process.
void LogDeclined(const std::string& reason) {
  static std::mutex mutex;
  static std::set<std::string> seen;
  std::lock_guard lock(mutex);
  if (seen.insert(reason).second) LogWarning("attention is left to the host: " + reason);
}

HugePages& PagesOf(Backend& backend, const ggml_tensor* cache) {
  if (cache->buffer == nullptr) return backend.buffers[nullptr];
  const void* base = ggml_backend_buffer_get_base(cache->buffer);
  return backend.buffers.try_emplace(base, base, ggml_backend_buffer_get_size(cache->buffer))
      .first->second;
}

void SetRows(Backend& backend, const ggml_tensor* op) {
  ComputeSetRows(op, backend.n_threads);
  const ggml_tensor* cache = Root(op);
  const ggml_tensor* indices = op->src[1];
  // A cache is a leaf, [row width, rows, streams]; indices count rows over all streams. V's writes
  // are noted like K's: nothing looks them up.
  if (cache->op != GGML_OP_NONE || indices->ne[1] != 1 || indices->ne[2] != 1 ||
      op->ne[0] != cache->ne[0]) {
    return;
  }
  backend.wrote_cache = true;
  const auto [entry, is_new] = backend.layers.try_emplace(cache->data);
  // Written in an earlier graph, whose attention did not come here. Said now: a server may never
  // end, and at the end llama.cpp's log may lose its last lines.
  if (!is_new && !backend.attended) WarnIdle();
  CachedLayer& layer = entry->second;
  layer.rows_per_stream = cache->ne[1];
  HugePages& pages = PagesOf(backend, cache);
  for (int64_t i = 0; i < indices->ne[0]; ++i) {
    const char* at = static_cast<const char*>(indices->data) + i * indices->nb[0];
    const int64_t row = RowIndex(indices, at);
    layer.cache.Stream(static_cast<int>(row / layer.rows_per_stream))
        .MarkWritten(static_cast<int>(row % layer.rows_per_stream));
    pages.Cover(static_cast<const char*>(cache->data) + row * cache->nb[1], cache->nb[1]);
  }
}

void FlashAttention(Backend& backend, const ggml_tensor* op) {
  backend.attended = true;
  PluginState& state = PluginState::Get();
  const PluginState::InForce in_force = state.in_force();
  if (in_force.generation != backend.generation) {
    const uint64_t forget = state.forget_generation();
    for (auto& [data, layer] : backend.layers) {
      if (forget != backend.forget_generation) layer.cache.Forget();
      for (StreamCache& stream : layer.cache.streams) stream.ForgetChoices();
    }
    backend.generation = in_force.generation;
    backend.forget_generation = forget;
  }

  const NodeKeys keys = KeysOf(op);
  AttentionNode node = ToAttentionNode(op, keys);
  node.query_products = in_force.query_products;
  node.prompt_wants = in_force.prompt_wants.get();
  node.call_shares = in_force.call_shares;
  auto found = backend.layers.find(keys.cache->data);
  CachedLayer untracked;
  CachedLayer& layer = found != backend.layers.end() ? found->second : untracked;
  if (layer.layer < 0) {
    layer.layer = LayerFromName(keys.cache->name);
    if (layer.layer < 0) layer.layer = &layer == &untracked ? 0 : backend.next_layer++;
  }
  node.layer = layer.layer;
  if (node.layer <= backend.last_layer) backend.check_pending = true;
  node.check_all_blocks = backend.check_pending;
  backend.last_layer = node.layer;

  AttentionSink sink;
  sink.on_step = [&](const StepCount& step) { state.Count(step); };
  sink.on_multi_rows = [&](int index, uint64_t rows) { state.CountMultiRows(index, rows); };
  if (state.observed()) {
    sink.on_observations = [&](std::span<const Observation> seen) { state.Report(seen); };
    sink.observe_logits = state.observes_logits();
  }
  ComputeAttention(node, layer.cache, *in_force.policy, backend.n_threads, sink);
  if (layer.cache.has_summaries()) backend.check_pending = false;
  uint64_t rebuilds = layer.cache.rebuilds() - layer.rebuilds_seen;
  layer.rebuilds_seen += rebuilds;
  if (rebuilds > 0) {
    // Whatever wrote this layer's rows wrote the others' too, and these have not been attended yet.
    for (auto& [data, other] : backend.layers) {
      if (&other == &layer || other.layer <= node.layer) continue;
      other.cache.Forget();
      ++rebuilds;
    }
  }
  state.CountNode(node, sink.select_ns, sink.attend_ns, rebuilds);
}

// --- the backend ---

const char* BackendName(ggml_backend_t) { return "Condense"; }

void BackendFree(ggml_backend_t backend) {
  CloseStats(static_cast<Backend*>(backend->context)->wrote_cache);
  delete static_cast<Backend*>(backend->context);
  delete backend;
}

ggml_status GraphCompute(ggml_backend_t ggml_backend, ggml_cgraph* graph) {
  Backend& backend = *static_cast<Backend*>(ggml_backend->context);
  try {
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
      const ggml_tensor* node = ggml_graph_node(graph, i);
      if ((node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) continue;
      if (node->op == GGML_OP_FLASH_ATTN_EXT) {
        FlashAttention(backend, node);
      } else if (node->op == GGML_OP_SET_ROWS) {
        SetRows(backend, node);
      }
    }
  } catch (const std::bad_alloc&) {
    return GGML_STATUS_ALLOC_FAILED;
  }
  return GGML_STATUS_SUCCESS;
}

ggml_guid_t Guid() {
  static ggml_guid guid = {0x63, 0x6f, 0x6e, 0x64, 0x65, 0x6e, 0x73, 0x65,
                           0x2d, 0x67, 0x67, 0x6d, 0x6c, 0x2d, 0x30, 0x31};
  return &guid;
}

void SetThreads(ggml_backend_t backend, int n_threads) {
  static_cast<Backend*>(backend->context)->n_threads = n_threads;
}

ggml_backend_t InitBackend(ggml_backend_dev_t device, const char*) {
  ggml_backend_i interface = {};
  interface.get_name = BackendName;
  interface.free = BackendFree;
  interface.graph_compute = GraphCompute;
  return new ggml_backend{Guid(), interface, device, new Backend()};
}

// --- the device ---

const char* DeviceName(ggml_backend_dev_t) { return "Condense"; }
const char* DeviceDescription(ggml_backend_dev_t) { return "sparse decode attention on the CPU"; }
void DeviceMemory(ggml_backend_dev_t, size_t* free, size_t* total) { *free = *total = 0; }
enum ggml_backend_dev_type DeviceType(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }

void DeviceProps(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
  props->name = DeviceName(device);
  props->description = DeviceDescription(device);
  props->type = DeviceType(device);
  DeviceMemory(device, &props->memory_free, &props->memory_total);
  props->caps = {};
  props->caps.buffer_from_host_ptr = true;
}

ggml_backend_buffer_type_t DeviceBufferType(ggml_backend_dev_t) {
  return ggml_backend_cpu_buffer_type();
}

ggml_backend_buffer_t BufferFromHost(ggml_backend_dev_t, void* ptr, size_t size, size_t) {
  return ggml_backend_cpu_buffer_from_ptr(ptr, size);
}

bool SupportsOp(ggml_backend_dev_t, const ggml_tensor* op) {
  if (PluginState::Get().leaves_to_host()) return false;
  switch (op->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
      return true;
    case GGML_OP_SET_ROWS:
      return ClaimsSetRows(op);
    case GGML_OP_FLASH_ATTN_EXT: {
      const std::optional<std::string> reason = WhyDeclined(op);
      if (!reason) return true;
      LogDeclined(*reason);
      PluginState::Get().CountDeclined();
      return false;
    }
    default:
      return false;
  }
}

bool SupportsBufferType(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  return ggml_backend_buft_is_host(type);
}

ggml_backend_device_i DeviceInterface() {
  ggml_backend_device_i interface = {};
  interface.get_name = DeviceName;
  interface.get_description = DeviceDescription;
  interface.get_memory = DeviceMemory;
  interface.get_type = DeviceType;
  interface.get_props = DeviceProps;
  interface.init_backend = InitBackend;
  interface.get_buffer_type = DeviceBufferType;
  interface.buffer_from_host_ptr = BufferFromHost;
  interface.supports_op = SupportsOp;
  interface.supports_buft = SupportsBufferType;
  return interface;
}

// --- the registry entry ---

const char* RegName(ggml_backend_reg_t) { return "Condense"; }
size_t RegDeviceCount(ggml_backend_reg_t) { return 1; }

ggml_backend_dev_t RegDevice(ggml_backend_reg_t reg, size_t) {
  static ggml_backend_device device = {DeviceInterface(), reg, nullptr};
  return &device;
}

void* RegProcAddress(ggml_backend_reg_t, const char* name) {
  if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) {
    return reinterpret_cast<void*>(SetThreads);
  }
  if (std::strcmp(name, CONDENSE_API_NAME) == 0) return reinterpret_cast<void*>(CondenseApi);
  return nullptr;
}

}  // namespace
}  // namespace condense

// What ggml looks up by name in a backend that it loads.
extern "C" {

__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void);
__attribute__((visibility("default"))) int ggml_backend_score(void);

ggml_backend_reg_t ggml_backend_init(void) {
  static ggml_backend_reg reg = {
      GGML_BACKEND_API_VERSION,
      {condense::RegName, condense::RegDeviceCount, condense::RegDevice, condense::RegProcAddress},
      nullptr};
  condense::PluginState::Get();  // reads the environment now, so that a bad spec is said at once
  return &reg;
}

int ggml_backend_score(void) { return 1; }
}
