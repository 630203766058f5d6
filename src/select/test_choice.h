// One choice of a policy on a made cache, for tests.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "select/policy.h"
#include "select/registry.h"

namespace condense {

inline std::unique_ptr<Policy> Make(const std::string& spec) {
  Result<BoundPolicy> made = MakePolicy(spec);
  CONDENSE_CHECK(made.ok());
  return std::move(made->policy);
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
  return a.dense == b.dense && a.k_masks == b.k_masks && a.v_masks == b.v_masks &&
         a.rest_value == b.rest_value && a.summary_bytes == b.summary_bytes;
}

// A set of the selection's.
inline std::span<const uint16_t> Rows(const uint16_t* mask, const Selection& selection) {
  return {mask, static_cast<size_t>(selection.n_blocks)};
}

}  // namespace condense
