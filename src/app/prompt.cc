#include "app/prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "app/output.h"
#include "base/whole_file.h"

namespace condense {

Result<std::string> ReadText(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return Error{fmt::format("text '{}' is a directory", path)};
  Result<std::string> bytes = ReadWholeFile(path);
  if (!bytes.ok()) return Error{fmt::format("cannot read text '{}': {}", path, bytes.error())};
  if (bytes->empty()) return Error{fmt::format("text '{}' is empty", path)};
  return bytes;
}

bool IsUtf8(const std::string& bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xC2 ? 0
                          : lead < 0xE0 ? 2
                          : lead < 0xF0 ? 3
                          : lead < 0xF5 ? 4
                                        : 0;
    if (length == 0 || i + length > bytes.size()) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((static_cast<unsigned char>(bytes[i + k]) & 0xC0) != 0x80) return false;
    }
    // Overlong forms, surrogates, and beyond the last code point.
    if (length > 2) {
      const auto second = static_cast<unsigned char>(bytes[i + 1]);
      if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
          (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) {
        return false;
      }
    }
    i += length;
  }
  return true;
}

Status CheckLength(int64_t n_prompt, int n_generate, int n_context, int n_positions) {
  const int64_t n_needed = n_prompt + n_generate;
  if (n_context > 0 && n_needed > n_context) {
    return Error{fmt::format(
        "the prompt has {} tokens and -n {} more make {}, but the context takes {}: pass -c {} "
        "or a shorter prompt",
        FormatCount(n_prompt), n_generate, FormatCount(n_needed), FormatCount(n_context),
        n_needed)};
  }
  if (n_positions > 0 && n_context == 0 && n_needed > n_positions) {
    return Error{fmt::format(
        "the prompt has {} tokens and -n {} more make {}, but the model takes {}: pass a shorter "
        "prompt (`compare`: --prompt-tokens {}), or -c {} to go beyond what it was trained for",
        FormatCount(n_prompt), n_generate, FormatCount(n_needed), FormatCount(n_positions),
        std::max<int64_t>(1, n_positions - n_generate - 1), n_needed)};
  }
  return Status();
}

Result<CutText> CutTokens(const std::vector<Token>& text, const TextCut& cut) {
  const auto n_text = static_cast<int64_t>(text.size());
  if (n_text == 0) return Error{"the prompt is empty: give a text with -f or -p"};
  if (cut.offset >= n_text) {
    return Error{fmt::format("--offset {} leaves nothing of the text's {} tokens", cut.offset,
                             FormatCount(n_text))};
  }
  const int64_t n_left = n_text - cut.offset;
  CutText result;
  int64_t n_prompt = cut.prompt_tokens;
  if (n_prompt == 0) {
    // The text's last tokens become its continuation where they are a small part of it.
    result.held_back = n_left >= int64_t{4} * cut.n_generate;
    n_prompt = result.held_back ? n_left - cut.n_generate : n_left;
  } else if (n_prompt > n_left) {
    return Error{fmt::format("--prompt-tokens {} is more than the {} tokens that the text has{}",
                             n_prompt, FormatCount(n_left),
                             cut.offset > 0 ? fmt::format(" from token {} on", cut.offset) : "")};
  }
  const Status status =
      CheckLength(n_prompt + cut.add_bos, cut.n_generate, cut.n_context, cut.n_positions);
  if (!status.ok()) return Error{status.error()};
  if (cut.add_bos) result.prompt.push_back(cut.bos);
  const auto begin = text.begin() + cut.offset;
  result.prompt.insert(result.prompt.end(), begin, begin + n_prompt);
  if (n_left - n_prompt >= cut.n_generate) {
    result.continuation.assign(begin + n_prompt, begin + n_prompt + cut.n_generate);
  }
  return result;
}

}  // namespace condense
