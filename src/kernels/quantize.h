// Stored rows in blocks of 32 8-bit values with a scale (q8_0).
#pragma once

#include <cstddef>

#include "base/kv_type.h"

namespace condense {

// Writes a row of `dim` values of another type as q8_0, KvBytes(kQ8_0, dim) bytes: per 32 values
// the largest magnitude / 127 as f16, then each value over it, to nearest, ties to even. dim: a
// multiple of 32. Where a value is not finite its block's scale is NaN. A scale beyond f16 is its
// largest number; below it, 0.
void QuantizeRow(const std::byte* row, KvType type, int dim, std::byte* to);

}  // namespace condense
