#include "plugin/nodes.h"

#include <omp.h>

#include <cctype>
#include <cstdlib>
#include <cstring>

namespace condense {
namespace {

std::optional<KvType> ToKvType(ggml_type type) {
  switch (type) {
    case GGML_TYPE_F32:
      return KvType::kF32;
    case GGML_TYPE_F16:
      return KvType::kF16;
    case GGML_TYPE_BF16:
      return KvType::kBF16;
    case GGML_TYPE_Q8_0:
      return KvType::kQ8_0;
    default:
      return std::nullopt;
  }
}

// Head sizes the kernels take: multiples of 16 up to 256, whole q8_0 blocks.
bool IsHeadSize(int64_t dim, KvType type) {
  const int64_t unit = type == KvType::kQ8_0 ? kQ8BlockValues : 16;
  return dim >= 16 && dim <= 256 && dim % unit == 0;
}

}  // namespace

const ggml_tensor* Root(const ggml_tensor* t) { return t->view_src != nullptr ? t->view_src : t; }

std::optional<std::string> WhyDeclined(const ggml_tensor* op) {
  const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3],
                    *sinks = op->src[4];
  float max_bias;
  std::memcpy(&max_bias, reinterpret_cast<const float*>(op->op_params) + 1, sizeof(max_bias));
  if (max_bias != 0.0f) return "ALiBi is not supported";
  const auto k_type = ToKvType(k->type), v_type = ToKvType(v->type);
  if (!k_type || !v_type) {
    return "K and V of type " + std::string(ggml_type_name(k->type)) + " and " +
           ggml_type_name(v->type) + " are not supported (f16, bf16, q8_0, f32 are)";
  }
  if (k->ne[0] != v->ne[0]) {
    return "K and V of unlike head size (" + std::to_string(k->ne[0]) + " and " +
           std::to_string(v->ne[0]) + ", as in MLA) are not supported";
  }
  if (!IsHeadSize(k->ne[0], *k_type) || !IsHeadSize(v->ne[0], *v_type)) {
    return "head size " + std::to_string(k->ne[0]) + " is not supported with " +
           ggml_type_name(k->type);
  }
  if (q->type != GGML_TYPE_F32 || op->type != GGML_TYPE_F32) return "queries that are not f32";
  if (q->nb[0] != sizeof(float) || k->nb[0] != ggml_type_size(k->type) ||
      v->nb[0] != ggml_type_size(v->type)) {
    return "rows that are not contiguous";
  }
  if (q->nb[1] % sizeof(float) != 0 || q->nb[2] % sizeof(float) != 0) return "unaligned queries";
  if (k->ne[2] != v->ne[2] || k->ne[1] != v->ne[1]) return "K and V of unlike shape";
  if (k->ne[2] < 1 || q->ne[2] % k->ne[2] != 0) return "query heads that KV heads do not divide";
  if (q->ne[3] != k->ne[3] || q->ne[3] != v->ne[3]) return "streams that differ between Q, K and V";
  if (mask != nullptr) {
    if (mask->type != GGML_TYPE_F16 || mask->nb[0] != sizeof(uint16_t))
      return "a mask that is not f16";
    if (mask->ne[0] < k->ne[1] || mask->ne[1] < q->ne[1]) return "a mask that is too small";
  }
  if (sinks != nullptr && (sinks->type != GGML_TYPE_F32 || sinks->ne[0] != q->ne[2])) {
    return "sinks that are not one f32 a head";
  }
  return std::nullopt;
}

bool ClaimsSetRows(const ggml_tensor* op) {
  const ggml_tensor *rows = op->src[0], *indices = op->src[1];
  return ToKvType(op->type) && rows->type == GGML_TYPE_F32 && rows->nb[0] == sizeof(float) &&
         (indices->type == GGML_TYPE_I64 || indices->type == GGML_TYPE_I32) &&
         op->nb[0] == ggml_type_size(op->type) && op->ne[0] % 32 == 0;
}

int64_t RowIndex(const ggml_tensor* indices, const char* at) {
  if (indices->type == GGML_TYPE_I32) {
    int32_t row;
    std::memcpy(&row, at, sizeof(row));
    return row;
  }
  int64_t row;
  std::memcpy(&row, at, sizeof(row));
  return row;
}

