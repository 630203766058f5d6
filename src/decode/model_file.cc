#include "decode/model_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/kv_type.h"
#include "decode/log.h"
#include "decode/sha256.h"
#include "gguf.h"
#include "llama.h"

namespace condense {
namespace {

using GgufPtr = std::unique_ptr<gguf_context, void (*)(gguf_context*)>;

std::optional<int64_t> IntegerValue(const gguf_context* gguf, int64_t key) {
  switch (gguf_get_kv_type(gguf, key)) {
    case GGUF_TYPE_UINT8:
      return gguf_get_val_u8(gguf, key);
    case GGUF_TYPE_UINT16:
      return gguf_get_val_u16(gguf, key);
    case GGUF_TYPE_UINT32:
      return gguf_get_val_u32(gguf, key);
    case GGUF_TYPE_INT32:
      return gguf_get_val_i32(gguf, key);
    case GGUF_TYPE_UINT64:
      return static_cast<int64_t>(gguf_get_val_u64(gguf, key));
    case GGUF_TYPE_INT64:
      return gguf_get_val_i64(gguf, key);
    default:
      return std::nullopt;
  }
}

std::string TextOf(const gguf_context* gguf, const std::string& name) {
  const int64_t key = gguf_find_key(gguf, name.c_str());
  if (key < 0 || gguf_get_kv_type(gguf, key) != GGUF_TYPE_STRING) return "";
  return gguf_get_val_str(gguf, key);
}

// The key's value for each of `n` layers: a scalar holds for all, an array layer by layer.
std::vector<int> PerLayer(const gguf_context* gguf, const std::string& name, int n, int otherwise) {
  std::vector<int> values(n, otherwise);
  const int64_t key = gguf_find_key(gguf, name.c_str());
  if (key < 0) return values;
  if (const auto scalar = IntegerValue(gguf, key)) {
    std::fill(values.begin(), values.end(), static_cast<int>(*scalar));
  } else if (gguf_get_kv_type(gguf, key) == GGUF_TYPE_ARRAY) {
    const gguf_type type = gguf_get_arr_type(gguf, key);
    if (type == GGUF_TYPE_INT32 || type == GGUF_TYPE_UINT32) {
      const auto* data = static_cast<const int32_t*>(gguf_get_arr_data(gguf, key));
      const size_t n_given = std::min<size_t>(gguf_get_arr_n(gguf, key), n);
      std::copy(data, data + n_given, values.begin());
    }
  }
  return values;
}

int Scalar(const gguf_context* gguf, const std::string& name, int otherwise) {
  const int64_t key = gguf_find_key(gguf, name.c_str());
  if (key < 0) return otherwise;
  const auto value = IntegerValue(gguf, key);
  return value ? static_cast<int>(*value) : otherwise;
}

Result<GgufPtr> OpenPart(const std::string& path, uint64_t* file_bytes) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return Error{fmt::format("model '{}' is a directory: name the .gguf file in it", path)};
  }
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) return Error{fmt::format("cannot read model '{}': {}", path, std::strerror(errno))};
  char magic[4] = {};
  if (std::fread(magic, 1, sizeof magic, file.get()) != sizeof magic ||
      std::memcmp(magic, "GGUF", sizeof magic) != 0) {
    return Error{fmt::format("'{}' is not a GGUF model (it does not begin with 'GGUF')", path)};
  }
  *file_bytes = std::filesystem::file_size(path, error);
  if (error) return Error{fmt::format("cannot size model '{}': {}", path, error.message())};

  ErrorLines host_errors;
  GgufPtr gguf(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}), gguf_free);
  if (!gguf) {
    const std::string why = host_errors.First();
    return Error{
        fmt::format("model '{}' is damaged or truncated: its header cannot be read ({} bytes{}{})",
                    path, *file_bytes, why.empty() ? "" : "; ", why)};
  }
  const uint64_t data = gguf_get_data_offset(gguf.get());
  for (int64_t i = 0; i < gguf_get_n_tensors(gguf.get()); ++i) {
    const uint64_t end =
        data + gguf_get_tensor_offset(gguf.get(), i) + gguf_get_tensor_size(gguf.get(), i);
    if (end > *file_bytes) {
      return Error{
          fmt::format("model '{}' is truncated: tensor '{}' ends at byte {}, the file has {}", path,
                      gguf_get_tensor_name(gguf.get(), i), end, *file_bytes)};
    }
  }
  return gguf;
}

}  // namespace

