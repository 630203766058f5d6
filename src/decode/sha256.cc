#include "decode/sha256.h"

#include <fmt/format.h>
#include <nettle/sha2.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace condense {
namespace {

std::string Digest(sha256_ctx& context) {
  uint8_t digest[SHA256_DIGEST_SIZE];
  sha256_digest(&context, sizeof digest, digest);
  std::string hex;
  for (uint8_t byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace

Result<std::string> FileSha256(const std::string& path) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) return Error{fmt::format("cannot read '{}': {}", path, std::strerror(errno))};
  sha256_ctx context;
  sha256_init(&context);
  std::vector<uint8_t> buffer(1 << 20);
  size_t n_read;
  while ((n_read = std::fread(buffer.data(), 1, buffer.size(), file.get())) > 0) {
    sha256_update(&context, n_read, buffer.data());
  }
  if (std::ferror(file.get())) {
    return Error{fmt::format("cannot read '{}': {}", path, std::strerror(errno))};
  }
  return Digest(context);
}

std::string TextSha256(const std::string& bytes) {
  sha256_ctx context;
  sha256_init(&context);
  sha256_update(&context, bytes.size(), reinterpret_cast<const uint8_t*>(bytes.data()));
  return Digest(context);
}

}  // namespace condense
