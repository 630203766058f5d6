// For tests: a folder of its own for every test, gone with it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/result.h"

namespace condense {

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() { CONDENSE_CHECK(mkdtemp(folder_.data()) != nullptr); }
  ~FolderTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  // Writes a file; its path.
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::string path = Path(name);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  std::string folder_ = (std::filesystem::temp_directory_path() / "condense-test-XXXXXX").string();
};

}  // namespace condense
