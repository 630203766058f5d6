#include "decode/dense_rows.h"

namespace condense {

Result<std::vector<Logits>> StepRowsDense(Session& session, const Plugin& plugin,
                                          std::span<const Token> tokens, int n_logits) {
  plugin.SetDense(true);
  Result<std::vector<Logits>> rows = session.StepRows(tokens, n_logits);
  plugin.SetDense(false);
  return rows;
}

}  // namespace condense
