// Policy files as the command sees them: whether they were made for the model at hand, which the
// plug-in cannot tell since it sees attention, not models; and how one is written.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "decode/model_file.h"
#include "select/policy_provenance.h"

namespace condense {

// What `flag` or CONDENSE_POLICY names; else "": the default is in force, where it can be.
std::string AskedForPolicy(const std::string& flag);

// Prints a warning for each of `policies` that is @FILE and whose file names another model by its
// SHA-256. Errors: a model or policy file that cannot be read.
Status WarnOfOtherModels(std::span<const std::string> policies, const ModelFile& model);

// Writes `spec`, a canonical one, over what is at `path`.
Status WritePolicyFile(const std::string& path, const std::string& spec,
                       const PolicyProvenance& made);

}  // namespace condense
