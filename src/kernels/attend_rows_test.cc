// Lists of single rows: against the double reference, and bit for bit against the same rows copied
// next to each other and against lists of whole blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/attend.h"
#include "kernels/attend_expect.h"
#include "kernels/target.h"
#include "kernels/test_case.h"
#include "kernels/test_target.h"

namespace condense {
namespace {

constexpr KvType kTypes[] = {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0};

// n of a shape's rows in any order as a list, masks of its own, and the same rows copied next to
// each other.
struct Listed {
  Listed(const KernelCase& shape, int n, uint32_t seed = 3) : data(shape), copy(shape), rows(n) {
    std::mt19937 random(seed);
    std::vector<int32_t> all(shape.n_rows);
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = all.size() - 1; i > 0; --i) std::swap(all[i], all[random() % (i + 1)]);
    std::copy_n(all.begin(), n, rows.begin());
    const int n_blocks = BlocksFor(n);
    list = data.args();
    for (int i = 0; i < n_blocks * kBlockRows; ++i) {
      const int row = i < n ? rows[i] : 0;
      const auto append = [&](const std::byte* from, size_t stride, std::vector<std::byte>& to) {
        to.insert(to.end(), from + row * stride, from + (row + 1) * stride);
      };
      append(list.k, list.k_stride, k);
      append(list.v, list.v_stride, v);
    }
    rows.resize(n_blocks * kBlockRows, 1 << 30);  // masked lanes' entries are not looked at
    for (int query = 0; query < shape.n_queries; ++query) {
      masks.emplace_back(n_blocks), v_masks.emplace_back(n_blocks);
      for (int i = 0; i < n; ++i) {
        const auto has = [&](const uint16_t* mask) {
          return (mask[rows[i] / kBlockRows] >> (rows[i] % kBlockRows)) & 1;
        };
        if (has(list.masks[query])) AddRow(masks[query], i);
        if (has((list.v_masks != nullptr ? list.v_masks : list.masks)[query]))
          AddRow(v_masks[query], i);
      }
    }
    for (const RowMask& mask : masks) mask_of.push_back(mask.data());
    for (const RowMask& mask : v_masks) v_mask_of.push_back(mask.data());
    list.n_blocks = n_blocks;
    list.masks = mask_of.data();
    if (list.v_masks != nullptr) list.v_masks = v_mask_of.data();
    in_place = list;
    in_place.k = k.data(), in_place.v = v.data();
    in_place.o = copy.o.data(), in_place.max = copy.max.data();
    in_place.sum = copy.sum.data(), in_place.sum_v = copy.sum_v.data();
    list.rows = rows.data();
  }

  bool Reads(const std::vector<RowMask>& sets, int row) const {
    for (const RowMask& set : sets) {
      for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] == row && HasRow(set, static_cast<int>(i))) return true;
      }
    }
    return false;
  }

  KernelData data, copy;
  std::vector<int32_t> rows;
  std::vector<std::byte> k, v;
  std::vector<RowMask> masks, v_masks;
  std::vector<const uint16_t*> mask_of, v_mask_of;
  AttendArgs list, in_place;
};

void ExpectSame(const KernelData& a, const KernelData& b) {
  ASSERT_TRUE(SameBits(a.o, b.o));
  ASSERT_TRUE(SameBits(a.max, b.max));
  ASSERT_TRUE(SameBits(a.sum, b.sum));
  ASSERT_TRUE(SameBits(a.sum_v, b.sum_v));
}

// Every KV type with every number of queries and some head sizes, lists and options.
std::vector<KernelCase> Cases() {
  std::vector<KernelCase> cases;
  const MaskKind masks[] = {MaskKind::kFull, MaskKind::kRandom, MaskKind::kCausal};
  int turn = 0;
  for (KvType type : kTypes) {
    for (int n_queries : {1, 2, 3, 4, 5, 6, 7, 8, 12, 97}) {
      for (MaskKind mask : masks) {
        cases.push_back({.n_rows = 512,
                         .n_queries = n_queries,
                         .k_type = type,
                         .v_type = type,
                         .mask = mask,
                         .softcap = turn % 5 == 0 ? 5.0f : 0.0f,
                         .v_subset = turn % 2 == 0,
                         .reverse = turn % 7 == 0});
        ++turn;
      }
    }
    for (int dim : {16, 32, 80, 96, 128, 176, 256}) {
      if (type == KvType::kQ8_0 && dim % 32 != 0) continue;
      for (int n_queries : {1, 3, 8}) {
        cases.push_back({.n_rows = 400,
                         .n_queries = n_queries,
                         .k_dim = dim,
                         .v_dim = dim,
                         .k_type = type,
                         .v_type = kTypes[dim % 32 == 0 ? turn++ % 4 : 1],
                         .v_subset = n_queries == 3});
      }
    }
  }
  return cases;
}

class AttendRowsTest : public OneTargetTest {};

INSTANTIATE_TEST_SUITE_P(Targets, AttendRowsTest, ::testing::ValuesIn(AvailableTargets()),
                         [](const auto& param_info) { return param_info.param; });

