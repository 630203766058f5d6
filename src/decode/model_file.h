// What a GGUF file says about its model, read and checked before anything is loaded: the header
// parses, every tensor lies inside the file, and the KV cache's size follows from the shape. Reads
// the header only; says nothing about whether llama.cpp knows the architecture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace condense {

struct ModelFile {
  std::string path, architecture, name;
  uint64_t file_bytes = 0;  // of all parts where the model is split
  int n_tensors = 0;
  int n_layers = 0, n_query_heads = 0;
  std::vector<int> n_kv_heads;  // [n_layers]; 0 for a layer without a KV cache
  int k_head_dim = 0, v_head_dim = 0;
  int n_positions = 0;  // the longest context the model was trained for; 0 where the file is silent

  // Bytes of K and V that one token takes, cache types in llama.cpp's spelling. An upper estimate
  // for models that share or compress their caches.
  Result<uint64_t> KvBytesPerToken(const std::string& k_type, const std::string& v_type) const;

  std::string FileName() const;  // without its folder
  // Of the file at `path`, which records name the model by. Read when it is first asked for.
  Result<std::string> Sha256() const;

 private:
  mutable std::string sha256_;  // "": not read yet
};

// Fails on a missing, unreadable, truncated or foreign file, with what is wrong.
Result<ModelFile> ReadModelFile(const std::string& path);

// "f16", "bf16", "q8_0", "f32": the cache types that Condense reads, in llama.cpp's spelling.
Status CheckCacheType(const std::string& type);

}  // namespace condense
