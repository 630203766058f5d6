// What the machine can do, measured the same way as the kernels: bytes read per second,
// multiply-adds per second.
#pragma once

#include <cstddef>

namespace condense {

// Sums n floats (a multiple of 64) with nothing else to do.
float SumStream(const float* values, size_t n);

// Does independent fused multiply-adds in registers; returns how many floating-point operations
// that were (two for each lane's multiply-add). `sink` receives a result.
double MultiplyAddLoop(size_t n_rounds, float* sink);

}  // namespace condense
