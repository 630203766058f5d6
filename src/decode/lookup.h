// The draft source `lookup`: what followed the last tokens where they stood before in the context
// (prompt lookup decoding; llama.cpp's n-gram speculation does alike). The longest earlier match is
// taken, of equals the latest. Costs no step of the model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "decode/draft.h"

namespace condense {

// Where the last tokens of a history stood before. Grows with the history.
class NgramIndex {
 public:
  // Fewer tokens that agree are no match: two recur by chance all over.
  static constexpr int kLeast = 3;
  // More than this many make no better match.
  static constexpr int kMost = 16;
  // Earlier places that are compared, the latest first.
  static constexpr int kCandidates = 64;

  void Append(Token token);
  void Clear();
  std::span<const Token> history() const { return tokens_; }

  // Up to `n` tokens that followed the longest earlier match of the history's end; none where there
  // is no match. A match that runs into the history's end is read on, so that a loop goes on.
  std::vector<Token> Continuation(int n) const;

 private:
  static uint64_t Key(const Token* last);  // of the kLeast tokens that end there
  int MatchLength(int end) const;

  std::vector<Token> tokens_;
  std::vector<int32_t> previous_;  // by token: where the kLeast tokens ending here ended before; -1
  std::unordered_map<uint64_t, int32_t> latest_;  // by key: where they ended last
};

class LookupDraft final : public DraftSource {
 public:
  std::string name() const override { return "lookup"; }
  bool takes_steps() const override { return false; }
  Result<std::vector<Token>> Propose(Session& session, std::span<const Token> history,
                                     int n) override;

 private:
  NgramIndex index_;
};

}  // namespace condense
