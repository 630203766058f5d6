#include "base/whole_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace condense {

Result<std::string> ReadWholeFile(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (in) in.peek();  // fails on a folder
  if (!in.is_open() || in.bad()) return Error{errno != 0 ? std::strerror(errno) : "no such file"};
  std::ostringstream text;
  if (!in.eof()) text << in.rdbuf();
  return text.str();
}

}  // namespace condense
