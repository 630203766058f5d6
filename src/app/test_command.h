// For tests: the program `condense` as users start it, with a folder for what it writes.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "app/process.h"
#include "base/test_folder.h"

namespace condense {

class CommandTest : public FolderTest {
 protected:
  CommandTest() { setenv("CONDENSE_MODEL", CONDENSE_TEST_MODEL, 1); }

  Process Start(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), CONDENSE_BINARY);
    return Process(arguments, folder_);
  }
};

}  // namespace condense
