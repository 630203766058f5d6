#include "bench/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

namespace condense {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Buffer::~Buffer() {
  if (mapped_ != nullptr) munmap(mapped_, n_mapped_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      n_bytes_(std::exchange(other.n_bytes_, 0)),
      mapped_(std::exchange(other.mapped_, nullptr)),
      n_mapped_(std::exchange(other.n_mapped_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(n_bytes_, other.n_bytes_);
  std::swap(mapped_, other.mapped_);
  std::swap(n_mapped_, other.n_mapped_);
  return *this;
}

Result<Buffer> Buffer::Map(size_t n_bytes, bool huge_pages) {
  Buffer buffer;
  const size_t n_mapped = n_bytes + kHugePage;
  void* mapped =
      mmap(nullptr, n_mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return Error{fmt::format("no memory for {} bytes: {}", n_bytes, std::strerror(errno))};
  }
  buffer.mapped_ = mapped;
  buffer.n_mapped_ = n_mapped;
  const auto at = reinterpret_cast<uintptr_t>(mapped);
  buffer.data_ = static_cast<std::byte*>(mapped) + (kHugePage - at % kHugePage) % kHugePage;
  buffer.n_bytes_ = n_bytes;
  // A system without huge pages refuses; HugeShare tells what came of it.
  madvise(mapped, n_mapped, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return buffer;
}

double Buffer::HugeShare() const {
  std::ifstream in("/proc/self/smaps");
  const auto at = reinterpret_cast<uintptr_t>(data_);
  bool inside = false;
  uint64_t resident = 0, huge = 0;
  for (std::string line; std::getline(in, line);) {
    uint64_t begin = 0, end = 0;
    char dash = 0;
    if (std::sscanf(line.c_str(), "%lx%c%lx", &begin, &dash, &end) == 3 && dash == '-') {
      inside = begin <= at && at < end;
    } else if (inside) {
      std::sscanf(line.c_str(), "Rss: %lu", &resident);
      std::sscanf(line.c_str(), "AnonHugePages: %lu", &huge);
    }
  }
  return resident == 0 ? 0.0 : static_cast<double>(huge) / static_cast<double>(resident);
}

uint64_t CacheBytes(int level) {
  for (int i = 0; i < 16; ++i) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", i);
    int found = 0;
    uint64_t size = 0;
    char unit = 0;
    std::string type;
    if (!(std::ifstream(folder + "level") >> found)) break;
    std::ifstream(folder + "type") >> type;
    if (found != level || type == "Instruction") continue;
    std::ifstream(folder + "size") >> size >> unit;
    return size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
  }
  return 0;
}

uint64_t LastLevelCacheBytes() {
  uint64_t bytes = 0;
  for (int level = 1; level <= 4; ++level) bytes = std::max(bytes, CacheBytes(level));
  return bytes;
}

uint64_t MemoryPassBytes(uint64_t free_bytes) {
  const uint64_t wanted = std::max<uint64_t>(768'000'000, LastLevelCacheBytes() / 2 * 5);
  return free_bytes > 0 ? std::min(wanted, free_bytes / 4) : wanted;
}

}  // namespace condense
