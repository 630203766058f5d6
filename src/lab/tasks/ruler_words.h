// Words of which the keys of RULER's needles are made: adjective-noun.
#pragma once

#include <string>
#include <vector>

namespace condense {

const std::vector<std::string>& RulerAdjectives();
const std::vector<std::string>& RulerNouns();

}  // namespace condense
