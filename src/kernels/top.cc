#include "kernels/top.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/top.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>
//

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/result.h"
#include "kernels/append-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// Integers in the scores' order; -0 equals +0.
HWY_INLINE hn::Vec<DI32> KeysOf(VF scores) {
  const DI32 di;
  const auto bits = hn::BitCast(di, hn::Add(scores, hn::Zero(DF())));  // -0 + 0 = +0
  // Of a negative number every bit but the sign flips.
  return hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(di, 0x7FFFFFFF)));
}

// Keys in (low, high], among which the last that is taken is looked for.
struct Bracket {
  int32_t low, high;
};

// What one pass over the scores finds out. Candidates: the keys within a bracket, copied so that
// the search reads them alone; those that find no room are counted but not kept.
constexpr size_t kMostCandidates = 4096;
struct Keys {
  int32_t least = std::numeric_limits<int32_t>::max();
  int32_t most = std::numeric_limits<int32_t>::min();
  bool ordered = true;  // no score is NaN
  size_t n_above = 0;   // keys above the bracket
  size_t n_candidates = 0;
  HWY_ALIGN int32_t candidates[kMostCandidates + 16];
};

// Makes the keys; least and most without a bracket, the rest of Keys with one.
template <bool kBracket>
HWY_INLINE void MakeKeys(const float* HWY_RESTRICT scores, size_t n, Bracket bracket,
                         int32_t* HWY_RESTRICT keys, Keys& found) {
  const DF d;
  const DI32 di;
  auto least = hn::Set(di, found.least), most = hn::Set(di, found.most), above = hn::Zero(di);
  const auto low = hn::Set(di, bracket.low), high = hn::Set(di, bracket.high);
  MF ordered = hn::Eq(hn::Zero(d), hn::Zero(d));
  size_t n_candidates = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF score = hn::LoadU(d, scores + i);
    ordered = hn::And(ordered, hn::Eq(score, score));
    const auto key = KeysOf(score);
    hn::StoreU(key, di, keys + i);
    if (kBracket) {
      const auto over = hn::Gt(key, high);
      above = hn::Sub(above, hn::VecFromMask(di, over));
      const size_t room = std::min(n_candidates, kMostCandidates);
      n_candidates += AppendWhere(key, hn::AndNot(over, hn::Gt(key, low)), found.candidates + room);
    } else {
      least = hn::Min(least, key);
      most = hn::Max(most, key);
    }
  }
  found.least = hn::GetLane(hn::MinOfLanes(di, least));
  found.most = hn::GetLane(hn::MaxOfLanes(di, most));
  found.n_above = static_cast<size_t>(hn::GetLane(hn::SumOfLanes(di, above)));
  found.ordered = hn::AllTrue(d, ordered);
  for (; i < n; ++i) {
    found.ordered = found.ordered && scores[i] == scores[i];
    const int32_t key = keys[i] = hn::GetLane(KeysOf(hn::Set(d, scores[i])));
    found.least = std::min(found.least, key);
    found.most = std::max(found.most, key);
    if (key > bracket.high) ++found.n_above;
    if (key <= bracket.low || key > bracket.high) continue;
    found.candidates[std::min(n_candidates, kMostCandidates)] = key;
    ++n_candidates;
  }
  found.n_candidates = n_candidates;
}

// Keys above `bound`.
HWY_INLINE size_t CountAbove(const int32_t* HWY_RESTRICT keys, size_t n, int32_t bound) {
  const DI32 di;
  const auto above = hn::Set(di, bound);
  auto count0 = hn::Zero(di), count1 = count0;
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    count0 = hn::Sub(count0, hn::VecFromMask(di, hn::Gt(hn::LoadU(di, keys + i), above)));
    count1 = hn::Sub(count1, hn::VecFromMask(di, hn::Gt(hn::LoadU(di, keys + i + kLanes), above)));
  }
  size_t count = static_cast<size_t>(hn::GetLane(hn::SumOfLanes(di, hn::Add(count0, count1))));
  for (; i < n; ++i) count += keys[i] > bound;
  return count;
}

