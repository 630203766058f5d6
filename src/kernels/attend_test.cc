// Attention kernels on every instruction set of the machine: against the double reference with
// bounds from n, epsilon and magnitude, and bit for bit where the header promises it.
#include "kernels/attend.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/attend_expect.h"
#include "kernels/reference.h"
#include "kernels/target.h"
#include "kernels/test_case.h"
#include "kernels/test_target.h"

namespace condense {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
class AttendTest : public OneTargetTest {};

INSTANTIATE_TEST_SUITE_P(Targets, AttendTest, ::testing::ValuesIn(AvailableTargets()),
                         [](const auto& param_info) { return param_info.param; });

TEST_P(AttendTest, MatchesReference) {
  for (const KernelCase& shape : KernelCases()) {
    SCOPED_TRACE(shape.Name());
    KernelData data(shape);
    AttendChunk(data.args());
    ExpectClose(data.args(), Expect(data.args()));
    if (HasFatalFailure()) return;
  }
}

TEST_P(AttendTest, LogitsMatchReference) {
  for (const KernelCase& shape : KernelCases()) {
    if (shape.n_rows > 100 && shape.n_queries > 12) continue;
    SCOPED_TRACE(shape.Name());
    KernelData data(shape);
    const AttendArgs& args = data.args();
    const int n = args.n_blocks * kBlockRows;
    std::vector<float> logits(static_cast<size_t>(args.n_queries) * n, 7);
    RowLogits(args, logits.data());
    AttendChunk(args);
    const std::vector<std::vector<double>> reference = ReferenceLogits(args);
    for (int query = 0; query < args.n_queries; ++query) {
      for (int row = 0; row < n; ++row) {
        const float logit = logits[query * n + row];
        if (std::isinf(reference[query][row])) {
          ASSERT_EQ(logit, -kInf);
        } else {
          ASSERT_NEAR(logit, reference[query][row], LogitBound(args, query, row));
        }
      }
      ASSERT_EQ(*std::max_element(logits.begin() + query * n, logits.begin() + (query + 1) * n),
                data.max[query]);
    }
  }
}

// A query that reads one row has that row's logit as its maximum: all logits inside AttendChunk,
// bit for bit.
TEST_P(AttendTest, RowLogitsAreThoseInside) {
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
    KernelData data({.n_rows = 100, .n_queries = 2, .k_dim = 128, .k_type = type, .bias = true});
    AttendArgs args = data.args();
    std::vector<float> logits(2 * args.n_blocks * kBlockRows);
    RowLogits(args, logits.data());
    for (int query = 0; query < 2; ++query) {
      for (int row = 0; row < 100; ++row) {
        RowMask one(args.n_blocks);
        AddRow(one, row);
        const uint16_t* masks[] = {one.data(), one.data()};
        args.masks = masks;
        AttendChunk(args);
        ASSERT_EQ(Bits(logits[query * args.n_blocks * kBlockRows + row]), Bits(data.max[query]))
            << row;
        ASSERT_EQ(data.sum[query], 1.0f);
      }
    }
  }
}

TEST_P(AttendTest, QueriesTogetherEqualEachAlone) {
  for (const KernelCase& shape : KernelCases()) {
    if (shape.n_queries == 1) continue;
    SCOPED_TRACE(shape.Name());
    KernelData together(shape), alone(shape);
    AttendChunk(together.args());
    const AttendArgs& args = together.args();
    for (int query = 0; query < shape.n_queries; ++query) {
      AttendArgs one = alone.args();
      one.n_queries = 1;
      one.q += query * one.k_dim, one.o += query * one.v_dim;
      one.masks += query, one.max += query, one.sum += query, one.sum_v += query;
      if (one.v_masks != nullptr) one.v_masks += query;
      if (one.bias != nullptr) one.bias += query;
      AttendChunk(one);
    }
    ASSERT_EQ(args.n_queries, shape.n_queries);
    ASSERT_TRUE(SameBits(together.o, alone.o));
    ASSERT_TRUE(SameBits(together.max, alone.max));
    ASSERT_TRUE(SameBits(together.sum, alone.sum));
    ASSERT_TRUE(SameBits(together.sum_v, alone.sum_v));
  }
}

