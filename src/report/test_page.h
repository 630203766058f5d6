// For tests: pages of made records, and the reasons why records are refused.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/test_folder.h"
#include "report/records.h"
#include "report/report.h"
#include "tests/report/made_records.h"

namespace condense::report {

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

class ReportTest : public FolderTest {
 protected:
  // The page of records that must be accepted.
  std::string Page(const std::string& bytes) { return PageOf({Write("records.jsonl", bytes)}); }
  std::string PageOf(const std::vector<std::string>& files) {
    const std::string out = Path("report.html");
    const Status status = WriteReport(files, out);
    EXPECT_TRUE(status.ok()) << status.error();
    return ReadAll(out);
  }

  // The first run of records that must be accepted.
  RunRecords RunOf(const std::string& bytes) {
    std::vector<RunRecords> runs;
    const Status status = ReadRecords(Write("records.jsonl", bytes), runs);
    EXPECT_TRUE(status.ok()) << status.error();
    return runs.empty() ? RunRecords{} : runs.front();
  }

  // The reason why these records are refused; no page may be left behind.
  std::string Refusal(const std::string& bytes) {
    const std::string out = Path("report.html");
    const Status status = WriteReport({Write("records.jsonl", bytes)}, out);
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(std::filesystem::exists(out));
    return status.error();
  }
};

inline std::string Lines(const MadeRun& made = {}) { return ToLines(MakeRecords(made)); }

// The page before its scripts.
inline std::string Body(const std::string& page) { return page.substr(0, page.find("<script")); }

}  // namespace condense::report
