#include "decode/lookup.h"

#include <algorithm>

namespace condense {

uint64_t NgramIndex::Key(const Token* last) {
  uint64_t key = 0;
  for (int i = 0; i < kLeast; ++i)
    key = (key ^ static_cast<uint32_t>(last[-i])) * 0x9E3779B97F4A7C15ull;
  return key;
}

void NgramIndex::Append(Token token) {
  tokens_.push_back(token);
  previous_.push_back(-1);
  if (tokens_.size() < kLeast) return;
  const auto end = static_cast<int32_t>(tokens_.size()) - 1;
  const auto [entry, is_new] = latest_.try_emplace(Key(&tokens_[end]), end);
  if (is_new) return;
  previous_[end] = entry->second;
  entry->second = end;
}

void NgramIndex::Clear() {
  tokens_.clear();
  previous_.clear();
  latest_.clear();
}

// Tokens up to and with `end` that equal the history's last ones; keys may collide.
int NgramIndex::MatchLength(int end) const {
  int length = 0;
  const int last = static_cast<int>(tokens_.size()) - 1;
  while (length < kMost && length <= end && tokens_[end - length] == tokens_[last - length])
    ++length;
  return length;
}

std::vector<Token> NgramIndex::Continuation(int n) const {
  if (tokens_.empty()) return {};
  int best_end = -1, best_length = kLeast - 1, n_left = kCandidates;
  for (int end = previous_.back(); end >= 0 && n_left > 0; end = previous_[end], --n_left) {
    const int length = MatchLength(end);
    if (length <= best_length) continue;
    best_end = end;
    best_length = length;
    if (length == kMost) break;
  }
  std::vector<Token> tokens;
  if (best_end < 0) return tokens;
  const size_t n_known = tokens_.size();
  for (size_t at = best_end + 1; static_cast<int>(tokens.size()) < n; ++at)
    tokens.push_back(at < n_known ? tokens_[at] : tokens[at - n_known]);
  return tokens;
}

Result<std::vector<Token>> LookupDraft::Propose(Session& session, std::span<const Token> history,
                                                int n) {
  const std::span<const Token> known = index_.history();
  const bool goes_on =
      known.size() <= history.size() && std::equal(known.begin(), known.end(), history.begin());
  if (!goes_on) index_.Clear();
  for (size_t i = index_.history().size(); i < history.size(); ++i) index_.Append(history[i]);
  std::vector<Token> tokens = index_.Continuation(n);
  // Nothing follows the end of a text.
  const auto end = std::find_if(tokens.begin(), tokens.end(), [&](Token token) {
    return session.model().IsEndOfGeneration(token);
  });
  if (end != tokens.end()) tokens.erase(end + 1, tokens.end());
  return tokens;
}

}  // namespace condense
