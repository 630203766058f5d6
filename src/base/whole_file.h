// Files that are read whole.
#pragma once

#include <string>

#include "base/result.h"

namespace condense {

// The error is the reason alone: "no such file", "Is a directory".
Result<std::string> ReadWholeFile(const std::string& path);

}  // namespace condense
