// Keys that a trained gate makes of runs of a sequence's rows, of one stream in one layer. A run is
// known by its rows and by how often their blocks were written: what changes is made again, and
// sequences side by side keep each their own, but for a run that begins in a common prefix and ends
// past it, which they make anew by turns. What a key is made of, and how, is its owner's business.
// Rows that change unseen are noticed by the BlockIndex, which owns this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace condense {

class GateIndex {
 public:
  // Runs of `size` rows, one each `stride`, that fit into n_rows.
  static int RunsIn(int n_rows, int size, int stride) {
    return n_rows < size ? 0 : (n_rows - size) / stride + 1;
  }

  void MarkWritten(int row);
  void Forget();

  struct Request {
    uint64_t owner = 0;             // whose keys: of another owner none are kept
    int size = 0, stride = 0;       // a run: rows[i · stride, i · stride + size)
    int n_kv_heads = 0, dim = 0;    // of a run's keys
    std::span<const int32_t> rows;  // that the sequence sees, ascending
    int n_rows = 0;                 // of the cache
  };
  // Finds the runs that fit into the rows. Those of missing() must be made by the caller, now.
  void Find(const Request& request);

  int n_runs() const { return static_cast<int>(slots_.size()); }
  std::span<const int32_t> missing() const { return missing_; }
  // [dim]
  float* Key(int run, int kv_head) {
    return keys_.data() + (static_cast<size_t>(slots_[run]) * n_kv_heads_ + kv_head) * dim_;
  }

  size_t bytes() const;
  uint64_t n_made() const { return n_made_; }  // runs

 private:
  void Resize(const Request& request);
  // Of a run's rows as they are now.
  uint64_t StateOf(std::span<const int32_t> rows) const;

  uint64_t owner_ = 0;
  int size_ = 0, stride_ = 0, n_kv_heads_ = 0, dim_ = 0;
  std::vector<uint32_t> written_;     // by block: how often
  std::vector<int32_t> slot_of_row_;  // by a run's first row; -1: none
  std::vector<uint64_t> states_;      // by slot
  std::vector<float> keys_;           // [slots, n_kv_heads, dim]
  std::vector<int32_t> slots_;        // by run of the last Find
  std::vector<int32_t> missing_;      // runs of the last Find
  uint64_t n_made_ = 0;
};

}  // namespace condense
