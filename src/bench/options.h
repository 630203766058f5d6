// What a benchmark is asked for, how it is watched and stopped, and what it hands back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/kv_type.h"
#include "base/result.h"

namespace condense {

struct BenchRecord;

struct Shape {
  int n_rows = 8192;  // of the cache, at the end of a rolling loop
  int n_query_heads = 9, n_kv_heads = 3, head_dim = 64;
  KvType k_type = KvType::kF16, v_type = KvType::kF16;

  int group() const { return n_query_heads / n_kv_heads; }
  size_t KeyRowBytes() const { return KvBytes(k_type, head_dim) * n_kv_heads; }
  size_t ValueRowBytes() const { return KvBytes(v_type, head_dim) * n_kv_heads; }
  size_t RowBytes() const { return KeyRowBytes() + ValueRowBytes(); }
};

struct BenchOptions {
  Shape shape;
  int n_threads = 1;
  int n_layers = 0;                   // caches; 0: enough that a step comes from memory
  int n_model_layers = 30;            // of the model whose steps are made: SmolLM2-135M
  int n_rounds = 0;                   // 0: the benchmark's own number
  int n_query_rows = 0;               // 0: the benchmark's own number
  std::vector<std::string> policies;  // sparse arms
  bool check = false, host = true, huge_pages = true;
  uint64_t buffer_bytes = 0;  // the yardstick's buffer; 0: MemoryPassBytes
  uint64_t free_bytes = 0;    // 0: not known
};

// How a caller watches and ends a benchmark. Each may be empty.
struct BenchControl {
  std::function<bool()> stopped;
  std::function<void(const std::string& label, int64_t n_done, int64_t n_total)> on_progress;
  // Records that belong in one table, as soon as they are there.
  std::function<Status(std::span<const BenchRecord>)> on_records;
};

enum class BenchOutcome { kDone, kStopped, kCheckFailed };

}  // namespace condense
