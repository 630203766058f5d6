// --check: outputs of an arm against attention in double over the same stored rows, with a bound
// from the number of rows, the unit of FP32 and the magnitudes.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "cache/kv_view.h"
#include "select/policy.h"

namespace condense {

// Where an error came nearest its bound.
struct CheckResult {
  double error = 0, bound = 0;
  int n_values = 0;
  bool ok = true;
};

// What one query head reads, in row bits over the whole cache.
struct CheckedQuery {
  const float* q = nullptr;  // [k_dim]
  int kv_head = 0;
  float scale = 1;
  std::span<const uint16_t> k_mask, v_mask;
  const float* rest_value = nullptr;  // Selection::rest_value of the head, or null
};

// Compares out [v_dim], normalised, and folds the outcome into `result`.
void CheckOutput(const KvView& view, const CheckedQuery& query, const float* out,
                 CheckResult& result);

// Hands on what a policy chose, for a check of the step that used it.
class RecordingPolicy : public Policy {
 public:
  explicit RecordingPolicy(const Policy& inner) : inner_(inner) {}
  bool is_dense() const override { return inner_.is_dense(); }
  bool reverse_order() const override { return inner_.reverse_order(); }
  void Select(const LayerQuery& query, Selection& selection) const override {
    inner_.Select(query, selection);
    chosen_ = selection;
  }
  // Of the last Select; dense where there was none.
  const Selection& chosen() const { return chosen_; }

 private:
  const Policy& inner_;
  mutable Selection chosen_;
};

}  // namespace condense
