// Benchmarks run in earnest on tiny shapes with their checks on, and what they are made of: made
// caches, the causal mask, sampling, the yardstick's own honesty. No time is asserted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "bench/candidate.h"
#include "bench/check.h"
#include "bench/host_operator.h"
#include "bench/made_cache.h"
#include "bench/memory.h"
#include "bench/operator_arm.h"
#include "bench/operators.h"
#include "bench/plan.h"
#include "bench/record.h"
#include "bench/rounds.h"
#include "bench/yardstick.h"
#include "kernels/half.h"
#include "select/registry.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSmallBuffer = 4'000'000;

BenchOptions Tiny() {
  BenchOptions options;
  options.shape.n_rows = 512;
  options.n_threads = 2;
  options.n_layers = 2;
  options.n_model_layers = 2;
  options.n_rounds = 2;
  options.check = true;
  options.buffer_bytes = kSmallBuffer;
  return options;
}

struct Collected {
  std::vector<BenchRecord> records;
  int n_calls = 0;
  BenchControl control;

  Collected() {
    control.on_records = [this](std::span<const BenchRecord> more) {
      records.insert(records.end(), more.begin(), more.end());
      ++n_calls;
      return Status();
    };
  }
  const BenchRecord* Find(const std::string& arm) const {
    for (const BenchRecord& record : records) {
      if (record.arm == arm) return &record;
    }
    return nullptr;
  }
};

void ExpectTimed(const BenchRecord& record) {
  EXPECT_GT(record.ns.n, 0) << record.arm;
  EXPECT_GT(record.ns.median, 0) << record.arm;
  EXPECT_LE(record.ns.low, record.ns.high) << record.arm;
  EXPECT_GT(record.bytes, 0) << record.arm;
  EXPECT_GT(record.flops, 0) << record.arm;
  EXPECT_GT(record.yardstick.stream.median, 0);
  EXPECT_GT(record.yardstick.peak.median, 0);
}

TEST(Bench, MachineMeasuresEveryKindOnOneThreadAndAll) {
  Collected collected;
  BenchOptions options = Tiny();
  const Result<BenchOutcome> outcome = BenchMachine(options, collected.control);
  ASSERT_TRUE(outcome.ok()) << outcome.error();
  EXPECT_EQ(outcome.value(), BenchOutcome::kDone);
  std::multiset<std::string> arms;
  for (const BenchRecord& record : collected.records) {
    arms.insert(record.arm + std::to_string(record.n_threads));
    EXPECT_GT(record.ns.median, 0);
    EXPECT_EQ(record.ns.n, 2);
    EXPECT_TRUE(record.trustworthy.has_value());
  }
  EXPECT_THAT(arms, ::testing::ElementsAre("cache1", "cache2", "multiply-add1", "multiply-add2",
                                           "stream1", "stream2"));
}

TEST(Bench, DecodeOnEveryTypeChecksAndRunsSparse) {
  for (KvType type : {KvType::kF16, KvType::kBF16, KvType::kQ8_0, KvType::kF32}) {
    SCOPED_TRACE(KvTypeName(type));
    Collected collected;
    BenchOptions options = Tiny();
    options.shape.k_type = options.shape.v_type = type;
    options.n_layers = options.n_rounds = 1;
    options.policies = {"mean:blocks=2", "quest:blocks=2,share=per_head"};
    options.host = type == KvType::kF16;
    const Result<BenchOutcome> outcome =
        BenchOperator(OperatorBench::kDecode, options, collected.control);
    ASSERT_TRUE(outcome.ok()) << outcome.error();
    EXPECT_EQ(outcome.value(), BenchOutcome::kDone);
    ASSERT_EQ(collected.records.size(), options.host ? 4u : 3u);
    const BenchRecord& dense = collected.records[0];
    for (const BenchRecord& record : collected.records) {
      ExpectTimed(record);
      EXPECT_EQ(record.source, "cache");
      if (record.arm == "ggml") continue;
      EXPECT_LE(*record.max_error, *record.error_bound);
    }
    EXPECT_EQ(dense.arm, "dense");
    EXPECT_EQ(dense.sparse_steps, 0u);
    EXPECT_NEAR(dense.bytes, dense.visible_rows * static_cast<double>(options.shape.RowBytes()), 1);
    const BenchRecord& mean = *collected.Find("mean:blocks=2");
    EXPECT_GT(mean.sparse_steps, 0u);
    EXPECT_EQ(mean.fallback_steps, 0u);
    EXPECT_LT(mean.bytes, dense.bytes);
    EXPECT_GT(mean.summary_bytes, 0);
    EXPECT_TRUE(mean.ratio_to_dense.has_value());
    EXPECT_EQ(mean.ratio_to_host.has_value(), options.host);
  }
}

