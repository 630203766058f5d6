// Specs of registered policies, also of those with keys that must be given: a file then, which is
// made here and served without being written.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <string>

#include "base/text.h"
#include "host.h"
#include "select/made_gates.h"
#include "select/registry.h"

namespace condense {

// "made/seer": gates for the host of these tests.
inline Result<TensorFile> ReadMadeFile(const std::string& path, const std::string&) {
  const std::string made = "made/";
  if (!path.starts_with(made)) return Error{Quote(path) + " is not made here"};
  return MadeGates(path.substr(made.size()), {.n_layers = 6,
                                              .n_query_heads = kHeads,
                                              .n_kv_heads = kKvHeads,
                                              .head_dim = kDim,
                                              .gate_length = 16,
                                              .rope = "neox"});
}

// The policy with `settings` ("" or "key=value,…") and made files for the keys it must have.
inline std::string MadeSpec(const PolicyInfo& info, const std::string& settings) {
  static const bool registered = (SetTensorFileReader(ReadMadeFile), true);
  CONDENSE_CHECK(registered);
  std::string keys = settings;
  for (const PolicyKey& key : info.keys) {
    if (key.required) keys += (keys.empty() ? "" : ",") + key.name + "=made/" + info.name;
  }
  return keys.empty() ? info.name : info.name + ":" + keys;
}

inline bool HasKey(const PolicyInfo& info, const std::string& name) {
  for (const PolicyKey& key : info.keys) {
    if (key.name == name) return true;
  }
  return false;
}

// A test of a spec by its place in the list and the spec.
inline std::string TestName(const ::testing::TestParamInfo<std::string>& param) {
  std::string name = std::to_string(param.index) + "_";
  for (char c : param.param) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

}  // namespace condense