Status CheckCacheType(const std::string& type) {
  if (ParseKvType(type)) return Status();
  return Error{fmt::format(
      "KV cache type '{}' is not one that Condense reads: f16, bf16, q8_0 or f32", type)};
}

Result<uint64_t> ModelFile::KvBytesPerToken(const std::string& k_type,
                                            const std::string& v_type) const {
  const auto k = ParseKvType(k_type), v = ParseKvType(v_type);
  if (!k) return Error{CheckCacheType(k_type).error()};
  if (!v) return Error{CheckCacheType(v_type).error()};
  uint64_t bytes = 0;
  for (int n : n_kv_heads) {
    bytes += n * (KvBytes(*k, k_head_dim) + KvBytes(*v, v_head_dim));
  }
  return bytes;
}

std::string ModelFile::FileName() const { return std::filesystem::path(path).filename().string(); }

Result<std::string> ModelFile::Sha256() const {
  if (!sha256_.empty()) return sha256_;
  Result<std::string> sha256 = FileSha256(path);
  if (sha256.ok()) sha256_ = sha256.value();
  return sha256;
}

Result<ModelFile> ReadModelFile(const std::string& path) {
  ModelFile model;
  model.path = path;
  Result<GgufPtr> opened = OpenPart(path, &model.file_bytes);
  if (!opened.ok()) return Error{opened.error()};
  const gguf_context* gguf = opened->get();
  model.architecture = TextOf(gguf, "general.architecture");
  if (model.architecture.empty()) {
    return Error{fmt::format("'{}' is a GGUF file, but names no architecture: not a model", path)};
  }
  model.name = TextOf(gguf, "general.name");
  model.n_tensors = static_cast<int>(gguf_get_n_tensors(gguf));
  const std::string& prefix = model.architecture;
  model.n_layers = Scalar(gguf, prefix + ".block_count", 0);
  if (model.n_layers <= 0 || model.n_layers > 100000) {
    return Error{
        fmt::format("model '{}' gives no usable number of layers ({}.block_count)", path, prefix)};
  }
  const std::vector<int> heads =
      PerLayer(gguf, prefix + ".attention.head_count", model.n_layers, 0);
  model.n_query_heads = *std::max_element(heads.begin(), heads.end());
  model.n_kv_heads =
      PerLayer(gguf, prefix + ".attention.head_count_kv", model.n_layers, model.n_query_heads);
  const int width = Scalar(gguf, prefix + ".embedding_length", 0);
  const int head_dim = model.n_query_heads > 0 ? width / model.n_query_heads : 0;
  model.k_head_dim = Scalar(gguf, prefix + ".attention.key_length", head_dim);
  model.v_head_dim = Scalar(gguf, prefix + ".attention.value_length", head_dim);
  model.n_positions = Scalar(gguf, prefix + ".context_length", 0);

  const int n_parts = Scalar(gguf, "split.count", 1);
  char stem[4096];
  if (n_parts > 1 && llama_split_prefix(stem, sizeof stem, path.c_str(), 0, n_parts) > 0) {
    for (int part = 1; part < n_parts; ++part) {
      char part_path[4096];
      llama_split_path(part_path, sizeof part_path, stem, part, n_parts);
      uint64_t part_bytes = 0;
      Result<GgufPtr> rest = OpenPart(part_path, &part_bytes);
      if (!rest.ok()) return Error{rest.error()};
      model.file_bytes += part_bytes;
      model.n_tensors += static_cast<int>(gguf_get_n_tensors(rest->get()));
    }
  }
  return model;
}

}  // namespace condense
