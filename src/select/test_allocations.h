// Counts the test program's calls of operator new. Its .cc replaces the global operators.
#pragma once

namespace condense {

long Allocations();

}  // namespace condense
