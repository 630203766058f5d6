#include "select/evictions.h"

#include <algorithm>

#include "base/bytes_of.h"

namespace condense {

void Evictions::TakeBack(int n_visible) {
  while (n_ > 0 && steps_[n_ - 1].n_visible > n_visible) --n_;
}

Evictions::Step& Evictions::Push(int n_visible, int n_sets, int stride) {
  if (n_ == kMaxSteps) {  // the oldest one's buffers are taken over
    std::rotate(steps_.begin(), steps_.begin() + 1, steps_.end());
    --n_;
  } else if (n_ == steps_.size()) {
    steps_.emplace_back();
  }
  Step& step = steps_[n_++];
  step.n_visible = n_visible;
  const size_t n_rows = static_cast<size_t>(n_sets) * stride;
  if (step.rows.capacity() < n_rows) {
    // Room to grow: a share of the visible rows is more rows from step to step.
    const size_t room = n_rows + std::max<size_t>(n_rows / 8, 64 * static_cast<size_t>(n_sets));
    step.rows.reserve(room);
    step.scores.reserve(room);
    step.prompt.reserve(room);
  }
  step.stride = stride;
  step.counts.assign(n_sets, 0);
  step.rows.resize(n_rows);
  step.scores.resize(n_rows);
  step.prompt.resize(n_rows);
  return step;
}

size_t Evictions::bytes() const {
  size_t n = BytesOf(steps_);
  for (const Step& step : steps_) {
    n += BytesOf(step.seen) + BytesOf(step.counts) + BytesOf(step.rows) + BytesOf(step.scores) +
         BytesOf(step.prompt);
  }
  return n;
}

}  // namespace condense
