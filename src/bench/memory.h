// Memory of benchmarks: one allocator for the yardstick's buffer and for made caches, so that both
// see the same pages, and the sizes of the machine's caches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace condense {

// Anonymous memory, 2 MiB-aligned, zero. `huge_pages` asks the system for huge pages; without it
// they are forbidden.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  static Result<Buffer> Map(size_t n_bytes, bool huge_pages);

  std::byte* data() const { return data_; }
  size_t n_bytes() const { return n_bytes_; }
  // Share of what was touched that lies on huge pages, as the system counts it.
  double HugeShare() const;

 private:
  std::byte* data_ = nullptr;
  size_t n_bytes_ = 0;
  void* mapped_ = nullptr;
  size_t n_mapped_ = 0;
};

// Of the data or unified cache of the level that the first processor sees; 0 where the system does
// not say.
uint64_t CacheBytes(int level);
uint64_t LastLevelCacheBytes();

// Enough that a pass over it comes from memory: 768 MB, or 2.5 times the last-level cache where
// that is more; at most a quarter of the free memory (0: not known), since made caches take as much
// again.
uint64_t MemoryPassBytes(uint64_t free_bytes);

}  // namespace condense
