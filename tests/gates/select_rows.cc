// What a policy reads of a cache that a file describes, for tests in Python:
//
//   select_rows SPEC FILE
//
// FILE: int32 rows, KV heads, query heads, head size, layer, sequence rows n; int32 [n] the cells
// that the sequence sees, ascending; f16 [rows, KV heads, head size] keys; f32 [query heads, head
// size]. Prints "dense REASON", or a line a KV head: its rows; and the bytes read to choose. Reads
// tensor files as the plug-in does. Exit status 1, with the error: the policy is refused.
#include <cstdio>
#include <fstream>
#include <vector>

#include "select/registry.h"

namespace condense {
namespace {

template <typename T>
std::vector<T> Read(std::ifstream& file, size_t n) {
  std::vector<T> values(n);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(n * sizeof(T)));
  CONDENSE_CHECK(file.good());
  return values;
}

int Run(const char* spec, const char* path) {
  const Result<BoundPolicy> made = MakePolicy(spec);
  if (!made.ok()) {
    std::printf("%s\n", made.error().c_str());
    return 1;
  }
  std::ifstream file(path, std::ios::binary);
  const std::vector<int32_t> sizes = Read<int32_t>(file, 6);
  const int n_rows = sizes[0], n_kv_heads = sizes[1], n_heads = sizes[2], dim = sizes[3];
  RowMask visible(BlocksFor(n_rows), 0);
  for (int32_t cell : Read<int32_t>(file, sizes[5])) AddRow(visible, cell);
  const auto keys = Read<uint16_t>(file, static_cast<size_t>(n_rows) * n_kv_heads * dim);
  const auto q = Read<float>(file, static_cast<size_t>(n_heads) * dim);
  KvView view;
  view.k = view.v = reinterpret_cast<const std::byte*>(keys.data());
  view.k_head = view.v_head = sizeof(uint16_t) * dim;
  view.k_row = view.v_row = view.k_head * n_kv_heads;
  view.n_rows = n_rows;
  view.n_kv_heads = n_kv_heads;
  view.k_dim = view.v_dim = dim;
  BlockIndex index;
  SequenceMemory memory;
  LayerQuery query;
  query.layer = sizes[4];
  query.kv = &view;
  query.index = &index;
  query.visible = visible;
  query.n_visible = CountRows(visible);
  query.q = q.data();
  query.n_query_heads = n_heads;
  query.scale = 0.125f;
  query.memory = &memory;
  Selection selection;
  made->policy->Select(query, selection);
  if (selection.dense) {
    std::printf("dense %d\n", static_cast<int>(selection.reason));
    return 0;
  }
  for (int g = 0; g < n_kv_heads; ++g) {
    for (const RowRange& range : ToRanges({selection.KMask(g), visible.size()})) {
      for (int row = range.begin; row < range.end; ++row) std::printf("%d ", row);
    }
    std::printf("\n");
  }
  std::printf("%llu\n", static_cast<unsigned long long>(selection.summary_bytes));
  return 0;
}

}  // namespace
}  // namespace condense

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return condense::Run(argv[1], argv[2]);
}
