// Work for scripts/instructions.py, which runs this under callgrind: each kernel once to warm up
// and once counted, at fixed shapes, nothing else counted. The target is AVX2: valgrind knows no
// AVX-512. Without valgrind it runs and counts nothing. Prints what it was built with, as JSON.
#include <condense_version.h>
#include <valgrind/callgrind.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kernels/highway_config.h"
//
#include <hwy/highway.h>

#include "kernels/codes_case.h"
#include "kernels/target.h"
#include "kernels/test_case.h"
#include "select/registry.h"
#include "select/test_cache.h"

namespace condense {
namespace {

constexpr const char* kTarget = "AVX2";
constexpr int kGroup = 3;  // query heads of a KV head

void Count(const std::string& name, const std::function<void()>& work) {
  work();
  CALLGRIND_ZERO_STATS;
  CALLGRIND_TOGGLE_COLLECT;
  work();
  CALLGRIND_TOGGLE_COLLECT;
  CALLGRIND_DUMP_STATS_AT(name.c_str());
}

// n_rows query rows of one KV head's group over one chunk, head size 64.
void CountAttention(const std::string& name, int n_rows, KvType type) {
  KernelData data({.n_rows = kChunkRows,
                   .n_queries = n_rows * kGroup,
                   .k_type = type,
                   .v_type = type,
                   .mask = n_rows == 1 ? MaskKind::kFull : MaskKind::kCausal});
  Count(name + "_" + KvTypeName(type), [&] { AttendChunk(data.args()); });
}

// A step's group over 128 rows that lie scattered, V of half of them.
void CountRowList() {
  KernelData data({.n_rows = kChunkRows, .n_queries = kGroup});
  AttendArgs args = data.args();
  std::vector<int32_t> rows;
  for (int i = 0; i < kChunkRows / 4; ++i) rows.push_back(i * 4 + i % 3);
  args.n_blocks = BlocksFor(kChunkRows / 4);
  args.rows = rows.data();
  const RowMask half(static_cast<size_t>(args.n_blocks), 0x35A9);
  const std::vector<const uint16_t*> v_masks(kGroup, half.data());
  args.v_masks = v_masks.data();
  Count("rows_f16", [&] { AttendChunk(args); });
}

// One KV head's choice among 512 blocks whose summaries are there.
bool CountSelection() {
  const Result<BoundPolicy> mean = MakePolicy("mean:blocks=8");
  TestCache cache(512 * kBlockRows, 1, kGroup, 64);
  Selection selection;
  Count("select_mean", [&] { mean.value().policy->Select(cache.Query(), selection); });
  return !selection.dense && CountRows(selection.k_masks) < 256;
}

// A step's parts for one KV head with 8,192 coded rows, and the upkeep of the codes.
void CountCodes() {
  constexpr int kSegments = 128;
  CodedKeys coded({.n_segments = kSegments, .n_heads = kGroup});
  coded.Encode();
  coded.Step(kSegments);
  constexpr int kPercent = 7;
  const float least = coded.WorthOfTwice(kPercent);
  std::vector<int32_t> best(coded.n_rows() + 16);
  Count("codes_tables", [&] { coded.Tables(); });
  Count("codes_scan", [&] { coded.Scan(0, kSegments); });
  Count("codes_collect", [&] {
    coded.Shares();
    coded.n_found = coded.Collect(0, kSegments, least);
  });
  Count("codes_top", [&] { coded.Top(kPercent, 2 * least, best.data()); });
  Count("codes_encode", [&] {
    EncodeCentroid(coded.Segment(1), coded.Tile(1), 1, &coded.scales[1]);
    coded.EncodeCodes(1);
  });
  Count("codes_train", [&] { TrainCodebook(coded.train); });
}

int Run() {
  if (const Status status = ForceTarget(kTarget); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.error().c_str());
    return 3;
  }
  for (KvType type : {KvType::kF16, KvType::kQ8_0}) {
    CountAttention("decode", 1, type);
    CountAttention("verify", 8, type);
    CountAttention("prefill", 32, type);
  }
  CountRowList();
  CountCodes();
  if (!CountSelection()) {
    std::fprintf(stderr, "mean:blocks=8 did not choose\n");
    return 1;
  }
  std::printf(
      "{\"target\": \"%s\", \"compiler\": \"%s\", \"flags\": \"%s\", \"highway\": "
      "\"%d.%d.%d\"}\n",
      CurrentTarget().c_str(), CONDENSE_COMPILER, CONDENSE_FLAGS, HWY_MAJOR, HWY_MINOR, HWY_PATCH);
  return 0;
}

}  // namespace
}  // namespace condense

int main() { return condense::Run(); }
