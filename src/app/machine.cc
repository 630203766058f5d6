#include "app/machine.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "decode/plugin.h"

namespace condense {
namespace {

namespace fs = std::filesystem;
constexpr const char* kModelName = "SmolLM2-135M-Instruct.Q4_1.gguf";

std::optional<std::string> FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return line;
}

std::optional<uint64_t> Number(const std::string& path) {
  const auto line = FirstLine(path);
  if (!line || line->empty() || line->find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::strtoull(line->c_str(), nullptr, 10);
}

}  // namespace

int PhysicalCores() {
  const int n_logical = std::max(1u, std::thread::hardware_concurrency());
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return n_logical;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const auto siblings =
        FirstLine(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    cores.insert(siblings.value_or(std::to_string(cpu)));
  }
  return cores.empty() ? n_logical : static_cast<int>(cores.size());
}

uint64_t AvailableMemory() {
  uint64_t available = 0;
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    uint64_t kilobytes = 0;
    if (words >> key >> kilobytes && key == "MemAvailable:") available = kilobytes * 1024;
  }
  constexpr std::pair<const char*, const char*> kGroups[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
       "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
  for (const auto& [limit_path, used_path] : kGroups) {
    const auto limit = Number(limit_path), used = Number(used_path);
    if (limit && used) available = std::min(available, *limit > *used ? *limit - *used : 0);
  }
  return available;
}

std::string CpuName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string DefaultModelPath() {
  if (const char* named = std::getenv("CONDENSE_MODEL"); named && *named) return named;
  const fs::path here = ExecutableDirectory();
  for (const fs::path& folder : {here / "../share/condense", here / "../models",
                                 here / "../../models", fs::path("build/models")}) {
    std::error_code error;
    if (fs::is_regular_file(folder / kModelName, error))
      return (folder / kModelName).lexically_normal().string();
  }
  return "";
}

std::string DefaultTextPath() {
  const char* path = "/usr/share/common-licenses/GPL-3";
  std::error_code error;
  return fs::is_regular_file(path, error) ? path : "";
}

std::string FormatBytes(uint64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes < 1000) return fmt::format("{} B", bytes);
  if (bytes < 1000000) return fmt::format("{:.{}f} kB", value / 1e3, bytes < 10000 ? 1 : 0);
  if (bytes < 1000000000) return fmt::format("{:.{}f} MB", value / 1e6, bytes < 10000000 ? 1 : 0);
  return fmt::format("{:.1f} GB", value / 1e9);
}

}  // namespace condense
