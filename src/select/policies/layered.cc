// `layered`: `mean` with a wide window in the early layers and a narrow one in the others, after
// the first version of arXiv 2602.06317. There the late window lies between 64 and 256 rows by how
// repetitive the recent text is; its measure was not published, and this place sees keys, not
// tokens: the late window is the key `window`, and does not adapt. Which layers are early was not
// published either: `early` names them. With no more rows than the early window every layer reads
// all.
#include <memory>
#include <string>
#include <utility>

#include "select/frame.h"
#include "select/registry.h"
#include "select/scorers.h"

namespace condense {
namespace {

std::unique_ptr<Policy> Make(KeyReader& reader) {
  const LayerRange early_layers = reader.Layers("early");
  FrameOptions options = ReadFrame(reader);
  for (const LayerFrame& frame : options.by_layer) {
    if (frame.layers.first <= early_layers.last && frame.layers.last >= early_layers.first) {
      reader.Fail("layers " + PrintLayers(early_layers) +
                  " are early: early_window is theirs, "
                  "keys of layers " +
                  PrintLayers(frame.layers) + " would have no effect there");
    }
  }
  const int early_window = static_cast<int>(reader.Int("early_window", 1, 1'000'000));
  if (early_window < options.window) {
    reader.Fail("early_window=" + std::to_string(early_window) + " is less than window=" +
                std::to_string(options.window) + ": early layers read the wider one");
  }
  options.least_rows = early_window + 1;
  LayerFrame early{.layers = early_layers, .options = options};
  early.options.window = early_window;
  early.options.by_layer.clear();
  options.by_layer.push_back(std::move(early));
  return std::make_unique<FramePolicy>(options, std::make_unique<MeanScorer>());
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
