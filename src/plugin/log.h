// The plug-in prints through ggml's log callback alone.
#pragma once

#include <string>

namespace condense {

void LogInfo(const std::string& message);
void LogWarning(const std::string& message);

}  // namespace condense
