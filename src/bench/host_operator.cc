#include "bench/host_operator.h"

#include <cmath>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace condense {
namespace {

ggml_type GgmlType(KvType type) {
  switch (type) {
    case KvType::kF32:
      return GGML_TYPE_F32;
    case KvType::kF16:
      return GGML_TYPE_F16;
    case KvType::kBF16:
      return GGML_TYPE_BF16;
    case KvType::kQ8_0:
      return GGML_TYPE_Q8_0;
  }
  return GGML_TYPE_COUNT;
}

}  // namespace

struct HostOperator::Impl {
  ggml_backend_t backend = nullptr;
  ggml_context* context = nullptr;
  ggml_cgraph* graph = nullptr;
  std::vector<ggml_backend_buffer_t> buffers;
  std::vector<ggml_tensor*> outs;
  int n_rows = 0, n_query_rows = 0;
  const uint16_t* mask = nullptr;

  void Free() {
    for (ggml_backend_buffer_t buffer : buffers) ggml_backend_buffer_free(buffer);
    buffers.clear();
    outs.clear();
    if (context != nullptr) ggml_free(context);
    context = nullptr;
  }
  ~Impl() {
    Free();
    if (backend != nullptr) ggml_backend_free(backend);
  }
  // Memory of ours as a ggml buffer.
  ggml_backend_buffer_t Borrow(const void* data, size_t n_bytes) {
    buffers.push_back(ggml_backend_cpu_buffer_from_ptr(const_cast<void*>(data), n_bytes));
    return buffers.back();
  }
  // A tensor [n0, n1] whose data lie at `data`, in `buffer`.
  ggml_tensor* Leaf(ggml_backend_buffer_t buffer, ggml_type type, int64_t n0, int64_t n1,
                    const void* data) const {
    ggml_tensor* leaf = ggml_new_tensor_2d(context, type, n0, n1);
    ggml_backend_tensor_alloc(buffer, leaf, const_cast<void*>(data));
    return leaf;
  }
};

HostOperator::HostOperator() : impl_(std::make_unique<Impl>()) {}
HostOperator::~HostOperator() = default;

Result<std::unique_ptr<HostOperator>> HostOperator::Make(int n_threads) {
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (device == nullptr) {
    ggml_backend_load_all();
    device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  }
  if (device == nullptr) {
    return Error{"ggml has no CPU backend here to compare with: pass --no-host"};
  }
  std::unique_ptr<HostOperator> host(new HostOperator());
  host->impl_->backend = ggml_backend_dev_init(device, nullptr);
  auto* set_threads =
      reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
          ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads"));
  if (host->impl_->backend == nullptr || set_threads == nullptr) {
    return Error{"ggml's CPU backend cannot be started with a number of threads: pass --no-host"};
  }
  set_threads(host->impl_->backend, n_threads);
  return host;
}

Status HostOperator::Build(const MadeCaches& caches, int n_layers, const MadeQueries& queries,
                           int row, const CausalMask& mask, int n_query_rows) {
  Impl& impl = *impl_;
  if (impl.n_rows == mask.n_rows() && impl.n_query_rows == n_query_rows &&
      impl.mask == mask.values()) {
    return {};
  }
  impl.Free();
  impl.n_rows = mask.n_rows();
  impl.n_query_rows = n_query_rows;
  impl.mask = mask.values();
  const Shape& shape = caches.shape();
  const int64_t dim = shape.head_dim, n_heads = shape.n_query_heads, n_rows = impl.n_rows;
  const size_t n_tensors = 8 * static_cast<size_t>(n_layers) + 16;
  impl.context = ggml_init({.mem_size = n_tensors * ggml_tensor_overhead() +
                                        ggml_graph_overhead_custom(n_tensors, false),
                            .mem_buffer = nullptr,
                            .no_alloc = true});
  if (impl.context == nullptr) return Error{"ggml has no memory for a graph"};
  impl.graph = ggml_new_graph_custom(impl.context, n_tensors, false);
  ggml_backend_buffer_t cache = impl.Borrow(caches.buffer().data(), caches.buffer().n_bytes());
  const size_t mask_bytes = sizeof(uint16_t) * n_rows * n_query_rows;
  ggml_tensor* mask_tensor = impl.Leaf(impl.Borrow(mask.values(), mask_bytes), GGML_TYPE_F16,
                                       n_rows, n_query_rows, mask.values());
  for (int layer = 0; layer < n_layers; ++layer) {
    const KvView view = caches.View(layer, impl.n_rows);
    const float* q = queries.At(layer, row);
    const size_t q_bytes = sizeof(float) * dim * n_heads * n_query_rows;
    // As llama.cpp hands them over: [channels, rows, heads] views of what lies row by row.
    ggml_tensor* q_leaf =
        impl.Leaf(impl.Borrow(q, q_bytes), GGML_TYPE_F32, dim * n_heads, n_query_rows, q);
    ggml_tensor* q_view = ggml_view_3d(impl.context, q_leaf, dim, n_query_rows, n_heads,
                                       sizeof(float) * dim * n_heads, sizeof(float) * dim, 0);
    const auto cache_view = [&](KvType type, const std::byte* data, size_t row_bytes,
                                size_t head_bytes) {
      ggml_tensor* leaf = impl.Leaf(cache, GgmlType(type), dim * shape.n_kv_heads, n_rows, data);
      return ggml_view_3d(impl.context, leaf, dim, n_rows, shape.n_kv_heads, row_bytes, head_bytes,
                          0);
    };
    ggml_tensor* out = ggml_flash_attn_ext(
        impl.context, q_view, cache_view(view.k_type, view.k, view.k_row, view.k_head),
        cache_view(view.v_type, view.v, view.v_row, view.v_head), mask_tensor,
        1.0f / std::sqrt(static_cast<float>(dim)), 0.0f, 0.0f);
    ggml_build_forward_expand(impl.graph, out);
    impl.outs.push_back(out);
  }
  ggml_backend_buffer_t own = ggml_backend_alloc_ctx_tensors(impl.context, impl.backend);
  if (own == nullptr) return Error{"ggml has no memory for the outputs of a graph"};
  impl.buffers.push_back(own);
  return {};
}

Status HostOperator::Compute() {
  if (ggml_backend_graph_compute(impl_->backend, impl_->graph) != GGML_STATUS_SUCCESS) {
    return Error{"ggml's CPU backend did not compute the graph"};
  }
  return {};
}

const float* HostOperator::Out(int layer) const {
  return static_cast<const float*>(impl_->outs[layer]->data);
}

}  // namespace condense
