// For tests: pages of made records, and the reasons why records are refused.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "report/report.h"
#include "tests/report/made_records.h"

namespace condense::report {

class ReportTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              fmt::format("condense_report_{}_{}", getpid(),
                          testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& name, const std::string& bytes) {
    const std::filesystem::path path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  // The page of records that must be accepted.
  std::string Page(const std::string& bytes) { return PageOf({File("records.jsonl", bytes)}); }
  std::string PageOf(const std::vector<std::string>& files) {
    const std::string out = folder_ / "report.html";
    const Status status = WriteReport(files, out);
    EXPECT_TRUE(status.ok()) << status.error();
    std::ifstream in(out, std::ios::binary);
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
  }

  // The reason why these records are refused; no page may be left behind.
  std::string Refusal(const std::string& bytes) {
    const std::string out = folder_ / "report.html";
    const Status status = WriteReport({File("records.jsonl", bytes)}, out);
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(std::filesystem::exists(out));
    return status.error();
  }

  std::filesystem::path folder_;
};

inline std::string Lines(const MadeRun& made = {}) { return ToLines(MakeRecords(made)); }

// The page before its scripts.
inline std::string Body(const std::string& page) { return page.substr(0, page.find("<script")); }

}  // namespace condense::report
