#include "cache/gate_index.h"

#include <algorithm>

#include "base/bytes_of.h"
#include "base/row_mask.h"

namespace condense {
namespace {

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

}  // namespace

void GateIndex::MarkWritten(int row) {
  const size_t block = static_cast<size_t>(row) / kBlockRows;
  if (block < written_.size()) ++written_[block];
}

void GateIndex::Forget() {
  std::fill(slot_of_row_.begin(), slot_of_row_.end(), -1);
  states_.clear();
}

void GateIndex::Resize(const Request& request) {
  if (owner_ != request.owner || size_ != request.size || stride_ != request.stride ||
      n_kv_heads_ != request.n_kv_heads || dim_ != request.dim) {
    Forget();
    owner_ = request.owner;
    size_ = request.size;
    stride_ = request.stride;
    n_kv_heads_ = request.n_kv_heads;
    dim_ = request.dim;
  }
  if (request.n_rows > static_cast<int>(slot_of_row_.size())) {
    slot_of_row_.resize(request.n_rows, -1);
    written_.resize(BlocksFor(request.n_rows), 0);
  }
  // Room for one sequence that fills the cache; several that end in it, twice as much. More slots
  // are left over from sequences that are gone.
  const size_t room = RunsIn(static_cast<int>(slot_of_row_.size()), stride_, stride_) + 1;
  if (states_.size() > 2 * room) Forget();
  if (states_.capacity() < room) {
    states_.reserve(room);
    keys_.reserve(room * n_kv_heads_ * dim_);
    slots_.reserve(room);
    missing_.reserve(room);
  }
}

uint64_t GateIndex::StateOf(std::span<const int32_t> rows) const {
  const int first = rows.front(), last = rows.back();
  uint64_t state = Mix(Mix(1, first), last), times = 0;
  if (last - first + 1 == static_cast<int>(rows.size())) {
    for (int b = first / kBlockRows; b <= last / kBlockRows; ++b) times += written_[b];
    return Mix(state, times);
  }
  int block = -1;
  for (int32_t row : rows) {
    state = Mix(state, row);
    if (row / kBlockRows == block) continue;
    block = row / kBlockRows;
    times += written_[block];
  }
  return Mix(state, times);
}

void GateIndex::Find(const Request& request) {
  Resize(request);
  const int n_runs = RunsIn(static_cast<int>(request.rows.size()), size_, stride_);
  slots_.clear();
  missing_.clear();
  for (int run = 0; run < n_runs; ++run) {
    const auto rows = request.rows.subspan(static_cast<size_t>(run) * stride_, size_);
    const uint64_t state = StateOf(rows);
    int32_t& slot = slot_of_row_[rows.front()];
    if (slot < 0) {
      slot = static_cast<int32_t>(states_.size());
      states_.push_back(~state);
    }
    slots_.push_back(slot);
    if (states_[slot] == state) continue;
    states_[slot] = state;
    missing_.push_back(run);
  }
  keys_.resize(states_.size() * n_kv_heads_ * dim_);
  n_made_ += missing_.size();
}

size_t GateIndex::bytes() const {
  return BytesOf(written_) + BytesOf(states_) + BytesOf(keys_) + BytesOf(slot_of_row_) +
         BytesOf(slots_) + BytesOf(missing_);
}

}  // namespace condense
