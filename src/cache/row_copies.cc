#include "cache/row_copies.h"

#include <algorithm>
#include <bit>

#include "kernels/quantize.h"

namespace condense {
namespace {

// Fewer rows than this are copied by the calling thread alone: a step writes one.
constexpr size_t kParallelRows = 256;

bool Copies(KvType type, int dim) {
  return type != KvType::kQ8_0 && dim % static_cast<int>(kQ8BlockValues) == 0;
}

bool CopiesKeys(const KvView& view) { return Copies(view.k_type, view.k_dim); }
bool CopiesValues(const KvView& view) { return Copies(view.v_type, view.v_dim); }

}  // namespace

KvView RowCopies::TypesOf(const KvView& view) {
  KvView types = view;
  if (CopiesKeys(view)) types.k_type = KvType::kQ8_0;
  if (CopiesValues(view)) types.v_type = KvType::kQ8_0;
  return types;
}

void RowCopies::MarkWritten(int row) {
  const size_t block = static_cast<size_t>(row) / kBlockRows;
  if (block < current_.size()) RemoveRow(current_, row);
}

void RowCopies::Forget() { std::fill(current_.begin(), current_.end(), 0); }

// Rows of another shape start anew. An eighth of room is kept to grow into: hosts grow their views
// by 256 rows or so.
void RowCopies::Resize(const KvView& view) {
  const KvView types = TypesOf(view);
  const size_t k_bytes = CopiesKeys(view) ? types.KeyBytes() : 0;
  const size_t v_bytes = CopiesValues(view) ? types.ValueBytes() : 0;
  if (n_kv_heads_ != view.n_kv_heads || k_bytes_ != k_bytes || v_bytes_ != v_bytes) {
    *this = RowCopies();
    n_kv_heads_ = view.n_kv_heads;
    k_bytes_ = k_bytes;
    v_bytes_ = v_bytes;
  }
  const size_t n_blocks = BlocksFor(view.n_rows);
  if (n_blocks <= current_.size()) return;
  const size_t room = n_blocks + n_blocks / 8;
  const auto grow = [&](auto& values, size_t a_block) {
    if (values.capacity() < n_blocks * a_block) values.reserve(room * a_block);
    values.resize(n_blocks * a_block);
  };
  grow(k_, kBlockRows * n_kv_heads_ * k_bytes);
  grow(v_, kBlockRows * n_kv_heads_ * v_bytes);
  grow(current_, 1);
}

void RowCopies::Copy(const KvView& view, int row) {
  for (int h = 0; h < n_kv_heads_; ++h) {
    const size_t at = static_cast<size_t>(row) * n_kv_heads_ + h;
    if (k_bytes_ > 0)
      QuantizeRow(view.KeyRow(h, row), view.k_type, view.k_dim, k_.data() + at * k_bytes_);
    if (v_bytes_ > 0)
      QuantizeRow(view.ValueRow(h, row), view.v_type, view.v_dim, v_.data() + at * v_bytes_);
  }
}

void RowCopies::Refresh(const KvView& view, std::span<const uint16_t> visible, int n_threads) {
  Resize(view);
  if (k_bytes_ == 0 && v_bytes_ == 0) return;
  missing_.clear();
  ForFourWords(visible, [&](size_t b, uint64_t four) {
    for (; four != 0; four >>= kBlockRows, ++b) {
      uint32_t rows = static_cast<uint16_t>(four) & ~uint32_t{current_[b]};
      for (; rows != 0; rows &= rows - 1)
        missing_.push_back(static_cast<int32_t>(b * kBlockRows) + std::countr_zero(rows));
    }
  });
  const bool parallel = n_threads > 1 && missing_.size() >= kParallelRows;
#pragma omp parallel for num_threads(n_threads) if (parallel) schedule(static)
  for (int32_t row : missing_) Copy(view, row);
  for (int32_t row : missing_) AddRow(current_, row);
  n_copied_ += missing_.size();
}

KvView RowCopies::View(const KvView& view) const {
  KvView copies = TypesOf(view);
  if (k_bytes_ > 0) {
    copies.k = k_.data();
    copies.k_head = k_bytes_;
    copies.k_row = k_bytes_ * n_kv_heads_;
  }
  if (v_bytes_ > 0) {
    copies.v = v_.data();
    copies.v_head = v_bytes_;
    copies.v_row = v_bytes_ * n_kv_heads_;
  }
  return copies;
}

size_t RowCopies::bytes() const {
  return k_.capacity() + v_.capacity() + sizeof(uint16_t) * current_.capacity() +
         sizeof(int32_t) * missing_.capacity();
}

}  // namespace condense
