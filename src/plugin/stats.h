// The closing line: what the attention of a context read, when the context is freed.
#pragma once

namespace condense {

// Where CONDENSE_STATS asks for it: 1 logs a line; a path appends one JSON object to that file.
// Says so in any case when cache writes came but no attention did (`wrote_cache`): flash attention
// is then off.
void CloseStats(bool wrote_cache);

// Says once that cache writes come but no attention does.
void WarnIdle();

}  // namespace condense
