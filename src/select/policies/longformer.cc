// `longformer`: the sliding window and the global rows of Longformer (arXiv 2004.05150), as a
// decoding query sees them: the last W rows and the first `anchor` ones. The original's 512 rows
// lie on both sides of a row, so 256 before it; it chooses its global rows by the task, dilates
// the window in some heads, and its models were trained with the pattern.
#include "select/frame.h"
#include "select/registry.h"

namespace condense {
namespace {

CONDENSE_REGISTER_POLICY(
    longformer,
    PolicyInfo{.name = "longformer",
               .summary = "a sliding window and global rows, the first ones",
               .source = "Longformer, arXiv 2004.05150",
               .label = "pattern only: its models were trained with it; no dilated heads",
               .keys = FixedRowsKeys("anchor", 1, 256),
               .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                 return std::make_unique<FramePolicy>(ReadFixedRows(reader, "anchor"), nullptr);
               }});

}  // namespace
}  // namespace condense
