// Tables of `condense bench` for a terminal.
#pragma once

#include <span>
#include <string>

#include "bench/record.h"

namespace condense {

// A heading, a row an arm, and the yardstick below it. Columns that no arm fills are left out.
std::string BenchTable(std::span<const BenchRecord> records, int width);

// "52.3 µs"
std::string FormatNs(double ns);

}  // namespace condense
