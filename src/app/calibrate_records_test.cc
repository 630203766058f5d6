// What `condense calibrate` keeps of prefixes: what goes on, what is refused, and that nothing
// which is refused is written to.
#include "app/calibrate_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/test_folder.h"
#include "base/whole_file.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

const Json kRun = {{"record", "calibrate"}, {"policy", "mean"}, {"risk", "1%"}};
const std::vector<double> kThresholds = {2, 1};

class CalibrateRecordsTest : public FolderTest {
 protected:
  Result<CalibrateRecords> Open() const { return CalibrateRecords::Open(path_, kRun); }
  std::string Bytes() const { return ReadWholeFile(path_).value(); }

  // Refuses the file as it is, and leaves it so.
  void ExpectRefused(const std::string& bytes, const std::string& why) const {
    Write("r.jsonl", bytes);
    const Result<CalibrateRecords> records = Open();
    ASSERT_FALSE(records.ok()) << bytes;
    EXPECT_THAT(records.error(), HasSubstr(why));
    EXPECT_THAT(records.error(), HasSubstr(path_));
    EXPECT_EQ(Bytes(), bytes);
  }

  const std::string path_ = Path("r.jsonl");
};

TEST_F(CalibrateRecordsTest, GoOnWhereAStopCutThem) {
  {
    Result<CalibrateRecords> records = Open();
    ASSERT_TRUE(records.ok()) << records.error();
    ASSERT_TRUE(records->WriteSearched(0, {{"found", 1}}).ok());
    ASSERT_TRUE(records->WriteTried(1, kThresholds, {{"found", 2}}).ok());
  }
  const std::string whole = Bytes();
  const size_t first = whole.find('\n') + 1;
  // Anywhere: in the line that says which run it is, behind it, in a prefix's.
  for (const size_t n_bytes : {size_t{0}, size_t{1}, first - 1, first, whole.size() - 1}) {
    Write("r.jsonl", whole.substr(0, n_bytes));
    Result<CalibrateRecords> records = Open();
    ASSERT_TRUE(records.ok()) << n_bytes << ": " << records.error();
    EXPECT_EQ(records->Searched(0) != nullptr, n_bytes > first) << n_bytes;
    EXPECT_EQ(records->Tried(1, kThresholds), nullptr) << n_bytes;
    if (n_bytes <= first) {
      ASSERT_TRUE(records->WriteSearched(0, {{"found", 1}}).ok());
    }
    ASSERT_TRUE(records->WriteTried(1, kThresholds, {{"found", 2}}).ok());
    EXPECT_EQ(Bytes(), whole) << n_bytes;
  }
}

TEST_F(CalibrateRecordsTest, FilesThatAreNoRecordsStayAsTheyAre) {
  ExpectRefused("dear diary", "no records of `condense calibrate`");
  ExpectRefused("dear diary\nno line ends here", "no records of `condense calibrate`");
  ExpectRefused("{\"schema\":1,\"record\":\"run\"}\n", "no records of `condense calibrate`");
  ExpectRefused("{\"record\":\"calibrate\",\"policy\":\"quest\"}\n", "of another run");
  ExpectRefused("{\"record\":\"calibrate\",\"policy\":\"quest\"", "of another run");
  ExpectRefused(kRun.dump() + "\n{}\n", "damaged");
}

}  // namespace
}  // namespace condense
