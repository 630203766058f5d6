#include "attention/layer_cache.h"

#include <algorithm>

#include "base/bytes_of.h"

namespace condense {
namespace {

constexpr size_t kMaxSequences = 32;

size_t SequenceBytes(const SequenceState& sequence) {
  const SequenceMemory& memory = sequence.memory;
  size_t n = sizeof(sequence) + BytesOf(sequence.visible) + BytesOf(sequence.written) +
             BytesOf(memory.choices) + BytesOf(memory.own) + BytesOf(memory.values.sum) +
             memory.queries.bytes() + memory.evictions.bytes();
  for (const SequenceMemory::Choice& choice : memory.choices)
    n += BytesOf(choice.k_masks) + BytesOf(choice.query);
  return n;
}

}  // namespace

void StreamCache::MarkWritten(int row) {
  writes_seen = true;
  written.push_back(row);
  index.MarkWritten(row);
  codes.MarkWritten(row);
  copies.MarkWritten(row);
  prompts.MarkWritten(row);
  calls.MarkWritten(row);
  for (SequenceState& sequence : sequences) {
    if (const auto block = static_cast<size_t>(row / kBlockRows); block >= sequence.written.size())
      sequence.written.resize(block + 1, 0);
    AddRow(sequence.written, row);
    if (static_cast<size_t>(row / kBlockRows) >= sequence.visible.size()) continue;
    if (!HasRow(sequence.visible, row)) continue;
    RemoveRow(sequence.visible, row);
    --sequence.n_visible;
  }
}

void StreamCache::ForgetChoices() { sequences.clear(); }

SequenceState& StreamCache::Sequence(std::span<const uint16_t> visible, int n_visible,
                                     bool* continued) {
  SequenceState* best = nullptr;
  int best_common = 0;
  for (SequenceState& sequence : sequences) {
    const int common = CountCommonRows(sequence.visible, visible);
    if (common > best_common) {
      best = &sequence;
      best_common = common;
    }
  }
  const bool keeps_all = best != nullptr && best_common == best->n_visible;
  *continued = keeps_all && best_common + CountCommonRows(best->written, visible) == n_visible;
  if (best != nullptr && !keeps_all) {
    // Rows of the nearest sequence are gone: it was rolled back, or this is a fork. Work on a copy.
    sequences.push_back(*best);
    best = &sequences.back();
  }
  if (best == nullptr) {
    sequences.emplace_back();
    best = &sequences.back();
  }
  SequenceMemory& memory = best->memory;
  if (memory.first_sparse > best_common) {
    memory = SequenceMemory();
  } else {
    std::erase_if(memory.choices,
                  [&](const SequenceMemory::Choice& c) { return c.n_visible > best_common; });
    memory.evictions.TakeBack(best_common);
  }
  best->visible.assign(visible.begin(), visible.end());
  best->n_visible = n_visible;
  std::fill(best->written.begin(), best->written.end(), 0);
  best->last_used = ++clock;
  if (sequences.size() > kMaxSequences) {
    auto oldest = std::min_element(
        sequences.begin(), sequences.end(),
        [](const SequenceState& a, const SequenceState& b) { return a.last_used < b.last_used; });
    const uint64_t used = best->last_used;
    sequences.erase(oldest);
    for (SequenceState& sequence : sequences) {
      if (sequence.last_used == used) best = &sequence;
    }
  }
  return *best;
}

StreamCache& LayerCache::Stream(int stream) {
  if (static_cast<size_t>(stream) >= streams.size()) streams.resize(stream + 1);
  return streams[stream];
}

void LayerCache::MarkWritten(int stream, int row) { Stream(stream).MarkWritten(row); }

void LayerCache::Forget() {
  for (StreamCache& stream : streams) {
    stream.index.Forget();
    stream.codes.Forget();
    stream.copies.Forget();
    stream.prompts.Forget();
    stream.calls.Forget();
    stream.ForgetChoices();
  }
}

bool LayerCache::has_summaries() const {
  return std::any_of(streams.begin(), streams.end(),
                     [](const StreamCache& stream) { return stream.index.has_summaries(); });
}

size_t LayerCache::code_bytes() const {
  size_t n = 0;
  for (const StreamCache& stream : streams) n += stream.codes.bytes() + stream.copies.bytes();
  return n;
}

size_t LayerCache::bytes() const {
  size_t n = 0;
  for (const StreamCache& stream : streams) {
    n += sizeof(stream) + stream.index.bytes() + stream.codes.bytes() + stream.copies.bytes() +
         stream.prompts.bytes() + stream.calls.bytes() + BytesOf(stream.written);
    for (const SequenceState& sequence : stream.sequences) n += SequenceBytes(sequence);
  }
  return n;
}

uint64_t LayerCache::rebuilds() const {
  uint64_t n = 0;
  for (const StreamCache& stream : streams) n += stream.index.rebuilds();
  return n;
}

}  // namespace condense
