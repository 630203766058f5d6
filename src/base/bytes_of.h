// Memory that a vector holds, for accounting.
#pragma once

#include <cstddef>
#include <vector>

namespace condense {

template <typename T>
size_t BytesOf(const std::vector<T>& values) {
  return sizeof(T) * values.capacity();
}

}  // namespace condense