void ComputeSetRows(const ggml_tensor* op, int n_threads) {
  const ggml_tensor *rows = op->src[0], *indices = op->src[1];
  const int64_t n = rows->ne[0];
  const int64_t n_rows = rows->ne[1] * rows->ne[2] * rows->ne[3];
  const ggml_from_float_t convert = ggml_get_type_traits(op->type)->from_float_ref;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_rows * n > 16384)
  for (int64_t i = 0; i < n_rows; ++i) {
    const int64_t i1 = i % rows->ne[1], i2 = i / rows->ne[1] % rows->ne[2],
                  i3 = i / rows->ne[1] / rows->ne[2];
    const char* at = static_cast<const char*>(indices->data) + i1 * indices->nb[0] +
                     i2 % indices->ne[1] * indices->nb[1] + i3 % indices->ne[2] * indices->nb[2];
    const int64_t row = RowIndex(indices, at);
    const auto* from =
        reinterpret_cast<const float*>(static_cast<const char*>(rows->data) + i1 * rows->nb[1] +
                                       i2 * rows->nb[2] + i3 * rows->nb[3]);
    char* to = static_cast<char*>(op->data) + row * op->nb[1] + i2 * op->nb[2] + i3 * op->nb[3];
    if (op->type == GGML_TYPE_F32) {
      std::memcpy(to, from, n * sizeof(float));
    } else {
      convert(from, to, n);
    }
  }
}

NodeKeys KeysOf(const ggml_tensor* op) {
  auto source = [](const ggml_tensor* t) {
    const bool cast = t->op == GGML_OP_CPY && t->src[0] != nullptr &&
                      t->src[0]->type == GGML_TYPE_F32 && t->type == GGML_TYPE_F16 &&
                      ggml_are_same_shape(t, t->src[0]) && t->src[0]->nb[0] == sizeof(float) &&
                      t->src[0]->view_src != nullptr && t->src[0]->view_src->op == GGML_OP_NONE;
    return cast ? t->src[0] : t;
  };
  NodeKeys keys{source(op->src[1]), source(op->src[2]), nullptr};
  keys.cache = Root(keys.k);
  return keys;
}

AttentionNode ToAttentionNode(const ggml_tensor* op, const NodeKeys& keys) {
  const ggml_tensor *q = op->src[0], *mask = op->src[3], *sinks = op->src[4];
  const ggml_tensor *k = keys.k, *v = keys.v;
  AttentionNode node;
  node.n_streams = static_cast<int>(q->ne[3]);
  node.n_rows = static_cast<int>(q->ne[1]);
  node.n_query_heads = static_cast<int>(q->ne[2]);
  node.q = static_cast<const std::byte*>(q->data);
  node.q_row = q->nb[1];
  node.q_head = q->nb[2];
  node.q_stream = q->nb[3];
  node.kv.k_type = *ToKvType(k->type);
  node.kv.v_type = *ToKvType(v->type);
  node.kv.k = static_cast<const std::byte*>(k->data);
  node.kv.v = static_cast<const std::byte*>(v->data);
  node.kv.k_row = k->nb[1];
  node.kv.k_head = k->nb[2];
  node.kv.v_row = v->nb[1];
  node.kv.v_head = v->nb[2];
  node.kv.n_rows = static_cast<int>(k->ne[1]);
  node.kv.n_kv_heads = static_cast<int>(k->ne[2]);
  node.kv.k_dim = static_cast<int>(k->ne[0]);
  node.kv.v_dim = static_cast<int>(v->ne[0]);
  node.k_stream = k->nb[3];
  node.v_stream = v->nb[3];
  // The cache is [row width, rows, streams]; a node may begin at any of its streams.
  if (keys.cache->nb[2] > 0 && keys.cache->ne[2] > 1) {
    node.first_stream = static_cast<int>(
        (static_cast<const char*>(k->data) - static_cast<const char*>(keys.cache->data)) /
        static_cast<int64_t>(keys.cache->nb[2]));
  }
  if (mask != nullptr) {
    node.mask = static_cast<const std::byte*>(mask->data);
    node.mask_row = mask->nb[1];
    node.mask_head = mask->nb[2];
    node.mask_stream = mask->nb[3];
    node.mask_heads = static_cast<int>(mask->ne[2]);
    node.mask_streams = static_cast<int>(mask->ne[3]);
  }
  node.sinks = sinks != nullptr ? static_cast<const float*>(sinks->data) : nullptr;
  const float* params = reinterpret_cast<const float*>(op->op_params);
  node.scale = params[0];
  node.softcap = params[2];
  node.out = static_cast<float*>(op->data);
  return node;
}

int LayerFromName(const char* name) {
  const size_t length = std::strlen(name);
  size_t begin = length;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(name[begin - 1]))) --begin;
  if (begin == length || begin == 0 || name[begin - 1] != 'l') return -1;
  return std::atoi(name + begin);
}

}  // namespace condense
