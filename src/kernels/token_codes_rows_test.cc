// Token codes of segments of which only some rows count, on every target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/codes_case.h"
#include "kernels/target.h"
#include "kernels/test_target.h"

namespace condense {
namespace {

constexpr uint64_t kMasks[] = {0xAAAAAAAAAAAAAAAAu, 0x00FF00FF00FF00FFu, 1, uint64_t{1} << 63,
                               0x8000000000000001u};

class TokenCodesRowsTest : public OneTargetTest {};

bool Counts(uint64_t mask, int row) { return (mask >> row & 1) != 0; }

TEST_P(TokenCodesRowsTest, CentroidIsTheMeanOfTheRowsThatCount) {
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
    for (uint64_t mask : kMasks) {
      CodedKeys coded({.n_segments = 2, .type = type}), repeated({.n_segments = 2, .type = type});
      coded.Encode();
      repeated.Encode();
      // The rest is NaN; beside it the same rows, over and over, wherever as many fit.
      int n = 0;
      std::vector<std::byte> rows;
      const size_t bytes = KvBytes(type, 64);
      for (int r = 0; r < kSegmentRows; ++r) {
        if (Counts(mask, r)) {
          rows.insert(rows.end(), coded.Row(64 + r), coded.Row(64 + r) + bytes);
          ++n;
        } else {
          std::memset(coded.Row(64 + r), 0xFF, bytes);
        }
      }
      for (int r = 0; r < kSegmentRows; ++r)
        std::copy_n(rows.data() + r % n * bytes, bytes, repeated.Row(64 + r));
      SegmentKeys keys = coded.Segment(1);
      keys.counted = mask;
      EncodeCentroid(keys, coded.Tile(1), 1, &coded.scales[1]);
      EncodeCentroid(repeated.Segment(1), repeated.Tile(1), 1, &repeated.scales[1]);
      EXPECT_NEAR(coded.scales[1], repeated.scales[1], 1e-5f * repeated.scales[1]);
      for (int c = 0; c < 64; ++c)
        EXPECT_NEAR(coded.CentroidValue(1, c), repeated.CentroidValue(1, c),
                    1.01f * coded.scales[1]);
    }
  }
}

TEST_P(TokenCodesRowsTest, OtherRowsCodesStay) {
  for (uint64_t mask : kMasks) {
    CodedKeys coded({});
    coded.Encode();
    const std::vector<uint8_t> all = coded.codes;
    // In two halves, each among NaN where the other is.
    std::fill(coded.codes.begin() + CodeBytes(3, 8), coded.codes.begin() + CodeBytes(4, 8), 0xA5);
    const std::vector<uint8_t> before = coded.codes;
    SegmentKeys keys = coded.Segment(3);
    for (uint64_t part : {mask, ~mask}) {
      const std::vector<std::byte> kept = coded.rows;
      for (int r = 0; r < kSegmentRows; ++r) {
        if (!Counts(part, r)) std::memset(coded.Row(3 * 64 + r), 0xFF, 128);
      }
      keys.counted = part;
      EncodeSegment(coded.book, keys, coded.Tile(3), 3, coded.scales[3],
                    coded.codes.data() + CodeBytes(3, 8));
      std::copy(kept.begin(), kept.end(), coded.rows.begin());
      if (part != mask) continue;
      for (int r = 0; r < kSegmentRows; ++r) {
        for (int p = 0; p < 4; ++p) {
          const size_t at = CodeBytes(3, 8) + static_cast<size_t>(p * 64 + r % 16 * 4 + r / 16);
          EXPECT_EQ(coded.codes[at], Counts(mask, r) ? all[at] : before[at]) << r;
        }
      }
    }
    EXPECT_EQ(coded.codes, all);
  }
}

// A codebook of rows that are each other's copies is that of the rows alone.
TEST_P(TokenCodesRowsTest, TrainingSeesTheRowsThatCount) {
  for (uint64_t mask : kMasks) {
    CodedKeys coded({}), filled({});
    coded.Encode();
    filled.Encode();
    std::vector<uint64_t> counted(20, ~uint64_t{0});
    for (int s : {0, 7, 19}) counted[s] = mask;
    for (int s = 0; s < 20; ++s) {
      for (int r = 0; r < kSegmentRows; ++r) {
        if (Counts(counted[s], r)) continue;
        int source = r;
        while (!Counts(counted[s], source)) source = (source + 1) % kSegmentRows;
        std::copy_n(filled.Row(s * 64 + source), 128, filled.Row(s * 64 + r));
        std::memset(coded.Row(s * 64 + r), 0xFF, 128);
      }
    }
    coded.train.counted = counted.data();
    const TokenCodebook book = TrainCodebook(coded.train), same = TrainCodebook(filled.train);
    EXPECT_EQ(book.channel, same.channel);
    EXPECT_EQ(book.entries, same.entries);
    EXPECT_EQ(book.weight, same.weight);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, TokenCodesRowsTest, ::testing::ValuesIn(AvailableTargets()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace condense