TEST(Bench, FromMemoryReuseIsTimedInWholeCycles) {
  Collected collected;
  BenchOptions options = Tiny();
  options.n_layers = 0;
  options.n_model_layers = 7;  // no whole number of the caches that fill the buffer
  options.policies = {"mean:blocks=2", "mean:blocks=2,reuse=4"};
  options.host = false;
  options.n_rounds = 5;
  const Result<BenchOutcome> outcome =
      BenchOperator(OperatorBench::kDecode, options, collected.control);
  ASSERT_TRUE(outcome.ok()) << outcome.error();
  const BenchRecord& reuse = *collected.Find("mean:blocks=2,reuse=4");
  EXPECT_EQ(reuse.source, "memory");
  EXPECT_EQ(reuse.ns.n, 2);  // of four rounds each
  EXPECT_EQ(collected.Find("dense")->ns.n, 8);
  EXPECT_EQ(reuse.n_layers % 7, 0);
  EXPECT_LE(*reuse.max_error, *reuse.error_bound);
  // Three of four steps read no summaries.
  EXPECT_NEAR(reuse.summary_bytes, collected.Find("mean:blocks=2")->summary_bytes / 4,
              reuse.summary_bytes * 0.05);
}

TEST(Bench, SelectReportsItsSharesAndUpkeep) {
  Collected collected;
  BenchOptions options = Tiny();
  options.policies = {"mean:blocks=2"};
  options.n_rounds = 4;
  const Result<BenchOutcome> outcome =
      BenchOperator(OperatorBench::kSelect, options, collected.control);
  ASSERT_TRUE(outcome.ok()) << outcome.error();
  const BenchRecord& mean = *collected.Find("mean:blocks=2");
  ASSERT_TRUE(mean.select_share.has_value());
  EXPECT_GT(mean.select_share->median, 0);
  EXPECT_LT(mean.select_share->median + mean.attend_share->median, 1);
  ASSERT_TRUE(mean.upkeep_share.has_value());
  EXPECT_GE(*mean.upkeep_share, 0);
  EXPECT_GT(*mean.setup_ns, 0);
  EXPECT_EQ(collected.Find("ggml"), nullptr);
}

TEST(Bench, SelectReportsWhatIsKeptBesideTheCaches) {
  Collected collected;
  BenchOptions options = Tiny();
  options.shape.n_rows = 4096;
  options.policies = {"mean:blocks=2", "condense:budget=20%"};
  const Result<BenchOutcome> outcome =
      BenchOperator(OperatorBench::kSelect, options, collected.control);
  ASSERT_TRUE(outcome.ok()) << outcome.error();
  EXPECT_FALSE(collected.Find("dense")->memory_share.has_value());
  const BenchRecord& mean = *collected.Find("mean:blocks=2");
  EXPECT_EQ(*mean.codes_memory_share, 0);
  EXPECT_GT(*mean.memory_share, 1.0 / 32);  // a mean key in 16 bits for 16 rows of K and V
  EXPECT_LT(*mean.memory_share, 1.25 / 32);
  const BenchRecord& codes = *collected.Find("condense:budget=20%");
  const double code_share = (4 + 68.0 / 64) / (2 * 2 * 64);  // of a row: code, centroid and scale
  EXPECT_GT(*codes.codes_memory_share, code_share);
  EXPECT_LT(*codes.codes_memory_share, 1.15 * code_share);  // codebooks count more in short caches
  EXPECT_GT(*codes.memory_share, *codes.codes_memory_share);
  EXPECT_GT(*codes.setup_ns, *mean.setup_ns);  // a codebook is trained
}

