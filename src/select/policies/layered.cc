// `layered`: `mean` with a wide window in the early layers and a narrow one in the others, after
// the first version of arXiv 2602.06317. There the late window lies between 64 and 256 rows by how
// repetitive the recent text is; its measure was not published, and this place sees keys, not
// tokens: the late window is the key `window`, and does not adapt. Which layers are early was not
// published either: `early` names them. With no more rows than the early window every layer reads
// all.
#include "select/frame.h"
#include "select/registry.h"
#include "select/scorers.h"

namespace condense {
namespace {

class LayeredPolicy final : public Policy {
 public:
  LayeredPolicy(LayerRange early_layers, const FrameOptions& early, const FrameOptions& late)
      : early_layers_(early_layers),
        early_window_(early.window),
        early_(early, std::make_unique<MeanScorer>()),
        late_(late, std::make_unique<MeanScorer>()) {}

  int least_rows() const override { return early_window_ + 1; }

  void Select(const LayerQuery& query, Selection& selection) const override {
    const bool early = early_layers_.Contains(query.layer);
    (early ? early_ : late_).Select(query, selection);
    if (query.n_visible > early_window_ || selection.dense) return;
    selection.Reset();
    selection.reason = Fallback::kShort;
  }

 private:
  const LayerRange early_layers_;
  const int early_window_;
  const FramePolicy early_, late_;
};

std::unique_ptr<Policy> Make(KeyReader& reader) {
  const LayerRange early_layers = reader.Layers("early");
  const FrameOptions late = ReadFrame(reader);
  FrameOptions early = late;
  early.by_layer.clear();
  for (const LayerFrame& frame : late.by_layer) {
    if (frame.layers.first <= early_layers.last && frame.layers.last >= early_layers.first) {
      reader.Fail("layers " + PrintLayers(early_layers) +
                  " are early: early_window is theirs, "
                  "keys of layers " +
                  PrintLayers(frame.layers) + " would have no effect there");
    }
  }
  early.window = static_cast<int>(reader.Int("early_window", 1, 1'000'000));
  if (early.window < late.window) {
    reader.Fail("early_window=" + std::to_string(early.window) + " is less than window=" +
                std::to_string(late.window) + ": early layers read the wider one");
  }
  return std::make_unique<LayeredPolicy>(early_layers, early, late);
}

CONDENSE_REGISTER_POLICY(
    layered,
    PolicyInfo{
        .name = "layered",
        .summary = "blocks by their mean key, with a wide window in the early layers",
        .source = "arXiv 2602.06317, first version",
        .label = "the late window does not adapt to repetition: no tokens are seen here, and "
                 "the original's measure was not published",
        .keys = FrameKeys({}, {{"early", "0-3", "layers with the wide window: 0-3, 7 or none"},
                               {"early_window", "1024",
                                "rows: the window of those layers; tokens counts the "
                                "others'; 1 to 1000000"}}),
        .make = Make});

}  // namespace
}  // namespace condense
