// Prints what the kernels of the exact class (targets with fused multiply-add) compute, bit for
// bit: a line "target, case, hash of the outputs" for every target of this machine and every case
// of the kernels' table. compare_bits.py compares the lines of several machines.
#include <array>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "kernels/codes_case.h"
#include "kernels/column_sums.h"
#include "kernels/moments.h"
#include "kernels/quantize.h"
#include "kernels/summary.h"
#include "kernels/target.h"
#include "kernels/test_case.h"

namespace condense {
namespace {

// FNV-1a over 32-bit words.
class Hash {
 public:
  void Add(std::span<const float> values) {
    for (float value : values) Add(std::bit_cast<uint32_t>(value));
  }
  void Add(uint32_t word) { state_ = (state_ ^ word) * 0x100000001B3u; }
  unsigned long long value() const { return state_; }

 private:
  uint64_t state_ = 0xCBF29CE484222325u;
};

void AddState(const KernelData& data, Hash& hash) {
  hash.Add(data.o), hash.Add(data.max), hash.Add(data.sum), hash.Add(data.sum_v);
}

// Every block of the chunk, last to first, as a list: what a sparse step gathers.
void AttendBackwards(const KernelData& data, Hash& hash) {
  AttendArgs args = data.args();
  std::vector<int32_t> blocks;
  for (int b = args.n_blocks - 1; b >= 0; --b) blocks.push_back(b);
  args.blocks = blocks.data();
  AttendChunk(args);
  AddState(data, hash);
}

// Every third row of the chunk, last to first: what a policy that chooses rows gathers.
void AttendRows(const KernelData& data, Hash& hash) {
  AttendArgs args = data.args();
  std::vector<int32_t> rows;
  for (int row = data.shape().n_rows - 1; row >= 0; row -= 3) rows.push_back(row);
  args.n_blocks = static_cast<int>(rows.size()) / kBlockRows;
  if (args.n_blocks == 0) return;
  args.rows = rows.data();
  AttendChunk(args);
  AddState(data, hash);
}

// A chunk's logits as shares, added up over its queries.
uint64_t ColumnSumsBits(const KernelData& data, const std::vector<float>& logits) {
  Hash hash;
  const size_t n = logits.size() / data.max.size();
  std::vector<float> sums(n, 0.0f);
  for (size_t i = 0; i < data.max.size(); ++i) {
    if (data.sum[i] > 0) AddShares(logits.data() + i * n, n, data.max[i], data.sum[i], sums.data());
  }
  hash.Add(sums);
  return hash.value();
}

struct AttentionHashes {
  uint64_t states = 0, column_sums = 0;
};

AttentionHashes AttentionBits(const KernelCase& shape) {
  Hash hash;
  KernelData data(shape);
  const AttendArgs& args = data.args();
  AttendChunk(args);
  AddState(data, hash);
  std::vector<float> logits(static_cast<size_t>(args.n_queries) * args.n_blocks * kBlockRows);
  RowLogits(args, logits.data());
  const uint64_t column_sums = ColumnSumsBits(data, logits);
  if (shape.n_queries <= 12) hash.Add(logits);
  if (shape.n_queries == 2 || shape.n_queries == 3) {
    const auto state = [&](int query) {
      return AttendState{&data.o[static_cast<size_t>(query) * args.v_dim], &data.max[query],
                         &data.sum[query], &data.sum_v[query]};
    };
    MergeState(state(0), state(1), args.v_dim);
    AddState(data, hash);
  }
  if (shape.n_rows % kBlockRows == 0 && shape.n_queries <= 12) AttendBackwards(data, hash);
  if (shape.n_queries <= 12) AttendRows(data, hash);
  return {hash.value(), column_sums};
}

// Statistics of one chunk's blocks, their scores by each of 3 queries, and sums of them.
uint64_t SummaryBits(KvType type, int dim) {
  Hash hash;
  KernelData data({.n_rows = 512, .n_queries = 3, .k_dim = dim, .k_type = type});
  const AttendArgs& args = data.args();
  const int n_tiles = args.n_blocks / kTileBlocks;
  std::array<std::vector<float>, 4> stats;
  std::array<std::vector<uint16_t>, 3> tiles;
  for (auto& values : stats) values.resize(dim);
  for (auto& values : tiles) values.resize(static_cast<size_t>(n_tiles) * dim * kTileBlocks);
  for (int b = 0; b < args.n_blocks; ++b) {
    SummarizeRows(args.k + static_cast<size_t>(b) * kBlockRows * args.k_stride, args.k_stride, type,
                  kBlockRows, dim,
                  {.mean = stats[0].data(),
                   .min = stats[1].data(),
                   .max = stats[2].data(),
                   .var = stats[3].data()});
    for (const auto& values : stats) hash.Add(values);
    const size_t at = static_cast<size_t>(b / kTileBlocks) * dim * kTileBlocks;
    for (size_t i = 0; i < tiles.size(); ++i)
      StoreInTile(stats[i].data(), dim, tiles[i].data() + at, b % kTileBlocks);
  }
  std::vector<float> scores(args.n_blocks), sums(dim);
  for (int query = 0; query < 3; ++query) {
    const float* q = args.q + static_cast<size_t>(query) * dim;
    ScoreMean(tiles[0].data(), n_tiles, dim, q, args.scale, scores.data());
    hash.Add(scores);
    ScoreMinMax(tiles[1].data(), tiles[2].data(), n_tiles, dim, q, args.scale, scores.data());
    hash.Add(scores);
    SumTiles(tiles[0].data(), n_tiles, dim, scores.data(), sums.data());
    hash.Add(sums);
    ScoreMean(tiles[0].data(), n_tiles, 1, q, args.scale, scores.data());  // one channel
    hash.Add(scores);
  }
  return hash.value();
}

// Centroids, codebook, codes and a step's estimates and worths.
uint64_t CodesBits(const CodesCase& shape, bool rotate) {
  Hash hash;
  CodedKeys coded(shape);
  std::vector<float> products(static_cast<size_t>(shape.dim) * shape.dim);
  coded.train.rotate = rotate, coded.train.query_products = products.data();
  for (size_t h = 0; h < static_cast<size_t>(shape.n_heads); ++h)
    AddProducts(coded.q.data() + h * shape.dim, shape.dim, 0.1f, products.data());
  coded.Encode();
  hash.Add(coded.book.to_code), hash.Add(coded.book.to_query);
  hash.Add(coded.scales), hash.Add(coded.book.weight);
  for (uint16_t entry : coded.book.entries) hash.Add(entry);
  for (uint8_t channel : coded.book.channel) hash.Add(channel);
  for (int8_t steps : coded.centroids) hash.Add(static_cast<uint32_t>(steps));
  for (uint8_t code : coded.codes) hash.Add(code);
  for (float softcap : {0.0f, 2.0f}) {
    coded.Step(5, nullptr, softcap);
    for (uint16_t p : coded.p) hash.Add(p);
    for (const auto* values : {&coded.share, &coded.max}) hash.Add(*values);
    for (int i = 0; i < coded.n_found; ++i) hash.Add(coded.worths[static_cast<size_t>(i)]);
  }
  return hash.value();
}

// 64 rows at 8 bits a value.
uint64_t CopiesBits(KvType type, int dim) {
  Hash hash;
  const KernelData data({.n_rows = 64, .k_dim = dim, .v_dim = dim, .k_type = type});
  const AttendArgs& args = data.args();
  std::vector<std::byte> copy(KvBytes(KvType::kQ8_0, dim));
  for (size_t row = 0; row < 64; ++row) {
    QuantizeRow(args.k + row * args.k_stride, type, dim, copy.data());
    for (std::byte value : copy) hash.Add(static_cast<uint32_t>(value));
  }
  return hash.value();
}

void PrintTarget(const std::string& target) {
  const auto print = [&](const std::string& name, uint64_t bits) {
    std::printf("%s\t%s\t%016llx\n", target.c_str(), name.c_str(),
                static_cast<unsigned long long>(bits));
  };
  for (const KernelCase& shape : KernelCases()) {
    const AttentionHashes hashes = AttentionBits(shape);
    print(shape.Name(), hashes.states);
    print("column sums, " + shape.Name(), hashes.column_sums);
  }
  for (int dim : {64, 96, 128, 256}) {
    for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0})
      print("summaries, " + std::to_string(dim) + " " + KvTypeName(type), SummaryBits(type, dim));
    for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16})
      print("copies, " + std::to_string(dim) + " " + KvTypeName(type), CopiesBits(type, dim));
  }
  for (int dim : {32, 64, 128, 256}) {
    for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0})
      for (bool rotate : {false, true}) {
        print(
            (rotate ? "rotated codes, " : "codes, ") + std::to_string(dim) + " " + KvTypeName(type),
            CodesBits({.dim = dim, .n_nibbles = dim == 128 ? 16 : 8, .type = type}, rotate));
      }
  }
}

}  // namespace
}  // namespace condense

int main() {
  for (const std::string& target : condense::ExactTargets()) {
    const condense::Status status = condense::ForceTarget(target);
    if (!status.ok() || condense::CurrentTarget() != target) {
      std::fprintf(stderr, "cannot use %s\n", target.c_str());
      return 1;
    }
    condense::PrintTarget(target);
  }
  return 0;
}
