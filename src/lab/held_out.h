// How prefixes are divided where something is searched for on some and tried on others:
// calibrations and `tune`, in the commands and in the lab. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace condense {

// Of every so many prefixes the first is searched on, the others are held out.
inline constexpr int kSearchEvery = 4;
inline bool IsHeldOut(size_t prefix) { return prefix % kSearchEvery != 0; }
inline int CountSearched(int n_prefixes) { return (n_prefixes + kSearchEvery - 1) / kSearchEvery; }
// Of one teacher, where each prefix goes on for n_generate tokens.
inline int64_t HeldOutDecisions(size_t n_prefixes, int n_generate) {
  const auto n = static_cast<int>(n_prefixes);
  return int64_t{n - CountSearched(n)} * (n_generate - 1);
}

}  // namespace condense
