// The table of include/condense/condense.h.
#pragma once

#include <condense/condense.h>

namespace condense {

const condense_api* CondenseApi();

}  // namespace condense
