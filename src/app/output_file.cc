#include "app/output_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace condense {
namespace {

Error CannotWrite(const std::string& path, const std::string& what) {
  return {fmt::format("cannot write the {} '{}': {}", what, path, std::strerror(errno))};
}

}  // namespace

Status CheckWritable(const std::string& path, const std::string& what) {
  std::error_code error;
  const bool existed = std::filesystem::exists(path, error);
  if (!std::ofstream(path, std::ios::app)) return CannotWrite(path, what);
  if (!existed) std::filesystem::remove(path, error);
  return Status();
}

Status WriteWholeFile(const std::string& path, const std::string& what, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  if (!out.flush()) return CannotWrite(path, what);
  return Status();
}

}  // namespace condense
