#include "cache/cluster_index.h"

#include <algorithm>
#include <bit>

#include "base/bytes_of.h"
#include "base/result.h"
#include "base/row_mask.h"
#include "cache/code_index.h"
#include "kernels/key_clusters.h"
#include "kernels/summary.h"

namespace condense {
namespace {

static_assert(kTileBlocks == 16);

void MakeHead(const KvView& view, const ClusterPiece& piece, int kv_head,
              ClusterPiece::Head& head) {
  std::vector<uint16_t> rows;
  rows.reserve(piece.n_rows);
  for (int s = 0; s < piece.n_segments; ++s) {
    for (uint64_t word = piece.rows[s]; word != 0; word &= word - 1)
      rows.push_back(static_cast<uint16_t>(s * kSegmentRows + std::countr_zero(word)));
  }
  ClusterArgs args;
  args.k = view.KeyRow(kv_head, piece.first_row());
  args.k_stride = view.k_row;
  args.k_type = view.k_type;
  args.dim = view.k_dim;
  args.rows = rows;
  KeyClusters clusters = ClusterKeys(args);
  head.n_clusters = clusters.n_clusters();
  head.tiles.assign(static_cast<size_t>(head.n_tiles()) * kTileBlocks * view.k_dim, 0);
  for (int c = 0; c < head.n_clusters; ++c) {
    uint16_t* tile =
        head.tiles.data() + static_cast<size_t>(c / kTileBlocks) * kTileBlocks * view.k_dim;
    StoreInTile(clusters.means.data() + static_cast<size_t>(c) * view.k_dim, view.k_dim, tile,
                c % kTileBlocks);
  }
  head.begin = std::move(clusters.begin);
  head.members = std::move(clusters.members);
}

}  // namespace

int ClusterPiece::first_row() const { return first_segment * kSegmentRows; }

size_t ClusterPiece::bytes() const {
  size_t n = sizeof(*this) + BytesOf(heads);
  for (const Head& head : heads) {
    n += BytesOf(head.tiles) + BytesOf(head.begin) + BytesOf(head.members);
  }
  return n;
}

void ClusterIndex::MarkWritten(int row) {
  const int segment = row / kSegmentRows;
  const uint64_t bit = uint64_t{1} << (row % kSegmentRows);
  const auto knows = [&](const std::unique_ptr<ClusterPiece>& piece) {
    const int s = segment - piece->first_segment;
    return s >= 0 && s < piece->n_segments && (piece->rows[s] & bit) != 0;
  };
  if (std::erase_if(all_, knows) > 0) current_.clear();
}

void ClusterIndex::Forget() {
  all_.clear();
  current_.clear();
}

ClusterPiece& ClusterIndex::FindOrMake(const ClusterPiece& wanted) {
  for (size_t i = 0; i < all_.size(); ++i, ++next_) {
    if (next_ >= all_.size()) next_ = 0;
    ClusterPiece& piece = *all_[next_];
    if (piece.first_segment == wanted.first_segment && piece.n_segments == wanted.n_segments &&
        piece.rows == wanted.rows) {
      ++next_;
      return piece;
    }
  }
  all_.push_back(std::make_unique<ClusterPiece>(wanted));
  missing_.push_back(all_.back().get());
  return *all_.back();
}

void ClusterIndex::Refresh(const KvView& view, const Request& request) {
  CONDENSE_CHECK(!request.segments.empty());
  ++clock_;
  current_.clear();
  const int end = request.segments.back() + 1;
  size_t next = 0;  // in request.segments
  for (int first = 0; first < end;) {
    ClusterPiece wanted;
    wanted.first_segment = first;
    wanted.n_segments = ClusterPiece::kMostSegments;
    while (first % wanted.n_segments != 0 || first + wanted.n_segments > end)
      wanted.n_segments /= 2;
    first += wanted.n_segments;
    for (; next < request.segments.size() && request.segments[next] < first; ++next) {
      const int segment = request.segments[next];
      const uint64_t rows = SegmentRows(request.visible, segment);
      wanted.rows[segment - wanted.first_segment] = rows;
      wanted.n_rows += CountBits(rows);
    }
    if (wanted.n_rows == 0) continue;
    ClusterPiece& piece = FindOrMake(wanted);
    piece.last_used = clock_;
    current_.push_back(&piece);
  }
  const int n_jobs = static_cast<int>(missing_.size()) * view.n_kv_heads;
  for (ClusterPiece* piece : missing_) {
    piece->heads.resize(view.n_kv_heads);
    n_clustered_ += piece->n_rows;
  }
#pragma omp parallel for num_threads(request.n_threads) if (request.n_threads > 1 && n_jobs > 1) \
    schedule(dynamic, 1)
  for (int i = 0; i < n_jobs; ++i) {
    ClusterPiece& piece = *missing_[i / view.n_kv_heads];
    MakeHead(view, piece, i % view.n_kv_heads, piece.heads[i % view.n_kv_heads]);
  }
  missing_.clear();
  if (n_jobs > 0) DropUnused(view.n_rows);
}

// Pieces whose place larger ones took, and those of sequences that are gone, are kept for those who
// come back to them while there is room: four times the rows of the cache.
void ClusterIndex::DropUnused(int n_rows) {
  int64_t n_held = 0;
  for (const auto& piece : all_) n_held += piece->n_rows;
  while (n_held > int64_t{4} * n_rows) {
    const auto oldest =
        std::min_element(all_.begin(), all_.end(),
                         [](const auto& a, const auto& b) { return a->last_used < b->last_used; });
    if ((*oldest)->last_used == clock_) return;
    n_held -= (*oldest)->n_rows;
    all_.erase(oldest);
  }
}

size_t ClusterIndex::bytes() const {
  size_t n = BytesOf(all_) + BytesOf(current_) + BytesOf(missing_);
  for (const auto& piece : all_) n += piece->bytes();
  return n;
}

}  // namespace condense
