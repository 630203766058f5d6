// Huge pages for the memory that a host keeps its KV cache in. On 4 KiB pages a step over a long
// cache spends much of its time on address translation (measured: 28 instead of 33 GB/s).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace condense {

class HugePages {
 public:
  HugePages() = default;
  // Of `bytes` bytes from `base` on, borrowed. Nothing is ever asked for where the system's
  // transparent huge pages are off ("never") or CONDENSE_HUGE_PAGES is 0.
  HugePages(const void* base, size_t bytes);

  // Asks the kernel once for huge pages under these bytes, as far as they lie wholly inside the
  // buffer; pages in use already are copied, and contents stay. Cheap when nothing is new. Returns
  // how many were asked for; whether there are any is up to the kernel.
  int Cover(const void* from, size_t bytes);

 private:
  uintptr_t first_ = 0;      // address of page 0
  std::vector<bool> asked_;  // per whole page of the buffer
};

}  // namespace condense