TEST_P(AttendRowsTest, MatchReferenceAndTheSameRowsInPlace) {
  int turn = 0;
  for (const KernelCase& shape : Cases()) {
    const int sizes[] = {1, 16, 37, 128, 250};
    const int n = sizes[turn++ % 5];
    SCOPED_TRACE(shape.Name() + ", listed " + std::to_string(n));
    Listed listed(shape, n);
    AttendChunk(listed.list);
    AttendChunk(listed.in_place);
    ASSERT_NO_FATAL_FAILURE(ExpectSame(listed.data, listed.copy));
    if (shape.n_queries > 8) continue;
    ASSERT_NO_FATAL_FAILURE(ExpectClose(listed.list, Expect(listed.list)));
  }
}

TEST_P(AttendRowsTest, LogitsAreThoseOfTheSameRowsInPlace) {
  for (KvType type : kTypes) {
    for (int n_queries : {1, 2, 3, 5, 12}) {
      Listed listed({.n_rows = 300,
                     .n_queries = n_queries,
                     .k_type = type,
                     .mask = n_queries % 2 == 0 ? MaskKind::kRandom : MaskKind::kFull},
                    75);
      const size_t n = static_cast<size_t>(n_queries) * listed.list.n_blocks * kBlockRows;
      std::vector<float> logits(n), in_place(n);
      RowLogits(listed.list, logits.data());
      RowLogits(listed.in_place, in_place.data());
      ASSERT_TRUE(SameBits(logits, in_place));
    }
  }
}

TEST_P(AttendRowsTest, WholeBlocksEqualAListOfBlocks) {
  const std::vector<int32_t> blocks = {5, 2, 30, 17, 9, 31, 0};
  std::vector<int32_t> rows;
  for (int32_t block : blocks) {
    for (int lane = 0; lane < kBlockRows; ++lane) rows.push_back(block * kBlockRows + lane);
  }
  for (KvType type : kTypes) {
    for (int n_queries : {1, 3, 8, 12}) {
      const KernelCase shape{.n_rows = 512,
                             .n_queries = n_queries,
                             .k_type = type,
                             .v_type = type,
                             .mask = n_queries == 8 ? MaskKind::kRandom : MaskKind::kFull,
                             .v_subset = n_queries > 1};
      KernelData by_block(shape), by_row(shape);
      AttendArgs a = by_block.args(), b = by_row.args();
      a.n_blocks = b.n_blocks = static_cast<int>(blocks.size());
      a.blocks = blocks.data(), b.rows = rows.data();
      AttendChunk(a);
      AttendChunk(b);
      ASSERT_NO_FATAL_FAILURE(ExpectSame(by_block, by_row));
    }
  }
}

// A row may be listed more than once: each time counts.
TEST_P(AttendRowsTest, RepeatedRowsCountEachTime) {
  KernelData data({.n_rows = 64, .n_queries = 3});
  AttendArgs args = data.args();
  const std::vector<int32_t> rows = {7, 7, 7, 1, 63, 7, 1, 2, 3, 3, 40, 41, 7, 7, 9, 0};
  args.rows = rows.data();
  args.n_blocks = 1;
  AttendChunk(args);
  ExpectClose(args, Expect(args));
}

TEST_P(AttendRowsTest, NanInRowsThatNobodyReadsHasNoEffect) {
  for (KvType type : kTypes) {
    for (int n_queries : {1, 3, 8, 12}) {
      const KernelCase shape{.n_rows = 200,
                             .n_queries = n_queries,
                             .k_type = type,
                             .v_type = type,
                             .mask = MaskKind::kRandom,
                             .v_subset = true};
      Listed clean(shape, 75), spoiled(shape, 75);
      for (int row = 0; row < shape.n_rows; ++row) {
        if (!spoiled.Reads(spoiled.masks, row)) spoiled.data.SpoilKey(row);
        if (!spoiled.Reads(spoiled.v_masks, row)) spoiled.data.SpoilValue(row);
      }
      AttendChunk(clean.list);
      AttendChunk(spoiled.list);
      ASSERT_NO_FATAL_FAILURE(ExpectSame(clean.data, spoiled.data));
    }
  }
}

// What comes next is fetched and changes nothing, whatever its size.
TEST_P(AttendRowsTest, RowsToComeChangeNoBit) {
  Listed alone({.n_rows = 300, .n_queries = 3}, 75), followed({.n_rows = 300, .n_queries = 3}, 75);
  std::vector<int32_t> next(7 * kBlockRows);
  std::iota(next.begin(), next.end(), 50);
  AttendChunk(alone.list);
  for (int n_next : {16, 48, 112}) {
    followed.list.next_k = followed.list.k;
    followed.list.next_rows = next.data();
    followed.list.n_next_rows = n_next;
    AttendChunk(followed.list);
    ASSERT_NO_FATAL_FAILURE(ExpectSame(alone.data, followed.data));
  }
}

TEST(AttendRowsTargetsTest, FusedTargetsAgreeBitForBit) {
  for (const KernelCase& shape : Cases()) {
    if (shape.n_queries > 8) continue;
    SCOPED_TRACE(shape.Name());
    std::vector<float> o, sum;
    for (const std::string& name : ExactTargets()) {
      ASSERT_TRUE(ForceTarget(name).ok());
      Listed listed(shape, 75);
      AttendChunk(listed.list);
      if (o.empty()) o = listed.data.o, sum = listed.data.sum;
      ASSERT_TRUE(SameBits(o, listed.data.o)) << name;
      ASSERT_TRUE(SameBits(sum, listed.data.sum)) << name;
    }
  }
  ASSERT_TRUE(ForceTarget("").ok());
}

}  // namespace
}  // namespace condense