// A list of blocks anywhere in the cache, against the same rows copied next to each other.
TEST_P(AttendTest, ListedBlocksEqualTheSameRowsInPlace) {
  const std::vector<int32_t> blocks = {5, 2, 30, 17, 9, 31, 0, 18, 19, 20, 21};
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
    for (MaskKind mask : {MaskKind::kFull, MaskKind::kRandom, MaskKind::kRandomBlocks}) {
      for (int n_queries : {1, 3, 8, 12}) {
        const KernelCase shape{.n_rows = 512,
                               .n_queries = n_queries,
                               .k_type = type,
                               .v_type = type,
                               .mask = mask,
                               .v_subset = n_queries == 12};
        SCOPED_TRACE(shape.Name());
        KernelData listed(shape), copied(shape);
        std::vector<RowMask> masks(n_queries), v_masks(n_queries);
        std::vector<const uint16_t*> mask_of, v_mask_of;
        for (int query = 0; query < n_queries; ++query) {
          for (int32_t block : blocks) {
            masks[query].push_back(listed.args().masks[query][block]);
            if (shape.v_subset) v_masks[query].push_back(listed.args().v_masks[query][block]);
          }
          mask_of.push_back(masks[query].data());
          v_mask_of.push_back(v_masks[query].data());
        }
        std::vector<std::byte> k, v;
        for (int32_t block : blocks) {
          const auto append = [&](const std::byte* rows, size_t stride,
                                  std::vector<std::byte>& to) {
            const std::byte* from = rows + block * kBlockRows * stride;
            to.insert(to.end(), from, from + kBlockRows * stride);
          };
          append(listed.args().k, listed.args().k_stride, k);
          append(listed.args().v, listed.args().v_stride, v);
        }
        AttendArgs list = listed.args(), copy = copied.args();
        for (AttendArgs* args : {&list, &copy}) {
          args->n_blocks = static_cast<int>(blocks.size());
          args->masks = mask_of.data();
          if (shape.v_subset) args->v_masks = v_mask_of.data();
        }
        list.blocks = blocks.data();
        copy.k = k.data(), copy.v = v.data();
        AttendChunk(list);
        AttendChunk(copy);
        EXPECT_TRUE(SameBits(listed.o, copied.o));
        EXPECT_TRUE(SameBits(listed.max, copied.max));
        EXPECT_TRUE(SameBits(listed.sum, copied.sum));
        EXPECT_TRUE(SameBits(listed.sum_v, copied.sum_v));
      }
    }
  }
}

TEST_P(AttendTest, NanInRowsThatNobodyReadsHasNoEffect) {
  for (MaskKind mask : {MaskKind::kRandom, MaskKind::kRandomBlocks, MaskKind::kOneRow}) {
    for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
      const KernelCase shape{.n_rows = 200,
                             .n_queries = 3,
                             .k_type = type,
                             .v_type = type,
                             .mask = mask,
                             .v_subset = true};
      KernelData clean(shape), spoiled(shape);
      for (int row = 0; row < shape.n_rows; ++row) {
        const auto read = [&](const uint16_t* const* masks) {
          for (int query = 0; query < 3; ++query) {
            if ((masks[query][row / 16] >> (row % 16)) & 1) return true;
          }
          return false;
        };
        if (!read(spoiled.args().masks)) spoiled.SpoilKey(row);
        if (!read(spoiled.args().v_masks)) spoiled.SpoilValue(row);
      }
      AttendChunk(clean.args());
      AttendChunk(spoiled.args());
      EXPECT_TRUE(SameBits(clean.o, spoiled.o));
      EXPECT_TRUE(SameBits(clean.sum, spoiled.sum));
    }
  }
}

