#include "app/prefixes.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/output.h"

namespace condense {
namespace {

// A prompt chosen for the user is no shorter: `condense` leaves no row out below.
constexpr int64_t kLeastPrompt = 1024;

int64_t CountPieces(std::span<const std::vector<Token>> texts, int64_t n_tokens) {
  int64_t n = 0;
  for (const auto& text : texts) n += static_cast<int64_t>(text.size()) / n_tokens;
  return n;
}

// The longest prompt of which there are enough pieces; below kLeastPrompt: there is none.
int64_t LongestPrompt(std::span<const std::vector<Token>> texts, const PrefixCut& cut) {
  int64_t most = 0;
  for (const auto& text : texts) most = std::max<int64_t>(most, static_cast<int64_t>(text.size()));
  if (cut.n_positions > 0) most = std::min<int64_t>(most, cut.n_positions - cut.add_bos);
  if (cut.n_context > 0) most = std::min<int64_t>(most, cut.n_context - cut.add_bos);
  int64_t enough = 0, too_long = most - cut.n_generate + 1;
  while (too_long - enough > 1) {
    const int64_t tried = (enough + too_long) / 2;
    (CountPieces(texts, tried + cut.n_generate) >= cut.n_prefixes ? enough : too_long) = tried;
  }
  return enough;
}

}  // namespace

Result<std::vector<Prefix>> CutPrefixes(std::span<const std::vector<Token>> texts,
                                        const PrefixCut& cut) {
  int64_t n_tokens = 0;
  for (const auto& text : texts) n_tokens += static_cast<int64_t>(text.size());
  const bool chosen = cut.prompt_tokens == 0;
  const int64_t n_prompt = chosen ? LongestPrompt(texts, cut) : cut.prompt_tokens;
  const int64_t n_piece = n_prompt + cut.n_generate;
  const Status fits =
      CheckLength(n_prompt + cut.add_bos, cut.n_generate, cut.n_context, cut.n_positions);
  if (!fits.ok()) return Error{fits.error()};
  const int64_t n_pieces = CountPieces(texts, n_piece);
  if (n_pieces < cut.n_prefixes || (chosen && n_prompt < kLeastPrompt)) {
    return Error{fmt::format(
        "the text's {} tokens do not give {} prefixes of {} tokens and -n {} more each: give more "
        "text with -f, fewer --prefixes, a smaller -n{}",
        FormatCount(n_tokens), cut.n_prefixes, FormatCount(chosen ? kLeastPrompt : n_prompt),
        cut.n_generate, chosen ? ", or --prompt-tokens" : " or fewer --prompt-tokens")};
  }
  std::vector<Prefix> prefixes;
  int64_t piece = 0;
  for (size_t t = 0; t < texts.size(); ++t) {
    const auto n = static_cast<int64_t>(texts[t].size()) / n_piece;
    for (int64_t i = 0; i < n; ++i, ++piece) {
      const auto n_taken = static_cast<int64_t>(prefixes.size());
      if (n_taken == cut.n_prefixes || piece != n_taken * n_pieces / cut.n_prefixes) continue;
      Prefix prefix{t, i * n_piece, {}, {}};
      const auto begin = texts[t].begin() + prefix.offset;
      if (cut.add_bos) prefix.prompt.push_back(cut.bos);
      prefix.prompt.insert(prefix.prompt.end(), begin, begin + n_prompt);
      prefix.continuation.assign(begin + n_prompt, begin + n_piece);
      prefixes.push_back(std::move(prefix));
    }
  }
  return prefixes;
}

}  // namespace condense
