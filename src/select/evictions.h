// What an evicting policy remembers of one sequence in one layer: which rows it has kept, and what
// each of them is worth, after each of the last steps. Keyed by the number of visible rows, like
// all of SequenceMemory, so that rows taken back take what they did with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace condense {

class Evictions {
 public:
  // As many steps can be taken back; after more, rows are evicted anew at the next step.
  static constexpr size_t kMaxSteps = 32;

  struct Step {
    int n_visible = 0;
    int prompt_row = -1;         // the newest query of the prompt whose votes are in
    std::vector<uint16_t> seen;  // by block: the rows visible then
    int stride = 0;              // rows that a set has room for
    std::vector<int> counts;     // [n_sets] rows kept
    std::vector<int32_t> rows;   // [n_sets, stride] ascending
    // [n_sets, stride] What they are worth: by the steps, and by the prompt that these followed.
    std::vector<float> scores, prompt;

    std::span<const int32_t> Rows(int set) const {
      return {rows.data() + static_cast<size_t>(set) * stride, static_cast<size_t>(counts[set])};
    }
    std::span<const float> Scores(int set) const { return Floats(scores, set); }
    std::span<const float> Prompt(int set) const { return Floats(prompt, set); }

   private:
    std::span<const float> Floats(const std::vector<float>& values, int set) const {
      return {values.data() + static_cast<size_t>(set) * stride, static_cast<size_t>(counts[set])};
    }
  };

  // The last step, or null.
  const Step* last() const { return n_ == 0 ? nullptr : &steps_[n_ - 1]; }
  // Steps that saw more than n_visible rows are forgotten.
  void TakeBack(int n_visible);
  // A new last step, of n_sets sets of at most `stride` rows, to be filled in. Buffers of steps
  // that are gone serve again: it allocates only where they are too small.
  Step& Push(int n_visible, int n_sets, int stride);
  size_t bytes() const;

 private:
  std::vector<Step> steps_;  // the first n_ count, ascending n_visible
  size_t n_ = 0;
};

}  // namespace condense
