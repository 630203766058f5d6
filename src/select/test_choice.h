// One choice of a policy on a made cache, for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "select/policy.h"
#include "select/registry.h"
#include "select/test_allocations.h"
#include "select/test_cache.h"

namespace condense {

inline std::unique_ptr<Policy> Make(const std::string& spec) {
  Result<BoundPolicy> made = MakePolicy(spec);
  CONDENSE_CHECK(made.ok());
  return std::move(made->policy);
}

// Why a spec is refused; "" where it is not.
inline std::string ErrorOf(const std::string& spec) {
  const Result<BoundPolicy> made = MakePolicy(spec);
  return made.ok() ? "" : made.error();
}

// The canonical spec.
inline std::string SpecOf(const std::string& spec) {
  const Result<BoundPolicy> made = MakePolicy(spec);
  return made.ok() ? made->spec : "error: " + made.error();
}

// cache: a TestCache or RowCache.
template <class Cache>
Selection Select(Cache& cache, const std::string& spec, int n_threads = 1) {
  Selection selection;
  LayerQuery query = cache.Query();
  query.n_threads = n_threads;
  Make(spec)->Select(query, selection);
  return selection;
}

inline bool Same(const Selection& a, const Selection& b) {
  const bool same_tail = a.has_tail == b.has_tail &&
                         (!a.has_tail || (a.tail.o == b.tail.o && a.tail.max == b.tail.max &&
                                          a.tail.sum == b.tail.sum));
  return a.dense == b.dense && a.k_masks == b.k_masks && a.v_masks == b.v_masks &&
         a.rest_value == b.rest_value && a.summary_bytes == b.summary_bytes && same_tail;
}

// A set of the selection's.
inline std::span<const uint16_t> Rows(const uint16_t* mask, const Selection& selection) {
  return {mask, static_cast<size_t>(selection.n_blocks)};
}

inline std::set<int> RowsOf(const Selection& selection, int set) {
  std::set<int> rows;
  for (int row = 0; row < selection.n_blocks * kBlockRows; ++row) {
    if (HasRow(KRows(selection, set), row)) rows.insert(row);
  }
  return rows;
}

// K and V of one row of one KV head.
inline double RowBytes(const KvView& kv) {
  return static_cast<double>(kv.KeyBytes() + kv.ValueBytes());
}

// All that a step reads whose sets are of KV heads and the same for K and V.
inline double BytesRead(const Selection& selection, const KvView& kv) {
  CONDENSE_CHECK(!selection.per_query_head && selection.v_masks.empty());
  double bytes = static_cast<double>(selection.summary_bytes);
  for (int g = 0; g < kv.n_kv_heads; ++g) bytes += CountRows(KRows(selection, g)) * RowBytes(kv);
  return bytes;
}

// A policy that has stepped with as many rows as `warm_up` says, one step each, allocates nothing
// in the steps with [steps.begin, steps.end) rows. All are sparse.
template <class Cache>
void ExpectNoAllocations(Cache& cache, const std::string& spec, const std::vector<int>& warm_up,
                         RowRange steps) {
  SCOPED_TRACE(spec);
  const std::unique_ptr<Policy> policy = Make(spec);
  Selection selection;
  for (int n : warm_up) {
    cache.See({{0, n}});
    policy->Select(cache.Query(), selection);
    ASSERT_FALSE(selection.dense) << n;
  }
  for (int n = steps.begin; n < steps.end; ++n) {
    cache.See({{0, n}});
    const LayerQuery query = cache.Query();
    const long before = Allocations();
    policy->Select(query, selection);
    EXPECT_EQ(Allocations() - before, 0) << n;
    EXPECT_FALSE(selection.dense) << n;
  }
}

}  // namespace condense
