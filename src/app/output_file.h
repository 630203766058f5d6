// Files that a command writes when its work is done.
#pragma once

#include <string>

#include "base/result.h"

namespace condense {

// Told before work begins; what is there stays as it is. `what`: "policy file", for the error.
Status CheckWritable(const std::string& path, const std::string& what);
// Over what is there.
Status WriteWholeFile(const std::string& path, const std::string& what, const std::string& bytes);

}  // namespace condense