// Narrows (low, high], more than `most` keys being above the former and fewer than `fewest` above
// the latter, to a single key in between that does neither, or, where ties leave none, to
// neighbours.
HWY_INLINE Bracket Narrow(const int32_t* keys, size_t n, int64_t low, int64_t high, size_t fewest,
                          size_t most) {
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    const size_t count = CountAbove(keys, n, static_cast<int32_t>(middle));
    if (count >= fewest) low = middle;
    if (count <= most) high = middle;
  }
  return {static_cast<int32_t>(low), static_cast<int32_t>(high)};
}

// A bracket that very probably holds the wanted-th best key and few others, from a sample spread
// evenly over the scores: its rank there, give or take three standard deviations and a little.
constexpr size_t kFewestSampled = 2048, kSample = 1024;
HWY_INLINE Bracket SampleBracket(const float* scores, size_t n, size_t wanted) {
  const DI32 di;
  // The longer the scores, the narrower the bracket must be for its keys to find room.
  constexpr size_t kMost = 4 * kSample;
  const size_t n_sample = n < 16 * kSample ? kSample : kMost;
  HWY_ALIGN int32_t keys[kMost];
  HWY_ALIGN float sample[kMost];
  const size_t step = n / n_sample;
  for (size_t i = 0; i < n_sample; ++i) sample[i] = scores[i * step];
  auto least = hn::Set(di, std::numeric_limits<int32_t>::max());
  auto most = hn::Set(di, std::numeric_limits<int32_t>::min());
  for (size_t i = 0; i < n_sample; i += kLanes) {
    const auto key = KeysOf(hn::Load(DF(), sample + i));
    hn::Store(key, di, keys + i);
    least = hn::Min(least, key);
    most = hn::Max(most, key);
  }
  const int64_t low = int64_t{hn::GetLane(hn::MinOfLanes(di, least))} - 1;
  const int64_t high = hn::GetLane(hn::MaxOfLanes(di, most));
  const double share = static_cast<double>(wanted) / static_cast<double>(n);
  const double rank = share * static_cast<double>(n_sample);
  const size_t slack = 2 + static_cast<size_t>(3 * std::sqrt(rank * (1 - share)));
  const size_t middle = static_cast<size_t>(rank);
  // Any key from `slack` to 4/3 of it away serves.
  const size_t wide = slack + slack / 3;
  Bracket bracket{std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
  if (middle + wide < n_sample)
    bracket.low = Narrow(keys, n_sample, low, high, middle + slack, middle + wide).low;
  if (middle > wide)
    bracket.high = Narrow(keys, n_sample, low, high, middle - wide, middle - slack).high;
  return bracket;
}

// The keys above `below` are taken, of those equal to below + 1 only the first `ties`, if they are
// not all of them.
struct Cut {
  int64_t below;
  size_t ties;
  bool all_ties;
};

// Where the keys above some bound are `wanted` at least.
struct CutSearch {
  int64_t below, top;       // the wanted-th best key lies in (below, top]
  size_t above, above_top;  // keys above either
};

// Looks at `middle`, in (below, top). count_above(bound): how many keys are above it.
template <class CountAboveBound>
HWY_INLINE void Probe(const CountAboveBound& count_above, size_t wanted, int64_t middle,
                      CutSearch& search) {
  const size_t count = count_above(static_cast<int32_t>(middle));
  if (count >= wanted) {
    search.below = middle;
    search.above = count;
  } else {
    search.top = middle;
    search.above_top = count;
  }
}

template <class CountAboveBound>
HWY_INLINE Cut FindCutBy(const CountAboveBound& count_above, size_t wanted, CutSearch search) {
  for (bool halve = false; search.above != wanted && search.below + 1 < search.top;
       halve = !halve) {
    // By turns where the counts at the ends suggest that it lies, and in the middle.
    const int64_t room = search.top - search.below;
    int64_t step = room / 2;
    if (!halve) {
      const double share = static_cast<double>(search.above - wanted) /
                           static_cast<double>(search.above - search.above_top);
      step =
          std::clamp<int64_t>(static_cast<int64_t>(share * static_cast<double>(room)), 1, room - 1);
    }
    Probe(count_above, wanted, search.below + step, search);
  }
  if (search.above == wanted) return {search.below, 0, true};
  return {search.below, wanted - count_above(static_cast<int32_t>(search.below + 1)), false};
}

// The cut for `wanted` of n keys, 0 < wanted <= n. The wanted-th best key lies in (below, top]; at
// most n keys are above `below`.
HWY_INLINE Cut FindCut(const int32_t* keys, size_t n, size_t wanted, int64_t below, int64_t top) {
  return FindCutBy([&](int32_t bound) HWY_ATTR { return CountAbove(keys, n, bound); }, wanted,
                   {below, top, n, 0});
}

// Positions of the keys above the cut, ascending.
HWY_INLINE size_t Take(const int32_t* keys, size_t n, Cut cut, int* best) {
  const DI32 di;
  const int32_t lowest = static_cast<int32_t>(cut.below + 1);
  size_t taken = 0;
  const auto take = [&](size_t i) {
    if (!cut.all_ties && keys[i] == lowest) {
      if (cut.ties == 0) return;
      --cut.ties;
    }
    best[taken++] = static_cast<int>(i);
  };
  const auto bound = hn::Set(di, static_cast<int32_t>(cut.below));
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    uint64_t bits = 0;
    for (size_t at = 0; at < 64; at += kLanes) {
      uint8_t bytes[8] = {};
      hn::StoreMaskBits(di, hn::Gt(hn::LoadU(di, keys + i + at), bound), bytes);
      uint64_t lanes;
      std::memcpy(&lanes, bytes, sizeof(lanes));
      bits |= lanes << at;
    }
    for (; bits != 0; bits &= bits - 1) take(i + static_cast<size_t>(std::countr_zero(bits)));
  }
  for (; i < n; ++i) {
    if (keys[i] > cut.below) take(i);
  }
  return taken;
}

