// One stored key as FP32, for the code that trains and encodes.
#pragma once

#include <cstddef>

#include "base/kv_type.h"

namespace condense {

void LoadKeyRow(const std::byte* row, KvType type, int dim, float* out);

}  // namespace condense
