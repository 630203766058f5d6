#include "plugin/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace condense {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class HugePagesTest : public testing::Test {
 protected:
  void SetUp() override {
    bytes_ = static_cast<unsigned char*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(bytes_, MAP_FAILED);
    madvise(bytes_, kBytes, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < kBytes; ++i) bytes_[i] = static_cast<unsigned char>(i * 7 + i / 4096);
  }
  void TearDown() override {
    munmap(bytes_, kBytes);
    unsetenv("CONDENSE_HUGE_PAGES");
  }

  bool Unchanged() const {
    for (size_t i = 0; i < kBytes; ++i) {
      if (bytes_[i] != static_cast<unsigned char>(i * 7 + i / 4096)) return false;
    }
    return true;
  }
  static bool SystemHasThem() {
    std::string modes;
    std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), modes);
    return !modes.empty() && modes.find("[never]") == std::string::npos;
  }

  static constexpr size_t kBytes = 12 * kMiB;
  unsigned char* bytes_ = nullptr;
};

TEST_F(HugePagesTest, EachWholePageIsAskedForOnceAndContentsStay) {
  HugePages pages(bytes_ + 4096, kBytes - 8192);
  int n_asked = 0;
  for (size_t at = 4096; at + 4096 < kBytes; at += 4096) n_asked += pages.Cover(bytes_ + at, 4096);
  if (SystemHasThem()) {
    EXPECT_GE(n_asked, 4);
    EXPECT_LE(n_asked, 5);
  } else {
    EXPECT_EQ(n_asked, 0);
  }
  EXPECT_EQ(pages.Cover(bytes_, kBytes), 0);
  EXPECT_TRUE(Unchanged());
}

TEST_F(HugePagesTest, OnlyPagesUnderTheBytesAreAskedFor) {
  if (!SystemHasThem()) return;  // nothing is asked for at all, as above
  HugePages pages(bytes_, kBytes);
  EXPECT_LE(pages.Cover(bytes_ + 4 * kMiB, 1), 1);
  EXPECT_EQ(pages.Cover(bytes_ + 4 * kMiB, 1), 0);
  EXPECT_GE(pages.Cover(bytes_, kBytes), 4);
}

TEST_F(HugePagesTest, NothingIsAskedForWhereItWasForbidden) {
  setenv("CONDENSE_HUGE_PAGES", "0", 1);
  EXPECT_EQ(HugePages(bytes_, kBytes).Cover(bytes_, kBytes), 0);
  EXPECT_TRUE(Unchanged());
}

TEST_F(HugePagesTest, TooSmallABufferHasNoWholePage) {
  EXPECT_EQ(HugePages(bytes_, kMiB).Cover(bytes_, kMiB), 0);
  EXPECT_EQ(HugePages().Cover(bytes_, kMiB), 0);
}

}  // namespace
}  // namespace condense
