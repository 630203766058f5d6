// A file of named tensors with named values: what a policy with trained parts is given (GGUF). The
// library that knows the format is the host's (ggml), which most rooms may not know: they read
// through a reader that the plug-in registers, tests through one of their own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"

namespace condense {

struct Tensor {
  std::vector<int64_t> shape;  // outermost dimension first, as NumPy shows it
  std::vector<float> values;   // empty where `type` is none that is read
  std::string type;            // as the file names it: "f32", "q8_0"
};

// Integers of all widths and truth values; arrays are left out.
using TensorFileValue = std::variant<int64_t, double, std::string>;

struct TensorFile {
  std::map<std::string, TensorFileValue> values;
  std::map<std::string, Tensor> tensors;
};

// Errors name the file. Of a file of another `architecture` (its value general.architecture) values
// alone are read: it may be a whole model.
using TensorFileReader = Result<TensorFile> (*)(const std::string& path,
                                                const std::string& architecture);

// Before any other thread reads.
void SetTensorFileReader(TensorFileReader reader);
Result<TensorFile> ReadTensorFile(const std::string& path, const std::string& architecture);

}  // namespace condense