int TopScores(const float* scores, int n_scores, int n_best, int32_t* keys, int* best) {
  const size_t n = static_cast<size_t>(n_scores);
  const size_t wanted = std::min(static_cast<size_t>(std::max(n_best, 0)), n);
  Keys found;
  if (n >= kFewestSampled && wanted != n && wanted != 0) {
    const Bracket bracket = SampleBracket(scores, n, wanted);
    MakeKeys<true>(scores, n, bracket, keys, found);
    if (!found.ordered) return -1;
    const bool holds = found.n_above < wanted && wanted <= found.n_above + found.n_candidates;
    Cut cut;
    if (holds && found.n_candidates <= kMostCandidates) {
      cut = FindCut(found.candidates, found.n_candidates, wanted - found.n_above, bracket.low,
                    bracket.high);
    } else if (holds) {
      cut = FindCut(keys, n, wanted, bracket.low, bracket.high);
    } else {
      cut = FindCut(keys, n, wanted, std::numeric_limits<int32_t>::min(),
                    std::numeric_limits<int32_t>::max());
    }
    return static_cast<int>(Take(keys, n, cut, best));
  }
  MakeKeys<false>(scores, n, {}, keys, found);
  if (!found.ordered) return -1;
  if (wanted == n) std::iota(best, best + n, 0);
  if (wanted == n || wanted == 0) return static_cast<int>(wanted);
  const Cut cut = FindCut(keys, n, wanted, int64_t{found.least} - 1, found.most);
  return static_cast<int>(Take(keys, n, cut, best));
}

// The bits of scores that are not below 0 are integers in their order, those of others are below 0.
HWY_INLINE const int32_t* BitsOf(const ScoreList& list) {
  return reinterpret_cast<const int32_t*>(list.scores);
}

// least, most: those of the keys too.
HWY_INLINE void Widen(const int32_t* keys, int n, int32_t& least, int32_t& most) {
  const DI32 di;
  auto low = hn::Set(di, least), high = hn::Set(di, most);
  int i = 0;
  for (; i + static_cast<int>(kLanes) <= n; i += static_cast<int>(kLanes)) {
    const auto key = hn::LoadU(di, keys + i);
    low = hn::Min(low, key);
    high = hn::Max(high, key);
  }
  least = hn::GetLane(hn::MinOfLanes(di, low));
  most = hn::GetLane(hn::MaxOfLanes(di, high));
  for (; i < n; ++i) least = std::min(least, keys[i]), most = std::max(most, keys[i]);
}

