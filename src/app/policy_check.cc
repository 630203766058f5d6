#include "app/policy_check.h"

#include <fmt/format.h>

#include <filesystem>

#include "app/output.h"
#include "app/output_file.h"
#include "decode/sha256.h"
#include "select/policy_file.h"

namespace condense {

Status WarnOfOtherModels(std::span<const std::string> policies, const ModelFile& model) {
  std::string sha256;  // of `model`, once it is needed
  for (const std::string& policy : policies) {
    if (!NamesPolicyFile(policy)) continue;
    const std::string path = PolicyFilePath(policy);
    const Result<PolicyFile> file = ReadPolicyFile(path);
    if (!file.ok()) return Error{file.error()};
    const PolicyProvenance& made = file->made;
    if (made.model_sha256.empty()) continue;
    if (sha256.empty()) {
      const Result<std::string> of_file = FileSha256(model.path);
      if (!of_file.ok()) return Error{of_file.error()};
      sha256 = of_file.value();
    }
    if (made.model_sha256 == sha256) continue;
    PrintWarning(
        fmt::format("policy file '{}' was made for another model{} (SHA-256 {:.12}…; this one, {}, "
                    "has {:.12}…): what it promises does not hold here",
                    path, made.model.empty() ? "" : ", " + made.model, made.model_sha256,
                    std::filesystem::path(model.path).filename().string(), sha256));
  }
  return Status();
}

Status WritePolicyFile(const std::string& path, const std::string& spec,
                       const PolicyProvenance& made) {
  const Result<PolicySpec> parsed = ParseSpec(spec);
  if (!parsed.ok()) return Error{parsed.error()};
  return WriteWholeFile(
      path, "policy file",
      PrintPolicyFile(parsed.value(), made, {"use: --policy @FILE or CONDENSE_POLICY=@FILE"}));
}

}  // namespace condense