TEST(Bench, VerifyRowsHaveTheBitsOfRowsAlone) {
  for (int n : {2, 8, 16}) {
    Collected collected;
    BenchOptions options = Tiny();
    options.n_query_rows = n;
    const Result<BenchOutcome> outcome =
        BenchOperator(OperatorBench::kVerify, options, collected.control);
    ASSERT_TRUE(outcome.ok()) << outcome.error();
    ASSERT_EQ(collected.records.size(), 2u);
    const BenchRecord& at_once = collected.records[0];
    ExpectTimed(at_once);
    EXPECT_TRUE(*at_once.equal_bits);
    EXPECT_TRUE(at_once.speedup.has_value());
    EXPECT_LE(*at_once.max_error, *at_once.error_bound);
    // One by one reads every row that each sees.
    const double pairs = n * (512 - n) + n * (n + 1) / 2.0;
    EXPECT_NEAR(collected.records[1].bytes / at_once.bytes, pairs / 512, 1e-9);
  }
}

TEST(Bench, PrefillCountsVisiblePairsAlone) {
  Collected collected;
  BenchOptions options = Tiny();
  options.n_query_rows = 100;
  const Result<BenchOutcome> outcome =
      BenchOperator(OperatorBench::kPrefill, options, collected.control);
  ASSERT_TRUE(outcome.ok()) << outcome.error();
  ASSERT_EQ(collected.records.size(), 2u);
  const double pairs = 100 * 412 + 100 * 101 / 2.0;
  for (const BenchRecord& record : collected.records) {
    ExpectTimed(record);
    EXPECT_EQ(record.flops, 4.0 * 64 * 9 * pairs);
  }
  EXPECT_LE(*collected.records[0].max_error, *collected.records[0].error_bound);
}

TEST(Bench, CandidateReadsNinetySixRowsAQuery) {
  Collected collected;
  BenchOptions options = Tiny();
  options.shape.n_query_heads = options.shape.n_kv_heads = 2;
  options.n_rounds = 1;
  const Result<BenchOutcome> outcome = BenchCandidate(options, {600, 1200}, collected.control);
  ASSERT_TRUE(outcome.ok()) << outcome.error();
  EXPECT_EQ(outcome.value(), BenchOutcome::kDone);
  EXPECT_EQ(collected.n_calls, 2);
  ASSERT_EQ(collected.records.size(), 6u);
  for (const BenchRecord& record : collected.records) ExpectTimed(record);
  const BenchRecord& candidate = collected.records[3];
  EXPECT_EQ(candidate.arm, "candidate");
  EXPECT_GT(candidate.visible_rows, 90);
  EXPECT_LT(candidate.visible_rows, 96);
  EXPECT_LE(*candidate.max_error, *candidate.error_bound);
  EXPECT_EQ(collected.records[4].visible_rows, 600.5);
}

TEST(Bench, SingleRunsBothShapes) {
  Collected collected;
  BenchOptions options = Tiny();
  options.host = false;
  options.n_layers = 1;
  options.n_rounds = 1;
  const Result<BenchOutcome> outcome = BenchSingle(options, collected.control);
  ASSERT_TRUE(outcome.ok()) << outcome.error();
  EXPECT_EQ(collected.n_calls, 2);
  std::map<std::string, int> presets;
  for (const BenchRecord& record : collected.records) ++presets[record.preset];
  EXPECT_EQ(presets["gpt2"], 3);
  EXPECT_EQ(presets["gqa"], 3);
  EXPECT_EQ(collected.Find("mean:blocks=2,reuse=4")->published->ratio, 11.7);
}

TEST(Bench, AStopKeepsWhatWasMeasured) {
  Collected collected;
  BenchOptions options = Tiny();
  options.policies = {"mean:blocks=2"};
  options.host = false;
  options.n_rounds = 100;
  int n_asked = 0;
  collected.control.stopped = [&] { return ++n_asked > 11; };
  const Result<BenchOutcome> outcome =
      BenchOperator(OperatorBench::kDecode, options, collected.control);
  ASSERT_TRUE(outcome.ok()) << outcome.error();
  EXPECT_EQ(outcome.value(), BenchOutcome::kStopped);
  ASSERT_EQ(collected.records.size(), 2u);
  EXPECT_EQ(collected.records[0].ns.n, 3);  // of two arms a round, three rounds were whole

  Collected nothing;
  nothing.control.stopped = [] { return true; };
  EXPECT_EQ(BenchOperator(OperatorBench::kVerify, Tiny(), nothing.control).value(),
            BenchOutcome::kStopped);
  EXPECT_TRUE(nothing.records.empty());
}

