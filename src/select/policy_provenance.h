// Where a policy file's setting comes from: its table [made].
#pragma once

#include <string>
#include <vector>

namespace condense {

// "" where the file is silent. Nothing here changes the policy.
struct PolicyProvenance {
  std::string program, model, model_sha256, target, confidence, measured;
  std::vector<std::string> text, text_sha256;
};

}  // namespace condense
