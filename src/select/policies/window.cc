// `window`: the last W visible rows, as sliding-window attention reads them. No anchor by default:
// what happens to a model without its first rows is what StreamingLLM (2309.17453) reports for
// "window attention".
#include "select/frame.h"
#include "select/registry.h"

namespace condense {
namespace {

CONDENSE_REGISTER_POLICY(window,
                         PolicyInfo{.name = "window",
                                    .summary = "the last W rows",
                                    .source = "sliding-window attention, as in arXiv 2309.17453",
                                    .label = "partly visible blocks are read too",
                                    .keys = FixedRowsKeys("anchor", 0),
                                    .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                                      return std::make_unique<FramePolicy>(
                                          ReadFixedRows(reader, "anchor"), nullptr);
                                    }});

}  // namespace
}  // namespace condense