TEST(Bench, APolicyThatNeverRanSparseIsAnError) {
  Collected collected;
  BenchOptions options = Tiny();
  options.policies = {"mean:blocks=64"};
  options.host = false;
  const Result<BenchOutcome> outcome =
      BenchOperator(OperatorBench::kDecode, options, collected.control);
  ASSERT_FALSE(outcome.ok());
  EXPECT_THAT(outcome.error(), HasSubstr("mean:blocks=64 never ran sparse"));
}

TEST(Plan, WhatIsWrongIsSaid) {
  const auto why = [](OperatorBench bench, const std::function<void(BenchOptions&)>& change) {
    BenchOptions options = Tiny();
    options.policies = {};
    change(options);
    return CheckOptions(bench, options).error();
  };
  EXPECT_THAT(why(OperatorBench::kDecode, [](auto& o) { o.shape.n_kv_heads = 4; }),
              HasSubstr("--kv-heads 4 does not divide --query-heads 9"));
  EXPECT_THAT(why(OperatorBench::kDecode, [](auto& o) { o.shape.head_dim = 72; }),
              HasSubstr("--head-dim 72"));
  EXPECT_THAT(why(OperatorBench::kDecode,
                  [](auto& o) {
                    o.shape.k_type = KvType::kQ8_0;
                    o.shape.head_dim = 80;
                  }),
              HasSubstr("a multiple of 32"));
  EXPECT_THAT(why(OperatorBench::kDecode, [](auto& o) { o.policies = {"quset"}; }),
              HasSubstr("quest"));
  EXPECT_THAT(why(OperatorBench::kSelect, [](auto& o) { o.policies = {"dense"}; }),
              HasSubstr("--policy mean"));
  EXPECT_THAT(why(OperatorBench::kVerify, [](auto& o) { o.n_query_rows = 17; }),
              HasSubstr("2 to 16"));
  EXPECT_THAT(why(OperatorBench::kPrefill, [](auto& o) { o.n_query_rows = 513; }),
              HasSubstr("--rows 512"));
  EXPECT_THAT(why(OperatorBench::kDecode, [](auto& o) { o.n_rounds = 1000; }),
              HasSubstr("--rounds 1000 append 2002 rows to a cache of 512"));
  EXPECT_THAT(why(OperatorBench::kDecode,
                  [](auto& o) {
                    o.shape.n_rows = 1 << 24;
                    o.free_bytes = uint64_t{1} << 30;
                  }),
              HasSubstr("are free"));
}

TEST(Plan, TheLoopEndsAtTheRowsAskedFor) {
  BenchOptions options = Tiny();
  options.shape.n_rows = 8192;
  options.n_rounds = 10;
  const Result<Plan> plan = MakePlan(OperatorBench::kDecode, options);
  ASSERT_TRUE(plan.ok()) << plan.error();
  const int n_steps = plan->n_rounds * (plan->n_warm + plan->steps_a_pass);
  EXPECT_EQ(plan->first_row + 2 + n_steps + 1, 8192);
  EXPECT_EQ(plan->n_capacity, 8192);
  EXPECT_LE(n_steps, 8192 / 16 + 10);
}

TEST(MadeCaches, LayersAreViewsThatBeginApart) {
  Shape shape;
  const Result<MadeCaches> made = MadeCaches::Make(shape, 4, 2, 500, 2, true);
  ASSERT_TRUE(made.ok());
  const KvView first = made->View(0, 512), third = made->View(2, 512), second = made->View(1, 512);
  EXPECT_EQ(third.KeyRow(0, 0), first.KeyRow(0, kPadRows));
  EXPECT_EQ(third.ValueRow(1, 3), first.ValueRow(1, kPadRows + 3));
  EXPECT_NE(std::memcmp(first.k, second.k, 384), 0);
  // Writing a row again, through either view, changes nothing.
  std::vector<std::byte> before(384);
  std::memcpy(before.data(), third.KeyRow(0, 7), 384);
  made->WriteRow(2, 7);
  EXPECT_EQ(std::memcmp(before.data(), third.KeyRow(0, 7), 384), 0);
  made->WriteRow(0, kPadRows + 7);
  EXPECT_EQ(std::memcmp(before.data(), third.KeyRow(0, 7), 384), 0);
}

TEST(CausalMask, GrowsAndGoesBack) {
  CausalMask mask(600, 1);
  for (int row : {10, 11, 200, 11, 255, 256, 300, 255}) {
    mask.Set(row, 1);
    EXPECT_EQ(mask.n_rows(), PaddedRows(row + 1));
    for (int i = 0; i < mask.n_rows(); ++i) {
      ASSERT_EQ(mask.values()[i], i <= row ? 0 : kF16MinusInf) << row << ", " << i;
    }
  }
}

