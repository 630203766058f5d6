// Reads GGUF files by ggml's own functions, for policies that are given trained tensors
// (base/tensor_file.h). Scalars and tensors of f32, f16 and bf16 are read; of other tensors name,
// shape and type.
#include "base/tensor_file.h"

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "base/text.h"

namespace condense {
namespace {

struct FreeGguf {
  void operator()(gguf_context* file) const { gguf_free(file); }
};
struct FreeGgml {
  void operator()(ggml_context* context) const { ggml_free(context); }
};

// False for arrays.
bool ReadValue(const gguf_context* file, int64_t id, TensorFileValue* value) {
  switch (gguf_get_kv_type(file, id)) {
    case GGUF_TYPE_UINT8:
      *value = int64_t{gguf_get_val_u8(file, id)};
      return true;
    case GGUF_TYPE_INT8:
      *value = int64_t{gguf_get_val_i8(file, id)};
      return true;
    case GGUF_TYPE_UINT16:
      *value = int64_t{gguf_get_val_u16(file, id)};
      return true;
    case GGUF_TYPE_INT16:
      *value = int64_t{gguf_get_val_i16(file, id)};
      return true;
    case GGUF_TYPE_UINT32:
      *value = int64_t{gguf_get_val_u32(file, id)};
      return true;
    case GGUF_TYPE_INT32:
      *value = int64_t{gguf_get_val_i32(file, id)};
      return true;
    case GGUF_TYPE_UINT64:
      *value = static_cast<int64_t>(gguf_get_val_u64(file, id));
      return true;
    case GGUF_TYPE_INT64:
      *value = gguf_get_val_i64(file, id);
      return true;
    case GGUF_TYPE_BOOL:
      *value = int64_t{gguf_get_val_bool(file, id)};
      return true;
    case GGUF_TYPE_FLOAT32:
      *value = double{gguf_get_val_f32(file, id)};
      return true;
    case GGUF_TYPE_FLOAT64:
      *value = gguf_get_val_f64(file, id);
      return true;
    case GGUF_TYPE_STRING:
      *value = std::string(gguf_get_val_str(file, id));
      return true;
    default:
      return false;
  }
}

Tensor ShapeAndType(const ggml_tensor& from) {
  Tensor tensor;
  tensor.type = ggml_type_name(from.type);
  for (int d = ggml_n_dims(&from); d-- > 0;) tensor.shape.push_back(from.ne[d]);
  return tensor;
}

// False where the file is too short.
bool ReadFloats(std::ifstream& file, size_t offset, const ggml_tensor& from,
                std::vector<float>& to) {
  const auto n = static_cast<size_t>(ggml_nelements(&from));
  std::vector<char> bytes(ggml_nbytes(&from));
  file.seekg(static_cast<std::streamoff>(offset));
  if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) return false;
  to.resize(n);
  if (from.type == GGML_TYPE_F32) {
    std::copy_n(reinterpret_cast<const float*>(bytes.data()), n, to.data());
  } else if (from.type == GGML_TYPE_F16) {
    ggml_fp16_to_fp32_row(reinterpret_cast<const ggml_fp16_t*>(bytes.data()), to.data(),
                          static_cast<int64_t>(n));
  } else {
    ggml_bf16_to_fp32_row(reinterpret_cast<const ggml_bf16_t*>(bytes.data()), to.data(),
                          static_cast<int64_t>(n));
  }
  return true;
}

Result<TensorFile> ReadGguf(const std::string& path, const std::string& architecture) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{Quote(path) + " cannot be opened"};
  ggml_context* shapes = nullptr;
  const std::unique_ptr<gguf_context, FreeGguf> gguf(
      gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = &shapes}));
  const std::unique_ptr<ggml_context, FreeGgml> freed(shapes);
  if (gguf == nullptr) return Error{Quote(path) + " is no GGUF file, or a damaged one"};
  TensorFile read;
  for (int64_t id = 0; id < gguf_get_n_kv(gguf.get()); ++id) {
    TensorFileValue value;
    if (ReadValue(gguf.get(), id, &value)) read.values[gguf_get_key(gguf.get(), id)] = value;
  }
  const auto is = read.values.find("general.architecture");
  if (is == read.values.end() || is->second != TensorFileValue(architecture)) return read;
  for (int64_t id = 0; id < gguf_get_n_tensors(gguf.get()); ++id) {
    const char* name = gguf_get_tensor_name(gguf.get(), id);
    const ggml_tensor* from = ggml_get_tensor(shapes, name);
    if (from == nullptr) return Error{Quote(path) + ": tensor " + Quote(name) + " has no shape"};
    Tensor tensor = ShapeAndType(*from);
    const bool floats =
        from->type == GGML_TYPE_F32 || from->type == GGML_TYPE_F16 || from->type == GGML_TYPE_BF16;
    const size_t at = gguf_get_data_offset(gguf.get()) + gguf_get_tensor_offset(gguf.get(), id);
    if (floats && !ReadFloats(file, at, *from, tensor.values)) {
      return Error{Quote(path) + " is cut short: tensor " + Quote(name) + " lies past its end"};
    }
    read.tensors[name] = std::move(tensor);
  }
  return read;
}

// While the module is loaded, before any policy is made.
[[maybe_unused]] const bool registered = [] {
  SetTensorFileReader(ReadGguf);
  return true;
}();

}  // namespace
}  // namespace condense
