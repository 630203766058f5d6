// Policy files: a spec with, optionally, keys that a spec cannot spell and what the setting was
// found on, as TOML. `@FILE` stands for such a file wherever a spec is expected
// (docs/POLICIES.md). Every key is checked; one that nobody knows is an error with its line.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "select/policy_provenance.h"
#include "select/registry.h"

namespace condense {

struct PolicyFile {
  PolicySpec spec;  // those of [keys] after those of the spec
  PolicyProvenance made;
  int spec_line = 0;
  std::map<std::string, int> key_lines;  // of [keys]
};

// Whether a spec names a file: it begins with '@'.
bool NamesPolicyFile(std::string_view text);
// The file's path, of a text that names one.
std::string PolicyFilePath(std::string_view text);

// Errors name `path`, the line and the reason. Knows the grammar of specs, no policy.
Result<PolicyFile> ParsePolicyFile(std::string_view toml, const std::string& path);
Result<PolicyFile> ReadPolicyFile(const std::string& path);

// As ParsePolicyFile reads it; parts that are empty are left out. `comments`: lines before all
// else.
std::string PrintPolicyFile(const PolicySpec& spec, const PolicyProvenance& made,
                            const std::vector<std::string>& comments);

// "policy file 'x', line 3: ": how errors about it begin; line 0: none.
std::string PolicyFilePlace(const std::string& path, int line);

}  // namespace condense
