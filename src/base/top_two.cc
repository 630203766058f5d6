#include "base/top_two.h"

#include "base/result.h"

namespace condense {

TopTwo FindTopTwo(std::span<const float> logits) {
  CONDENSE_CHECK(logits.size() >= 2);
  size_t first = logits[1] > logits[0] ? 1 : 0;
  float second = logits[1 - first];
  for (size_t i = 2; i < logits.size(); ++i) {
    if (logits[i] > logits[first]) {
      second = logits[first];
      first = i;
    } else if (logits[i] > second) {
      second = logits[i];
    }
  }
  return {static_cast<int>(first), static_cast<double>(logits[first]) - second};
}

}  // namespace condense