TEST(Rounds, GroupsAndRatios) {
  const std::vector<double> values = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(GroupMeans(values, 3), (std::vector<double>{2, 5}));
  const std::vector<double> holes = {4, 0, 0, 8, 0, 0};
  EXPECT_EQ(GroupMeans(holes, 3), (std::vector<double>{4, 8}));
  EXPECT_EQ(RatioOf(holes, {2, 1, 1, 2, 1, 1}).n, 2);
  EXPECT_EQ(RatioOf(holes, {2, 1, 1, 2, 1, 1}, 1, 0.5).median, 1.5);
}

TEST(Record, IsOneJsonObjectWithNullsForWhatIsNotThere) {
  BenchRecord record;
  record.bench = "decode";
  record.arm = "dense";
  record.stream_share = Sample{3, 0.1, 0.2, 0.3};
  record.origin = {{"version", "1"}};
  const auto json = nlohmann::json::parse(ToJson(record).dump());
  EXPECT_EQ(json["record"], "bench");
  EXPECT_EQ(json["stream_share"], 0.2);
  EXPECT_EQ(json["stream_share_quartiles"], (std::vector<double>{0.1, 0.3}));
  EXPECT_TRUE(json["ratio_to_host"].is_null());
  EXPECT_EQ(json["shape"]["head_dim"], 64);
  EXPECT_EQ(json["version"], "1");
}

TEST(Check, SeesAWrongOutput) {
  Shape shape;
  const Result<MadeCaches> made = MadeCaches::Make(shape, 1, 1, 256, 1, true);
  ASSERT_TRUE(made.ok());
  const MadeQueries queries(shape, 64, 1);
  CausalMask mask(256, 1);
  mask.Set(200, 1);
  Result<std::unique_ptr<HostOperator>> host = HostOperator::Make(1);
  ASSERT_TRUE(host.ok()) << host.error();
  ASSERT_TRUE(host.value()->Build(made.value(), 1, queries, 0, mask, 1).ok());
  ASSERT_TRUE(host.value()->Compute().ok());
  RowMask visible(BlocksFor(256), 0);
  AddRange(visible, {0, 201});
  CheckedQuery query{queries.At(0, 0), 0, 0.125f, visible, visible, nullptr};
  // The host's operator reads the same rows, in less exact arithmetic.
  CheckResult of_host;
  CheckOutput(made->View(0, 256), query, host.value()->Out(0), of_host);
  EXPECT_EQ(of_host.n_values, 64);
  EXPECT_LT(of_host.error, 0.01);
  const std::unique_ptr<Policy> dense = std::move(MakePolicy("dense")->policy);
  OperatorArm arm(made.value(), queries, *dense, 1, 1, 1, 1);
  arm.Run(mask, 200, 1);
  query.q = queries.At(0, 200);
  CheckResult of_ours;
  CheckOutput(made->View(0, 256), query, arm.Out(0), of_ours);
  EXPECT_TRUE(of_ours.ok);
  arm.Out(0)[17] += 0.001f;
  CheckOutput(made->View(0, 256), query, arm.Out(0), of_ours);
  EXPECT_FALSE(of_ours.ok);
  std::vector<float> nan(64, std::nanf(""));
  CheckResult of_nan;
  CheckOutput(made->View(0, 256), query, nan.data(), of_nan);
  EXPECT_FALSE(of_nan.ok);
}

TEST(Memory, BuffersAreAlignedAndZero) {
  for (bool huge : {true, false}) {
    Result<Buffer> buffer = Buffer::Map(5'000'000, huge);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % (2 << 20), 0u);
    std::byte sum{0};
    for (size_t i = 0; i < buffer->n_bytes(); ++i) sum |= buffer->data()[i];
    EXPECT_EQ(sum, std::byte{0});
    std::memset(buffer->data(), 1, buffer->n_bytes());
    EXPECT_LE(buffer->HugeShare(), huge ? 1 : 0);
  }
  EXPECT_FALSE(Buffer::Map(size_t{1} << 60, true).ok());
  EXPECT_EQ(MemoryPassBytes(400), 100u);
  EXPECT_GE(MemoryPassBytes(0), 768'000'000u);
}

}  // namespace
}  // namespace condense
