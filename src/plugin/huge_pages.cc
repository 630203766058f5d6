#include "plugin/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace condense {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
#ifndef MADV_COLLAPSE  // Linux 6.1; older kernels refuse it
constexpr int MADV_COLLAPSE = 25;
#endif

bool Allowed() {
  const char* setting = std::getenv("CONDENSE_HUGE_PAGES");
  if (setting != nullptr && std::strcmp(setting, "0") == 0) return false;
  std::string modes;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), modes);
  return !modes.empty() && modes.find("[never]") == std::string::npos;
}

}  // namespace

HugePages::HugePages(const void* base, size_t bytes) {
  const auto from = reinterpret_cast<uintptr_t>(base);
  first_ = (from + kHugePage - 1) / kHugePage * kHugePage;
  if (from + bytes > first_ && Allowed()) asked_.resize((from + bytes - first_) / kHugePage);
}

int HugePages::Cover(const void* from, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(from);
  if (begin + bytes <= first_ || bytes == 0) return 0;
  const size_t last = std::min(asked_.size(), (begin + bytes - 1 - first_) / kHugePage + 1);
  int n_asked = 0;
  for (size_t page = begin > first_ ? (begin - first_) / kHugePage : 0; page < last; ++page) {
    if (asked_[page]) continue;
    asked_[page] = true;
    void* at = reinterpret_cast<void*>(first_ + page * kHugePage);
    // Where the second is refused, only a page that is not in use yet will be huge.
    if (madvise(at, kHugePage, MADV_HUGEPAGE) == 0) madvise(at, kHugePage, MADV_COLLAPSE);
    ++n_asked;
  }
  return n_asked;
}

}  // namespace condense
