// For tests of the page of lab folders: made folders, and cells of one line.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "report/lab_records.h"
#include "report/test_page.h"
#include "tests/report/made_lab.h"

namespace condense::report {

class LabReportTest : public ReportTest {
 protected:
  // A folder with one file of these lines a rank.
  std::string Folder(const std::string& name, const std::vector<std::string>& files) {
    std::filesystem::create_directories(Path(name));
    for (size_t rank = 0; rank < files.size(); ++rank)
      Write(fmt::format("{}/records-{}.jsonl", name, rank), files[rank]);
    return Path(name);
  }
  std::vector<LabRecords> Read(const std::vector<std::string>& files) {
    auto labs = ReadLabFolders({Folder("lab", files)});
    EXPECT_TRUE(labs.ok()) << labs.error();
    return labs.ok() ? labs.value() : std::vector<LabRecords>{};
  }
};

// The end of a cell and one policy line of it.
inline std::vector<Json> OneCell(const std::string& id, const std::string& state, double match) {
  Json policy = LabLine("policy", "e", id), end = LabLine("cell", "e", id);
  policy.update({{"policy", "mean"}, {"teacher", "greedy"}, {"tf_match", match}});
  end.update({{"policy", "mean"},
              {"state", state},
              {"reason", "made reason"},
              {"parameters", {{"context", 64}, {"offset", id.size()}}}});
  return {policy, end};
}

inline std::string RunLine() { return ToLines({MakeLabRecords({.contexts = {}}).front()}); }

}  // namespace condense::report
