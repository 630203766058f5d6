// A way of decoding one token after another, as a session's own Step is one: what differs is which
// steps read the whole cache. One file a way: guard.h, refresh.h.
#pragma once

#include "base/result.h"
#include "decode/session.h"

namespace condense {

class Stepper {
 public:
  virtual ~Stepper() = default;
  // Feeds one token and gives the logits that decide the next, valid until the next call; fails as
  // Session::Step does. After a stop the next call goes on where the failed one was.
  virtual Result<Logits> Step(Token token) = 0;
  // To be called after the session was rewound or cut by its owner, and before its owner decodes
  // with it: rows that were decoded ahead are removed, and what was noted of rows is dropped.
  virtual Status Reset() = 0;
};

}  // namespace condense
