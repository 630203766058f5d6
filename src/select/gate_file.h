// Trained gates from a tensor file: values and tensors by name, with what was found and what was
// wanted in every refusal. Names and shapes: docs/GATES.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/tensor_file.h"
#include "kernels/rope.h"

namespace condense {

// The model that gates were trained for, and how its host rotates queries and keys.
struct GateModel {
  int n_layers = 0, n_query_heads = 0, n_kv_heads = 0, head_dim = 0;
  RopeRule rope;

  int group() const { return n_query_heads / n_kv_heads; }
};

// The first error is kept; later reads return what does no harm.
class GateFile {
 public:
  // `kind` ("seer"): what general.architecture must say, and the first word of the values' names.
  GateFile(const std::string& path, const std::string& kind);

  const Status& status() const { return status_; }
  void Fail(const std::string& message);

  // Values of `kind`.name. Without `fallback` they must be there.
  int Int(const std::string& name, int min, int max, std::optional<int> fallback = {});
  float Number(const std::string& name, double min, double max,
               std::optional<double> fallback = {});
  // One of `names`: its index.
  int Choice(const std::string& name, const std::vector<std::string>& names);
  GateModel Model();

  bool Has(const std::string& tensor) const { return file_.tensors.contains(tensor); }
  // [shape], out of the file.
  std::vector<float> Take(const std::string& tensor, const std::vector<int64_t>& shape);
  // "blk.3.name.weight"
  static std::string NameInLayer(int layer, const std::string& name);

 private:
  // Null, with an error, where it is not there and has no fallback.
  const TensorFileValue* Find(const std::string& name, bool must);
  RopeRule Rope(int head_dim);

  std::string path_, kind_;
  TensorFile file_;
  Status status_;
};

}  // namespace condense
