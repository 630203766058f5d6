// What the machine can do, measured the same way as the kernels: bytes read per second,
// multiply-adds per second. Loops alone; who times them and how often is the caller's business.
#pragma once

#include <cstddef>

namespace condense {

// Sums n floats (a multiple of 64) with nothing else to do.
float SumStream(const float* values, size_t n);

// x = factor * x + term, n_rounds times, in kPeakChains independent vectors of at most kPeakLanes
// floats, which begin at 0, 1, 2, … Returns how many floating-point operations that were (two a
// lane's multiply-add). results: [kPeakChains][kPeakLanes], lanes that the machine does not have
// untouched. A caller that takes factor and term from where the compiler cannot see them, and
// compares the results with the closed form, knows that the work was done.
inline constexpr int kPeakChains = 12, kPeakLanes = 16;
double MultiplyAddLoop(size_t n_rounds, float factor, float term, float* results);

}  // namespace condense
