// `dense`: every visible row, for every head. The exact systems (FlashAttention 2205.14135,
// Flash-Decoding, FlashInfer 2501.01005) compute the same mathematics in other orders.
// `order=reversed` sums V in descending row order: an equally legitimate arithmetic, whose distance
// from `forward` is the noise floor under every sparse policy.
#include "select/key_reader.h"
#include "select/registry.h"

namespace condense {
namespace {

class Dense final : public Policy {
 public:
  explicit Dense(bool reversed) : reversed_(reversed) {}
  bool is_dense() const override { return true; }
  bool reverse_order() const override { return reversed_; }
  void Select(const LayerQuery&, Selection& selection) const override {
    selection.dense = true;
    selection.reason = Fallback::kNone;
    selection.v_masks.clear();
    selection.rest_value.clear();
    selection.summary_bytes = 0;
  }

 private:
  bool reversed_;
};

CONDENSE_REGISTER_POLICY(
    dense,
    PolicyInfo{
        .name = "dense",
        .summary = "every visible row",
        .source = "exact attention",
        .label = "",
        .keys = {{"order", "forward",
                  "order of summing V: forward, or reversed (the noise-floor control)"}},
        .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
          return std::make_unique<Dense>(reader.Choice("order", {"forward", "reversed"}) == 1);
        }});

}  // namespace
}  // namespace condense