// A row that one query reads and another does not: its NaN stays with the one.
TEST_P(AttendTest, NanStaysWithItsQuery) {
  const KernelCase shape{.n_rows = 64, .n_queries = 8, .mask = MaskKind::kRandom};
  KernelData clean(shape), spoiled(shape);
  spoiled.SpoilKey(21);
  spoiled.SpoilValue(21);
  spoiled.q()[3 * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
  AttendChunk(clean.args());
  AttendChunk(spoiled.args());
  int n_touched = 0;
  for (int query = 0; query < 8; ++query) {
    const bool touched = query == 3 || ((clean.args().masks[query][1] >> 5) & 1);
    n_touched += touched;
    EXPECT_EQ(std::isnan(spoiled.sum[query]), touched);
    for (int c = 0; c < 64; ++c) {
      const float o = spoiled.o[query * 64 + c];
      if (touched) {
        EXPECT_TRUE(std::isnan(o));
      } else {
        EXPECT_EQ(Bits(o), Bits(clean.o[query * 64 + c]));
      }
    }
  }
  EXPECT_GT(n_touched, 1);
  EXPECT_LT(n_touched, 8);
}

TEST_P(AttendTest, InfiniteLogitsGiveNan) {
  for (float value : {kInf, -kInf}) {
    KernelData data({.n_rows = 1, .n_queries = 1});
    std::fill(data.q().begin(), data.q().end(), value);
    AttendChunk(data.args());
    EXPECT_TRUE(std::isnan(data.sum[0]));
    EXPECT_TRUE(std::isnan(data.o[0]));
  }
}

// Logits far apart: exponentials near and below the smallest normal number.
TEST_P(AttendTest, WideLogitsMatchReference) {
  KernelData data({.n_rows = 256, .n_queries = 4, .k_type = KvType::kF32, .v_type = KvType::kF32});
  for (float& value : data.q()) value *= 20;
  AttendChunk(data.args());
  ExpectClose(data.args(), Expect(data.args()));
}

// The state of the rows of `part` alone.
void AttendPart(const KernelData& whole, const std::vector<RowMask>& part, KernelData& out) {
  AttendArgs args = whole.args();
  args.o = out.o.data(), args.max = out.max.data(), args.sum = out.sum.data(),
  args.sum_v = out.sum_v.data();
  std::vector<const uint16_t*> masks;
  for (const RowMask& mask : part) masks.push_back(mask.data());
  args.masks = masks.data();
  AttendChunk(args);
}

AttendState StateOf(KernelData& data, int query) {
  return {&data.o[query * data.shape().v_dim], &data.max[query], &data.sum[query],
          &data.sum_v[query]};
}

TEST_P(AttendTest, MergingAnyPartitionGivesTheWhole) {
  const KernelCase shape{.n_rows = 200, .n_queries = 2, .mask = MaskKind::kRandom};
  EXPECT_TRUE(rc::check("partition", [&] {
    KernelData whole(shape, *rc::gen::inRange<uint32_t>(0, 1000));
    const int n_parts = *rc::gen::inRange(1, 6);
    const std::vector<int> owner = *rc::gen::container<std::vector<int>>(
        static_cast<size_t>(shape.n_rows), rc::gen::inRange(0, n_parts));
    KernelData merged(shape), part(shape);
    for (int i = 0; i < n_parts; ++i) {
      std::vector<RowMask> masks(2, RowMask(BlocksFor(shape.n_rows)));
      for (int query = 0; query < 2; ++query) {
        for (int row = 0; row < shape.n_rows; ++row) {
          const bool read = (whole.args().masks[query][row / 16] >> (row % 16)) & 1;
          if (read && owner[row] == i) AddRow(masks[query], row);
        }
      }
      AttendPart(whole, masks, i == 0 ? merged : part);
      for (int query = 0; i > 0 && query < 2; ++query)
        MergeState(StateOf(merged, query), StateOf(part, query), 64);
    }
    const std::vector<ReferenceState> expected = ReferenceAttend(whole.args());
    const std::vector<double> logit_bound = Expect(whole.args()).logit_bound;
    for (int query = 0; query < 2; ++query) {
      const double bound = SumBound(logit_bound[query], shape.n_rows) + n_parts * 128 * kUnit;
      RC_ASSERT(std::fabs(merged.sum[query] - expected[query].sum) <= bound * expected[query].sum);
      RC_ASSERT(std::fabs(merged.sum_v[query] - expected[query].sum) <=
                bound * expected[query].sum);
      for (int c = 0; c < 64; ++c) {
        RC_ASSERT(std::fabs(merged.o[query * 64 + c] - expected[query].o[c]) <=
                  bound * expected[query].o_abs[c] + kTiny);
      }
    }
  }));
}

TEST_P(AttendTest, MergingEmptyStatesChangesNoBit) {
  const KernelCase shape{.n_rows = 40, .n_queries = 1};
  KernelData some(shape), some_too(shape),
      none({.n_rows = 40, .n_queries = 1, .mask = MaskKind::kEmpty});
  AttendChunk(some.args());
  AttendChunk(some_too.args());
  AttendChunk(none.args());
  EXPECT_EQ(none.max[0], -kInf);
  for (float o : none.o) EXPECT_EQ(Bits(o), 0u);
  MergeState(StateOf(some, 0), StateOf(none, 0), 64);
  EXPECT_TRUE(SameBits(some.o, some_too.o));
  EXPECT_EQ(some.sum, some_too.sum);
  MergeState(StateOf(none, 0), StateOf(some, 0), 64);
  EXPECT_TRUE(SameBits(none.o, some_too.o));
  EXPECT_EQ(none.sum, some_too.sum);
  EXPECT_EQ(none.max, some_too.max);
  EXPECT_EQ(none.sum_v, some_too.sum_v);
}

TEST_P(AttendTest, NanSurvivesMerging) {
  const KernelCase shape{.n_rows = 16, .n_queries = 1};
  KernelData good(shape), bad(shape);
  bad.q()[0] = std::numeric_limits<float>::quiet_NaN();
  AttendChunk(good.args());
  AttendChunk(bad.args());
  KernelData into_bad(shape);
  into_bad.o = bad.o, into_bad.max = bad.max, into_bad.sum = bad.sum, into_bad.sum_v = bad.sum_v;
  MergeState(StateOf(into_bad, 0), StateOf(good, 0), 64);
  EXPECT_TRUE(std::isnan(into_bad.sum[0]));
  MergeState(StateOf(good, 0), StateOf(bad, 0), 64);
  EXPECT_TRUE(std::isnan(good.sum[0]));
  EXPECT_TRUE(std::isnan(good.o[0]));
}

TEST_P(AttendTest, MaskBitsOfEveryHalf) {
  for (int n : {1, 15, 16, 17, 31, 100, 1000}) {
    for (int shift = 0; shift < 4; ++shift) {
      std::vector<uint16_t> mask(n);
      const uint16_t values[] = {0, kF16MinusInf, 0x8000, 0x7E00, 0xFE00, 0x7C00, 0x0001, 0xBC00};
      for (int i = 0; i < n; ++i) mask[i] = values[(i * 5 + i / 7 + shift) % (shift == 0 ? 3 : 8)];
      std::vector<uint16_t> bits(BlocksFor(n), 0xAAAA);
      const bool biased = MaskBits(mask.data(), n, bits.data());
      bool expect_biased = false;
      for (int row = 0; row < BlocksFor(n) * kBlockRows; ++row) {
        const float value = row < n ? F32FromF16(mask[row]) : -kInf;
        ASSERT_EQ(HasRow(bits, row), value > -kInf) << row;
        expect_biased |= value > -kInf && value != 0;
      }
      EXPECT_EQ(biased, expect_biased);
    }
  }
}

TEST(TargetTest, UnknownNamesAreErrorsThatListTheOthers) {
  const std::string before = CurrentTarget();
  const Status status = ForceTarget("AVX9");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.error().find(AvailableTargets().front()), std::string::npos);
  EXPECT_EQ(CurrentTarget(), before);
  EXPECT_EQ(before, AvailableTargets().front());
}

