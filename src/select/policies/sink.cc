// `sink`: the first s visible rows and the last W (StreamingLLM, arXiv 2309.17453). The original
// numbers positions inside its rolling cache, so rows are rotated anew at every step; here every
// row keeps its true position, and nothing is evicted.
#include "select/frame.h"
#include "select/registry.h"

namespace condense {
namespace {

CONDENSE_REGISTER_POLICY(
    sink,
    PolicyInfo{.name = "sink",
               .summary = "the first s rows and the last W",
               .source = "StreamingLLM, arXiv 2309.17453",
               .label = "true positions: the original re-rotates keys to positions in its cache",
               .keys = FixedRowsKeys("sink", 4),
               .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                 return std::make_unique<FramePolicy>(ReadFixedRows(reader, "sink"), nullptr);
               }});

}  // namespace
}  // namespace condense
