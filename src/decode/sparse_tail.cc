#include "decode/sparse_tail.h"

#include "decode/dense_rows.h"

namespace condense {

Result<Logits> SparseTail::StepSparse(Token token) {
  CONDENSE_CHECK(!owed_);
  Result<Logits> logits = session_.Step(token);
  if (logits.ok()) tokens_.push_back(token);
  return logits;
}

Result<std::vector<Logits>> SparseTail::StepDense(std::span<const Token> more) {
  CONDENSE_CHECK(!more.empty());
  if (!owed_ && n_rows() > 0) {
    const Status cut = session_.CutBack(session_.position() - n_rows());
    if (!cut.ok()) return Error{cut.error()};
    owed_ = true;
  }
  std::vector<Token> tokens = tokens_;
  tokens.insert(tokens.end(), more.begin(), more.end());
  Result<std::vector<Logits>> rows =
      StepRowsDense(session_, plugin_, tokens, static_cast<int>(more.size()));
  if (!rows.ok()) return rows;
  Clear();
  return rows;
}

Status SparseTail::RemoveLast() {
  const Status cut = session_.CutBack(session_.position() - 1);
  if (cut.ok() && !tokens_.empty()) tokens_.pop_back();
  return cut;
}

void SparseTail::Clear() {
  tokens_.clear();
  owed_ = false;
}

}  // namespace condense
