#include "base/tensor_file.h"

#include "base/text.h"

namespace condense {
namespace {

constinit TensorFileReader registered_reader = nullptr;

}  // namespace

void SetTensorFileReader(TensorFileReader reader) { registered_reader = reader; }

Result<TensorFile> ReadTensorFile(const std::string& path, const std::string& architecture) {
  if (registered_reader == nullptr) {
    return Error{Quote(path) + " cannot be read: this program has no reader of tensor files"};
  }
  return registered_reader(path, architecture);
}

}  // namespace condense
