// Highway, narrowed to the targets that the kernels are written for: fixed vectors of 16, 32 or 64
// bytes. Every source of the room includes this before any header of Highway, so that all agree on
// the targets.
#pragma once

// Scalable vectors would need lane counts at run time.
#if defined(CONDENSE_FEW_TARGETS)
// Sanitizer builds: the source is the same for every target, and each costs a minute to instrument.
#define HWY_DISABLED_TARGETS                                                                     \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | \
   HWY_AVX3_DL)
#elif !defined(HWY_DISABLED_TARGETS)
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif

// The fallback is then the 16-byte vector in plain C++, which the kernels need, not single lanes.
// Highway avoids it before GCC 12.3 for a bug in multiplying 16-bit integers (GCC 106322), which
// the kernels do not do.
#ifndef HWY_BROKEN_EMU128
#define HWY_BROKEN_EMU128 0
#endif
