#include "app/policy_check.h"

#include <fmt/format.h>

#include <cstdlib>

#include "app/output.h"
#include "app/output_file.h"
#include "select/policy_file.h"

namespace condense {

std::string AskedForPolicy(const std::string& flag) {
  const char* wanted = std::getenv("CONDENSE_POLICY");
  return !flag.empty() ? flag : wanted != nullptr ? wanted : "";
}

Status WarnOfOtherModels(std::span<const std::string> policies, const ModelFile& model) {
  for (const std::string& policy : policies) {
    if (!NamesPolicyFile(policy)) continue;
    const std::string path = PolicyFilePath(policy);
    const Result<PolicyFile> file = ReadPolicyFile(path);
    if (!file.ok()) return Error{file.error()};
    const PolicyProvenance& made = file->made;
    if (made.model_sha256.empty()) continue;
    const Result<std::string> sha256 = model.Sha256();
    if (!sha256.ok()) return Error{sha256.error()};
    if (made.model_sha256 == sha256.value()) continue;
    PrintWarning(
        fmt::format("policy file '{}' was made for another model{} (SHA-256 {:.12}…; this one, {}, "
                    "has {:.12}…): what it promises does not hold here",
                    path, made.model.empty() ? "" : ", " + made.model, made.model_sha256,
                    model.FileName(), sha256.value()));
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
