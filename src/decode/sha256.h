// SHA-256 of a file, by Nettle: it names the exact model in records.
#pragma once

#include <string>

#include "base/result.h"

namespace condense {

// 64 hexadecimal digits.
Result<std::string> FileSha256(const std::string& path);
std::string TextSha256(const std::string& bytes);

}  // namespace condense
