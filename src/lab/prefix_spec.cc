#include "lab/prefix_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.h"

namespace condense {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 30;

// Whether the model takes prompts of this length; 0 positions: it does not say.
Status CheckPositions(const LabModel& model, int n_rows, int64_t context, int n_generate) {
  const int n_positions = model.model().n_positions();
  if (n_positions == 0 || n_rows <= n_positions) return Status();
  return Error{fmt::format(
      "context {} and tokens {} make {} positions, but {} takes {}: give contexts up to {} in the "
      "spec, or another model",
      context, n_generate, n_rows, model.Name(), n_positions,
      std::max<int64_t>(1, n_positions - n_generate - 1))};
}

Status CheckText(const LabText& text, int64_t offset, int64_t context, int n_generate) {
  const auto n_tokens = static_cast<int64_t>(text.tokens.size());
  const int64_t n_needed = offset + context + n_generate;
  if (n_needed <= n_tokens) return Status();
  return Error{fmt::format(
      "text {} has {} tokens, but offset {}, context {} and tokens {} make {}: give a longer text, "
      "smaller offsets or shorter contexts in the spec",
      Quote(text.path), n_tokens, offset, context, n_generate, n_needed)};
}

}  // namespace

PrefixSpec ReadPrefixSpec(SpecReader& spec) {
  PrefixSpec prefixes;
  prefixes.texts = spec.Texts("texts");
  prefixes.offsets = spec.Ints("offsets", 0, kMaxTokens);
  prefixes.contexts = spec.Ints("contexts", 1, kMaxTokens);
  prefixes.n_generate = static_cast<int>(spec.Int("tokens", 2, 1 << 20));
  return prefixes;
}

Result<std::vector<LabPrefix>> PlanPrefixes(LabModel& model, const PrefixSpec& spec) {
  std::vector<LabPrefix> prefixes;
  std::map<std::string, std::string> named;  // texts as the spec names them, by parameter
  const bool add_bos = model.model().add_bos();
  for (const std::string& name : spec.texts) {
    const Result<const LabText*> text = model.Text(name);
    if (!text.ok()) return Error{text.error()};
    const std::string parameter = LabModel::TextParameter(*text.value());
    if (const auto [first, is_new] = named.emplace(parameter, name); !is_new) {
      return Error{fmt::format("texts holds {}, which is the same text as {}: leave one out",
                               Quote(name), Quote(first->second))};
    }
    const std::vector<Token>& tokens = text.value()->tokens;
    for (int64_t context : spec.contexts) {
      const int n_rows = static_cast<int>(context) + add_bos + spec.n_generate;
      Status fits = CheckPositions(model, n_rows, context, spec.n_generate);
      if (!fits.ok()) return Error{fits.error()};
      for (int64_t offset : spec.offsets) {
        fits = CheckText(*text.value(), offset, context, spec.n_generate);
        if (!fits.ok()) return Error{fits.error()};
        LabPrefix prefix;
        prefix.shared = model.Parameters();
        prefix.shared["text"] = parameter;
        prefix.shared["context"] = context;
        prefix.context = context;
        prefix.shared["offset"] = offset;
        prefix.text = name;
        prefix.text_sha256 = text.value()->sha256;
        prefix.offset = offset;
        prefix.n_rows = n_rows;
        if (add_bos) prefix.prompt.push_back(model.model().bos());
        const auto begin = tokens.begin() + offset;
        prefix.prompt.insert(prefix.prompt.end(), begin, begin + context);
        prefix.continuation.assign(begin + context, begin + context + spec.n_generate);
        prefixes.push_back(std::move(prefix));
      }
    }
  }
  return prefixes;
}

}  // namespace condense
