// Graph nodes of ggml to our types: which attention nodes and cache writes are claimed, and what
// they say.
#pragma once

#include <optional>
#include <string>

#include "attention/layer_attention.h"
#include "ggml.h"

namespace condense {

// Why a FLASH_ATTN_EXT node is left to the host; nothing where it is claimed. Depends on shapes and
// types alone, since the host reuses graphs.
std::optional<std::string> WhyDeclined(const ggml_tensor* op);

// SET_ROWS of FP32 rows into a matrix of a KV type: how llama.cpp writes K and V.
bool ClaimsSetRows(const ggml_tensor* op);
// One index of a SET_ROWS node, 32 or 64 bits wide.
int64_t RowIndex(const ggml_tensor* indices, const char* at);
// Computes it, with up to n_threads threads.
void ComputeSetRows(const ggml_tensor* op, int n_threads);

// The tensor that owns the memory that `t` looks at.
const ggml_tensor* Root(const ggml_tensor* t);

// The keys that an attention node reads: its K, or what K is a fresh F16 copy of (llama.cpp
// converts an F32 cache before attention; the cache itself is read instead).
struct NodeKeys {
  const ggml_tensor* k;
  const ggml_tensor* v;
  const ggml_tensor* cache;  // root of k
};
NodeKeys KeysOf(const ggml_tensor* op);

// The node in our terms, but for the layer. A claimed node only.
AttentionNode ToAttentionNode(const ggml_tensor* op, const NodeKeys& keys);

// The layer number that llama.cpp writes at the end of a cache tensor's name; -1 where there is
// none.
int LayerFromName(const char* name);

}  // namespace condense
