// Escaping by code point: UTF-8 is decoded here, so that nothing undecoded reaches the page.
#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace condense::report {
namespace {

struct CodePoint {
  uint32_t value = 0;
  int n_bytes = 0;  // 0: the byte at this place begins no valid UTF-8 sequence
};

// Shortest form only, no surrogates, at most U+10FFFF (RFC 3629).
CodePoint Decode(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  const int n_bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || at + n_bytes > text.size()) return {};
  uint32_t value = lead & (0x7F >> n_bytes);
  for (int i = 1; i < n_bytes; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return {};
    value = value << 6 | (byte(at + i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[n_bytes] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
    return {};
  return {value, n_bytes};
}

// Characters that cannot be seen or that change how their neighbours are laid out. The joiners
// U+200C and U+200D stay: scripts and emoji need them.
bool IsInvisible(uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD || c == 0x200B || c == 0x200E ||
         c == 0x200F || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x2069) ||
         c == 0xFEFF || (c & 0xFFFE) == 0xFFFE || (c >= 0xFDD0 && c <= 0xFDEF);
}

void AppendEscaped(std::string& out, uint32_t c, std::string_view bytes) {
  switch (c) {
    case '&':
      out += "&amp;";
      break;
    case '<':
      out += "&lt;";
      break;
    case '>':
      out += "&gt;";
      break;
    case '"':
      out += "&quot;";
      break;
    case '\'':
      out += "&#39;";
      break;
    default:
      out += bytes;
  }
}

std::string Escape(uint32_t c) {
  return c < 0x80 ? fmt::format("\\x{:02x}", c) : fmt::format("\\u{{{:04x}}}", c);
}

std::string EscapeByte(char byte) { return fmt::format("\\x{:02x}", static_cast<uint8_t>(byte)); }

// Puts `first` where the first character of each `what` stood. With `any_case`, `what` is lower
// case.
std::string ReplaceFirst(std::string_view text, std::string_view what, std::string_view first,
                         bool any_case) {
  std::string out;
  out.reserve(text.size());
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  for (size_t at = 0; at < text.size();) {
    bool here = at + what.size() <= text.size();
    for (size_t i = 0; here && i < what.size(); ++i)
      here = (any_case ? lower(text[at + i]) : text[at + i]) == what[i];
    if (here) {
      out += first;
      out += text.substr(at + 1, what.size() - 1);
      at += what.size();
    } else {
      out += text[at++];
    }
  }
  return out;
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = Decode(text, at);
    if (c.n_bytes == 0) {
      out += EscapeByte(text[at++]);
      continue;
    }
    if (IsInvisible(c.value)) {
      out += Escape(c.value);
    } else {
      AppendEscaped(out, c.value, text.substr(at, c.n_bytes));
    }
    at += c.n_bytes;
  }
  return out;
}

std::string SpecHtml(std::string_view spec) {
  std::string out = "<code>";
  for (char c : EscapeHtml(spec)) {
    out += c;
    if (c == ',') out += "<wbr>";
  }
  return out + "</code>";
}

std::string Folded(std::string_view summary, std::string_view html) {
  return fmt::format("<details class=\"more\"><summary>{}</summary>\n{}</details>\n", summary,
                     html);
}

std::string NotesList(const char* name, const std::vector<std::string>& notes) {
  if (notes.empty()) return "";
  std::string out = fmt::format("<ul class=\"notes\" aria-label=\"{}\">\n", name);
  for (const std::string& note : notes) out += "<li>" + note + "</li>\n";
  return out + "</ul>\n";
}

std::string EscapeScript(std::string_view script) {
  return ReplaceFirst(ReplaceFirst(script, "</script", "<\\", true), "<!--", "<\\", false);
}

std::string EscapeJsonInScript(std::string_view json) {
  return ReplaceFirst(json, "<", "\\u003c", false);
}

std::string VisibleText(std::string_view bytes, Spaces spaces) {
  std::string out;
  out.reserve(bytes.size() * 2);
  const auto is_at = [&](size_t at, char c) { return at < bytes.size() && bytes[at] == c; };
  for (size_t at = 0; at < bytes.size();) {
    const CodePoint c = Decode(bytes, at);
    if (c.n_bytes == 0) {
      out += fmt::format("<span class=\"esc\">{}</span>", EscapeByte(bytes[at++]));
      continue;
    }
    if (c.value == '\n') {
      out += "<span class=\"nl\"></span>\n";
    } else if (c.value == '\t') {
      out += "<span class=\"tab\">\t</span>";
    } else if (c.value == ' ') {
      const bool lost = is_at(at + 1, ' ') || (at > 0 && bytes[at - 1] == ' ') ||
                        is_at(at + 1, '\n') || (at > 0 && bytes[at - 1] == '\n');
      out += spaces == Spaces::kAll || lost ? "<span class=\"sp\"> </span>" : " ";
    } else if (IsInvisible(c.value)) {
      out += fmt::format("<span class=\"esc\">{}</span>", Escape(c.value));
    } else if (c.value == 0xFFFD) {
      out += "<span class=\"esc\" title=\"bytes that are no valid UTF-8\">\xEF\xBF\xBD</span>";
    } else {
      AppendEscaped(out, c.value, bytes.substr(at, c.n_bytes));
    }
    at += c.n_bytes;
  }
  return out;
}

std::string FormatPercent(double share) {
  if (share == 1) return "100 %";
  if (share == 0) return "0 %";
  const double percent = 100 * share;
  if (share < 1 && percent >= 99.95) return "> 99.9 %";
  if (std::abs(percent) < 0.005) return fmt::format("{:.1e} %", percent);
  return fmt::format("{:.{}f} %", percent, std::abs(percent) < 10 ? 2 : 1);
}

std::string FormatSignedPercent(double share) {
  const double percent = 100 * share;
  if (percent == 0) return "0 %";
  if (std::abs(percent) >= 1000)
    return fmt::format("{}{} %", percent < 0 ? "−" : "+", FormatCount(std::abs(percent)));
  return fmt::format("{}{:.{}f} %", share < 0 ? "−" : "+", std::abs(percent),
                     std::abs(percent) < 10 ? 2 : 1);
}

std::string FormatNumber(double value) {
  if (value == 0) return "0";
  const double magnitude = std::abs(value);
  if (magnitude >= 1000 && magnitude < 1e6) return FormatCount(value);
  if (magnitude < 1e-4 || magnitude >= 1e6) return fmt::format("{:.2e}", value);
  const int decimals = std::max(0, 2 - static_cast<int>(std::floor(std::log10(magnitude))));
  return fmt::format("{:.{}f}", value, decimals);
}

std::string FormatCount(double value) {
  const std::string digits = fmt::format("{:.0f}", std::abs(value));
  std::string out = value < 0 ? "−" : "";
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string FormatBytes(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  while (bytes >= 1000 && unit < 5) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes)
                   : fmt::format("{:.{}f} {}", bytes,
                                 bytes < 10    ? 2
                                 : bytes < 100 ? 1
                                               : 0,
                                 units[unit]);
}

std::string FormatTimes(double ratio) { return fmt::format("{:.2f}×", ratio); }

std::string RawNumber(double value) { return fmt::format("{}", value); }

}  // namespace condense::report
