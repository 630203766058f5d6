// One line of a benchmark's table and of its JSON Lines (docs/RECORDS.md): what was timed, on what
// shape, how often, the bytes and operations of one unit of it, and its shares and ratios. Ratios
// and shares are medians over rounds of values taken within one round.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/options.h"

namespace condense {

struct Sample {
  int n = 0;
  double low = 0, median = 0, high = 0;  // quartiles
};
Sample SampleOf(std::span<const double> values);

// Measured beside the arms, with the same threads and the same kind of pages.
struct Yardstick {
  Sample stream;  // bytes a second of a plain sum over buffer_bytes
  Sample peak;    // FP32 operations a second of multiply-adds in registers
  uint64_t buffer_bytes = 0;
  double huge_share = 0;  // of the buffer's pages, by bytes
  bool trustworthy = false;
};

// A figure that others measured, on other hardware.
struct Published {
  double ratio = 0;
  std::string source;
};

struct BenchRecord {
  std::string bench;   // "decode", …
  std::string preset;  // a named shape, or ""
  std::string arm;     // "dense", "ggml", a policy's canonical spec, …
  std::string per;     // what one unit is: "layer-step", …
  std::string source;  // "memory" or "cache": where a unit finds its rows
  std::string note;    // how a value was come by, where that needs saying
  Shape shape;
  int n_layers = 1, n_query_rows = 1, n_threads = 1;
  double visible_rows = 0;  // mean over units
  Sample ns;                // of one unit
  // Of one unit, what must be read and done: visible pairs, not padding.
  double bytes = 0, k_bytes = 0, v_bytes = 0, summary_bytes = 0, flops = 0;
  uint64_t sparse_steps = 0, fallback_steps = 0;
  std::optional<Sample> stream_share, peak_share;
  std::optional<Sample> ratio_to_dense, ratio_to_host;  // their time over this arm's
  std::optional<Sample> select_share, attend_share;     // of the unit's time
  // Marking written rows, summarising blocks and coding segments as they fill, of a step.
  std::optional<double> upkeep_share;
  std::optional<double> setup_ns;  // the first step's, a layer: all summaries; training, all codes
  std::optional<double> codes_memory_share, memory_share;  // kept beside, of the caches' bytes
  std::optional<Sample> speedup;  // verification: single rows' time over this arm's
  std::optional<bool> equal_bits;
  std::optional<bool> trustworthy;
  std::optional<double> max_error, error_bound;  // --check: where the error is nearest its bound
  bool check_failed = false;
  std::optional<Published> published;
  Yardstick yardstick;
  // What identifies machine and build; the caller's to fill.
  std::vector<std::pair<std::string, std::string>> origin;

  double bytes_per_second() const { return ns.median > 0 ? 1e9 * bytes / ns.median : 0; }
  double flops_per_second() const { return ns.median > 0 ? 1e9 * flops / ns.median : 0; }
};

nlohmann::ordered_json ToJson(const BenchRecord& record);

}  // namespace condense
