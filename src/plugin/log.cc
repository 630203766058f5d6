#include "plugin/log.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

namespace condense {

void LogInfo(const std::string& message) { GGML_LOG_INFO("condense: %s\n", message.c_str()); }
void LogWarning(const std::string& message) { GGML_LOG_WARN("condense: %s\n", message.c_str()); }

}  // namespace condense
