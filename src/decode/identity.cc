#include "decode/identity.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/clock.h"

namespace condense {
namespace {

// The largest difference; 0 where the bits are equal.
float Difference(Logits a, Logits b) {
  if (std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) return 0;
  float largest = std::numeric_limits<float>::min();  // of zeros of either sign
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

Status TakeSingles(Session& session, std::span<const Token> tokens, IdentityProbe& probe,
                   std::vector<std::vector<float>>& singles) {
  for (Token token : tokens) {
    const Clock::time_point start = Clock::now();
    const Result<Logits> logits = session.Step(token);
    if (!logits.ok()) return Error{logits.error()};
    const double seconds = SecondsSince(start);
    // The first step sets up what later ones have.
    if (probe.seconds.empty()) probe.seconds.push_back(seconds);
    probe.seconds[0] = std::min(probe.seconds[0], seconds);
    singles.emplace_back(logits->begin(), logits->end());
  }
  return Status();
}

}  // namespace

std::vector<Token> ProbeTokens(std::span<const Token> prompt, int n) {
  std::vector<Token> tokens;
  for (int i = 0; i < n; ++i)
    tokens.push_back(prompt[prompt.size() - 1 - static_cast<size_t>(i) % prompt.size()]);
  return tokens;
}

Result<IdentityProbe> ProbeIdentity(Session& session, std::span<const Token> tokens,
                                    const std::function<void(int n_done, int n_total)>& progress) {
  const int begin = session.position(), n = static_cast<int>(tokens.size());
  const auto report = [&](int n_rows) {  // singles, then calls of 2 .. n_rows
    if (progress) progress(n + n_rows * (n_rows + 1) / 2 - 1, n + n * (n + 1) / 2 - 1);
  };
  IdentityProbe probe;
  std::vector<std::vector<float>> singles;
  const Status taken = TakeSingles(session, tokens, probe, singles);
  Status cut = session.CutBack(begin);
  if (!taken.ok() || !cut.ok()) return Error{taken.ok() ? cut.error() : taken.error()};
  report(1);
  for (int n_rows = 2; n_rows <= n; ++n_rows) {
    const Clock::time_point start = Clock::now();
    const Result<std::vector<Logits>> rows = session.StepRows(tokens.first(n_rows));
    if (!rows.ok()) return Error{rows.error()};
    probe.seconds.push_back(SecondsSince(start));
    float largest = 0;
    for (int i = 0; i < n_rows; ++i)
      largest = std::max(largest, Difference(rows.value()[i], singles[i]));
    cut = session.CutBack(begin);
    if (!cut.ok()) return Error{cut.error()};
    if (largest == 0 && probe.equal_rows == n_rows - 1) probe.equal_rows = n_rows;
    probe.largest_difference = std::max(probe.largest_difference, largest);
    probe.probed_rows = n_rows;
    report(n_rows);
    if (largest > 0 && probe.equal_rows > 1) break;
  }
  return probe;
}

}  // namespace condense
