// Flags of `condense bench`.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace condense {

struct BenchFlags {
  enum class What {
    kMachine,
    kDecode,
    kSelect,
    kVerify,
    kPrefill,
    kCandidate,
    kSingle
  } what = What::kMachine;
  std::string model;  // its heads; "": those below
  std::optional<int> query_heads, kv_heads,
      head_dim;           // empty: the model's, else SmolLM2's 9, 3, 64
  std::vector<int> rows;  // empty: the benchmark's own
  std::string k_type = "f16", v_type = "f16";
  std::vector<std::string> policies;
  std::vector<std::string> grid_names;  // of --policies, each at n_tokens rows
  int n_tokens = 193;
  int n_threads = 0;                                 // 0: the physical cores
  int n_layers = 0, n_rounds = 0, n_query_rows = 0;  // 0: the benchmark's own
  int buffer_mb = 0;                                 // 0: by the last-level cache
  bool check = false, host = true, small_pages = false;
  std::string json;
};

// `bench` and what is below it.
CLI::App* AddBench(CLI::App& app, BenchFlags& flags);

}  // namespace condense
