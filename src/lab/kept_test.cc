// Records that a stopped run left, cut anywhere: whole rows are kept, nothing else is, and
// what is no such file is refused with the place.
#include "lab/kept.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/test_folder.h"

namespace condense {
namespace {

class KeptTest : public FolderTest {
 protected:
  void SetUp() override {
    run_.program = "condense compare";
    run_.commit = "abc";
    run_.model_sha256 = "m";
    run_.n_prompt = 700;
    run_.n_generate = 9;
  }

  // A run of dense and one policy, and the file's sizes after each line that ends something.
  std::vector<uint64_t> WriteRun() {
    Result<RecordWriter> writer = RecordWriter::Create(path_);
    EXPECT_TRUE(writer.ok());
    std::vector<uint64_t> ends;
    const auto write = [&](const auto& record, bool ends_something) {
      EXPECT_TRUE(writer->Write(record).ok());
      if (ends_something) ends.push_back(std::filesystem::file_size(path_));
    };
    write(run_, true);
    PromptRecord prompt;
    prompt.prefill_seconds = 2;
    prompt.dense_tokens = {4, 5, 6};
    write(prompt, true);
    for (const char* policy : {"dense", "mean:budget=5%"}) {
      PolicyRecord record;
      record.policy = policy;
      record.name = PolicyName(policy);
      record.teacher = "greedy";
      record.t_div = 7;
      record.figures.kl_mean = 0.25;
      record.fallbacks["short"] = 3;
      write(record, false);
      write(LayerRecord{.policy = policy, .teacher = "greedy"}, false);
      CellRecord cell;
      cell.policy = policy;
      cell.name = record.name;
      cell.seconds = 12.5;
      write(cell, true);
    }
    return ends;
  }

  std::string Bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void Put(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }

  const std::string path_ = Path("records.jsonl");
  RunRecord run_;
};

TEST_F(KeptTest, CutAnywhere) {
  const std::vector<uint64_t> ends = WriteRun();
  const std::string whole = Bytes();
  for (size_t n = 0; n <= whole.size(); ++n) {
    // Every byte around a line's end and of the first line's beginning; within lines, one in seven.
    const bool near_end = whole.substr(n < 3 ? 0 : n - 3, 6).find('\n') != std::string::npos;
    if (n > 40 && n % 7 != 0 && !near_end) continue;
    Put(whole.substr(0, n));
    const Result<KeptRecords> kept = ReadKept(path_);
    ASSERT_TRUE(kept.ok()) << n << " bytes: " << kept.error();
    uint64_t expected = 0;
    size_t n_ends = 0;
    for (uint64_t end : ends) {
      if (end > n) break;
      expected = end;
      ++n_ends;
    }
    ASSERT_EQ(kept->n_bytes, expected) << n;
    ASSERT_EQ(kept->prompt.has_value(), n_ends >= 2) << n;
    ASSERT_EQ(kept->rows.size(), n_ends < 2 ? 0 : n_ends - 2) << n;
  }
  const Result<KeptRecords> kept = ReadKept(path_);
  EXPECT_EQ(kept->prompt->dense_tokens, (std::vector<int>{4, 5, 6}));
  const CompareRow& row = kept->rows[1];
  EXPECT_EQ(row.cell.policy, "mean:budget=5%");
  EXPECT_EQ(row.cell.seconds, 12.5);
  ASSERT_EQ(row.teachers.size(), 1u);
  EXPECT_EQ(row.teachers[0].t_div, 7);
  EXPECT_EQ(row.teachers[0].figures.kl_mean, 0.25);
  EXPECT_EQ(row.teachers[0].fallbacks.at("short"), 3u);
}

TEST_F(KeptTest, GoingOnCutsWhatIsUnfinished) {
  const std::vector<uint64_t> ends = WriteRun();
  const std::string whole = Bytes();
  Put(whole.substr(0, whole.size() - 10));
  Result<RecordWriter> writer = RecordWriter::GoOn(path_, ends[2]);
  ASSERT_TRUE(writer.ok()) << writer.error();
  EXPECT_EQ(Bytes(), whole.substr(0, ends[2]));
  ASSERT_TRUE(writer->Write(CellRecord{}).ok());
  EXPECT_TRUE(Bytes().starts_with(whole.substr(0, ends[2])));
  EXPECT_GT(Bytes().size(), ends[2]);
}

TEST_F(KeptTest, NothingIsKeptOfNoFile) {
  const Result<KeptRecords> kept = ReadKept(path_);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->n_bytes, 0u);
}

TEST_F(KeptTest, OtherFilesAreRefused) {
  Put("dear diary");
  EXPECT_NE(ReadKept(path_).error().find("holds no records"), std::string::npos);
  WriteRun();
  const std::string whole = Bytes();
  const size_t second = whole.find('\n') + 1;
  Put(whole.substr(0, second) + "{\"schema\":1,\n" + whole.substr(second));
  EXPECT_NE(ReadKept(path_).error().find("line 2 is no record"), std::string::npos);
  Put(whole + whole);
  EXPECT_NE(ReadKept(path_).error().find("is no line of one run"), std::string::npos);
  Put(whole.substr(0, second) + R"({"schema":1,"record":"policy","policy":7})" + "\n");
  EXPECT_NE(ReadKept(path_).error().find("line 2"), std::string::npos);
}

TEST_F(KeptTest, AnotherRunIsNamedByWhatDiffers) {
  WriteRun();
  const Result<KeptRecords> kept = ReadKept(path_);
  ASSERT_TRUE(kept.ok());
  EXPECT_TRUE(CheckSameRun(kept.value(), run_, path_).ok());
  run_.time_utc = "later";
  run_.argv = {"other", "words"};
  EXPECT_TRUE(CheckSameRun(kept.value(), run_, path_).ok());
  const auto refusal = [&](const RunRecord& run) {
    return CheckSameRun(kept.value(), run, path_).error();
  };
  RunRecord other = run_;
  other.n_prompt = 701;
  EXPECT_NE(refusal(other).find("n_prompt was 700, is 701 now"), std::string::npos);
  other = run_;
  other.model_sha256 = "n";
  EXPECT_NE(refusal(other).find("model_sha256"), std::string::npos);
  other = run_;
  other.commit = "def";
  EXPECT_NE(refusal(other).find("commit was \"abc\", is \"def\" now"), std::string::npos);
  EXPECT_NE(refusal(other).find("name another"), std::string::npos);
}

}  // namespace
}  // namespace condense