// Half an octave: how far from the guess the second look goes.
constexpr int64_t kHalfOctave = 1 << 22;

TopCut TopOfLists(const ScoreList* lists, size_t n_lists, size_t wanted, float guess,
                  int* n_taken) {
  size_t n = 0;
  int32_t least = std::numeric_limits<int32_t>::max(), most = 0;
  for (size_t i = 0; i < n_lists; ++i) {
    n += static_cast<size_t>(lists[i].n);
    Widen(BitsOf(lists[i]), lists[i].n, least, most);
  }
  const auto count_above = [&](int32_t bound) HWY_ATTR {
    size_t count = 0;
    for (size_t i = 0; i < n_lists; ++i)
      count += CountAbove(BitsOf(lists[i]), static_cast<size_t>(lists[i].n), bound);
    return count;
  };
  CutSearch search{std::max(int64_t{least} - 1, int64_t{-1}), most, n, 0};
  int64_t at = std::bit_cast<int32_t>(guess);
  for (int look = 0; look < 2 && guess > 0; ++look) {
    if (search.above == wanted || at <= search.below || at >= search.top) break;
    Probe(count_above, wanted, at, search);
    at += at == search.below ? kHalfOctave : -kHalfOctave;
  }
  const Cut cut = FindCutBy(count_above, wanted, search);
  const int32_t lowest = static_cast<int32_t>(cut.below + 1);
  size_t ties = cut.ties;
  for (size_t i = 0; i < n_lists; ++i) {
    const size_t size = static_cast<size_t>(lists[i].n);
    const size_t reach = CountAbove(BitsOf(lists[i]), size, static_cast<int32_t>(cut.below));
    n_taken[i] = static_cast<int>(reach);
    if (cut.all_ties) continue;
    const size_t above = CountAbove(BitsOf(lists[i]), size, lowest);
    const size_t equal = std::min(ties, reach - above);
    ties -= equal;
    n_taken[i] = static_cast<int>(above + equal);
  }
  return {std::bit_cast<float>(lowest), cut.all_ties};
}

void TakeTop(const ScoreList& list, TopCut cut, size_t n_taken, int32_t* ids) {
  const DF d;
  const size_t n = static_cast<size_t>(list.n);
  const VF bound = hn::Set(d, cut.least);
  size_t taken = 0, i = 0;
  for (; cut.all_ties && i + kLanes <= n; i += kLanes) {
    const auto reach = hn::Ge(hn::LoadU(d, list.scores + i), bound);
    taken +=
        AppendWhere(hn::LoadU(DI32(), list.ids + i), hn::RebindMask(DI32(), reach), ids + taken);
  }
  size_t ties = n;
  if (!cut.all_ties)
    ties = n_taken - CountAbove(BitsOf(list), n, std::bit_cast<int32_t>(cut.least));
  for (; i < n; ++i) {
    if (list.scores[i] < cut.least) continue;
    if (list.scores[i] == cut.least) {
      if (ties == 0) continue;
      --ties;
    }
    ids[taken++] = list.ids[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace condense {
namespace {

HWY_EXPORT(TopScores);
HWY_EXPORT(TopOfLists);
HWY_EXPORT(TakeTop);

}  // namespace

int TopScores(const float* scores, int n, int n_best, int32_t* keys, int* best) {
  return HWY_DYNAMIC_DISPATCH(TopScores)(scores, n, n_best, keys, best);
}

TopCut TopOfLists(const ScoreList* lists, int n_lists, int n_best, float guess, int* n_taken) {
  CONDENSE_CHECK(n_lists > 0 && n_best > 0);
  return HWY_DYNAMIC_DISPATCH(TopOfLists)(lists, static_cast<size_t>(n_lists),
                                          static_cast<size_t>(n_best), guess, n_taken);
}

void TakeTop(const ScoreList& list, TopCut cut, int n_taken, int32_t* ids) {
  HWY_DYNAMIC_DISPATCH(TakeTop)(list, cut, static_cast<size_t>(n_taken), ids);
}

}  // namespace condense
#endif  // HWY_ONCE
