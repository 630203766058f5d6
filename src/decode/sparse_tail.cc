#include "decode/sparse_tail.h"

namespace condense {

Status CheckRowsCanBeRemoved(const Model& model) {
  if (!model.has_recurrent_state()) return Status();
  return Error{"model '" + model.Description() +
               "' keeps recurrent state, so that rows cannot be removed and decoded again: decode "
               "it with --mode sparse or --policy dense"};
}

Result<Logits> SparseTail::StepSparse(Token token) {
  CONDENSE_CHECK(!owed_);
  Result<Logits> logits = session_.Step(token);
  if (logits.ok()) {
    tokens_.push_back(token);
    return logits;
  }
  // A stopped call may have left its row behind.
  const Status cut = session_.CutBack(session_.position());
  return Error{cut.ok() ? logits.error() : logits.error() + "; " + cut.error()};
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
  plugin_.SetDense(true);  // for a call of one row; several are dense in any case
  Result<std::vector<Logits>> rows = session_.StepRows(tokens, static_cast<int>(more.size()));
  plugin_.SetDense(false);
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
