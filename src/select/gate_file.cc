#include "select/gate_file.h"

#include <algorithm>

#include "base/text.h"

namespace condense {
namespace {

constexpr const char* kTypes = "f32, f16 or bf16";
constexpr const char* kRopeFactors = "rope_freqs.weight";

std::string Print(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// The file's format drops outer dimensions of 1.
std::vector<int64_t> WithoutOuterOnes(std::vector<int64_t> shape) {
  const auto first =
      std::find_if(shape.begin(), shape.end(), [](int64_t extent) { return extent != 1; });
  shape.erase(shape.begin(), first);
  return shape;
}

std::string Print(const TensorFileValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return Quote(*text);
  if (const auto* number = std::get_if<double>(&value)) return PrintNumber(*number);
  return std::to_string(std::get<int64_t>(value));
}

}  // namespace

GateFile::GateFile(const std::string& path, const std::string& kind) : path_(path), kind_(kind) {
  Result<TensorFile> file = ReadTensorFile(path, kind);
  if (!file.ok()) {
    status_ = Error{file.error()};
    return;
  }
  file_ = std::move(file.value());
  const auto found = file_.values.find("general.architecture");
  const std::string is = found == file_.values.end() ? "missing" : Print(found->second);
  if (is != Quote(kind)) {
    Fail("general.architecture is " + is + ", wanted " + Quote(kind) +
         ": a file of these gates alone, not a model (docs/GATES.md)");
  }
}

void GateFile::Fail(const std::string& message) {
  if (status_.ok()) status_ = Error{"gates=" + path_ + ": " + message};
}

const TensorFileValue* GateFile::Find(const std::string& name, bool must) {
  const auto found = file_.values.find(kind_ + "." + name);
  if (found != file_.values.end()) return &found->second;
  if (must) Fail("value " + Quote(kind_ + "." + name) + " is missing");
  return nullptr;
}

int GateFile::Int(const std::string& name, int min, int max, std::optional<int> fallback) {
  const TensorFileValue* value = Find(name, !fallback);
  if (value == nullptr) return fallback.value_or(min);
  const auto* number = std::get_if<int64_t>(value);
  if (number == nullptr || *number < min || *number > max) {
    Fail("value " + Quote(kind_ + "." + name) + " is " + Print(*value) +
         ", wanted an integer from " + std::to_string(min) + " to " + std::to_string(max));
    return min;
  }
  return static_cast<int>(*number);
}

float GateFile::Number(const std::string& name, double min, double max,
                       std::optional<double> fallback) {
  const TensorFileValue* value = Find(name, !fallback);
  if (value == nullptr) return static_cast<float>(fallback.value_or(min));
  double number = min - 1;
  if (const auto* real = std::get_if<double>(value)) number = *real;
  if (const auto* integer = std::get_if<int64_t>(value)) number = static_cast<double>(*integer);
  if (!(number >= min && number <= max)) {
    Fail("value " + Quote(kind_ + "." + name) + " is " + Print(*value) + ", wanted a number from " +
         PrintNumber(min) + " to " + PrintNumber(max));
    return static_cast<float>(min);
  }
  return static_cast<float>(number);
}

int GateFile::Choice(const std::string& name, const std::vector<std::string>& names) {
  const TensorFileValue* value = Find(name, true);
  if (value == nullptr) return 0;
  const auto* text = std::get_if<std::string>(value);
  const auto found = text == nullptr ? names.end() : std::find(names.begin(), names.end(), *text);
  if (found == names.end()) {
    Fail("value " + Quote(kind_ + "." + name) + " is " + Print(*value) + ", wanted one of " +
         JoinNames(names));
    return 0;
  }
  return static_cast<int>(found - names.begin());
}

RopeRule GateFile::Rope(int head_dim) {
  RopeRule rule;
  rule.pairs = static_cast<RopePairs>(Choice("rope.type", {"none", "neox", "norm"}));
  if (rule.pairs == RopePairs::kNone) return rule;
  rule.n_dims = Int("rope.dimension_count", 2, head_dim);
  if (rule.n_dims % 2 != 0) {
    Fail("value " + Quote(kind_ + ".rope.dimension_count") + " is " + std::to_string(rule.n_dims) +
         ", wanted an even number");
  }
  rule.freq_base = Number("rope.freq_base", 1, 1e12);
  rule.freq_scale = Number("rope.freq_scale", 1e-6, 1e6, 1.0);
  if (Find("rope.scaling.type", false) != nullptr) Choice("rope.scaling.type", {"none", "linear"});
  if (Has(kRopeFactors)) rule.factors = Take(kRopeFactors, {rule.n_dims / 2});
  return rule;
}

GateModel GateFile::Model() {
  GateModel model;
  model.n_layers = Int("block_count", 1, 4096);
  model.n_query_heads = Int("attention.head_count", 1, 4096);
  model.n_kv_heads = Int("attention.head_count_kv", 1, 4096);
  model.head_dim = Int("attention.key_length", 2, 1024);
  if (model.n_query_heads % model.n_kv_heads != 0) {
    Fail("value " + Quote(kind_ + ".attention.head_count") + " is " +
         std::to_string(model.n_query_heads) + ", wanted a multiple of head_count_kv, " +
         std::to_string(model.n_kv_heads));
  }
  model.rope = Rope(model.head_dim);
  return model;
}

std::vector<float> GateFile::Take(const std::string& tensor, const std::vector<int64_t>& shape) {
  if (!status_.ok()) return {};
  const auto found = file_.tensors.find(tensor);
  if (found == file_.tensors.end()) {
    Fail("tensor " + Quote(tensor) + " is missing, wanted " + Print(shape) + " of " + kTypes);
    return {};
  }
  Tensor& have = found->second;
  if (WithoutOuterOnes(have.shape) != WithoutOuterOnes(shape)) {
    Fail("tensor " + Quote(tensor) + " is " + Print(have.shape) + ", wanted " + Print(shape));
    return {};
  }
  if (have.values.empty()) {
    Fail("tensor " + Quote(tensor) + " is of type " + have.type + ", wanted " + kTypes);
    return {};
  }
  return std::move(have.values);
}

std::string GateFile::NameInLayer(int layer, const std::string& name) {
  return "blk." + std::to_string(layer) + "." + name + ".weight";
}

}  // namespace condense