// All targets with fused multiply-add give one set of bits, and forcing a target takes effect:
// those without round differently.
TEST(TargetTest, FusedTargetsAgreeBitForBit) {
  std::vector<std::string> fused;
  for (const std::string& name : AvailableTargets()) {
    if (name.starts_with("AVX") || name == "NEON") fused.push_back(name);
  }
  bool others_differ = false;
  for (const KernelCase& shape : KernelCases()) {
    SCOPED_TRACE(shape.Name());
    std::vector<float> o, sum;
    for (const std::string& name : AvailableTargets()) {
      const bool is_fused = std::find(fused.begin(), fused.end(), name) != fused.end();
      if (!is_fused && shape.n_queries > 3) continue;
      ASSERT_TRUE(ForceTarget(name).ok());
      KernelData data(shape);
      AttendChunk(data.args());
      if (o.empty()) o = data.o, sum = data.sum;
      if (is_fused) {
        ASSERT_TRUE(SameBits(o, data.o)) << name;
        ASSERT_TRUE(SameBits(sum, data.sum)) << name;
      } else {
        others_differ |= !SameBits(o, data.o);
      }
    }
  }
  ASSERT_TRUE(ForceTarget("").ok());
  EXPECT_TRUE(others_differ || fused.empty() || fused.size() == AvailableTargets().size());
}

}  // namespace
}  // namespace condense
