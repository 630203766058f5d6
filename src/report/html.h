// Text for people inside HTML: escaping, figures with units, and model output made visible. Knows
// no record and no layout.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace condense::report {

// Safe in element content and in quoted attributes. Control characters, direction overrides and
// bytes that are no valid UTF-8 become \xNN or \u{NNNN}.
std::string EscapeHtml(std::string_view text);

// A policy spec as code that may break after commas.
std::string SpecHtml(std::string_view spec);

// Shown when the summary is asked for.
std::string Folded(std::string_view summary, std::string_view html);

// A list of notes (HTML each) under a name for those who do not see it; empty without notes.
std::string NotesList(const char* name, const std::vector<std::string>& notes);

// JavaScript that may stand inside <script>: "</script" and "<!--" are split by a backslash, which
// means the same inside strings and regular expressions, the only places where they can be.
std::string EscapeScript(std::string_view script);

// JSON that may stand inside <script>: every '<' as a JSON escape.
std::string EscapeJsonInScript(std::string_view json);

// Model output with its whitespace visible: line ends and tabs always, spaces where they would be
// lost (two or more, at a line's end) or everywhere. The signs are CSS content: copied text is the
// original.
enum class Spaces { kLost, kAll };
std::string VisibleText(std::string_view bytes, Spaces spaces);

inline constexpr const char* kNoFigure = "–";

std::string FormatPercent(double share);        // 0.976 → "97.6 %"
std::string FormatSignedPercent(double share);  // 0.004 → "+0.4 %"
std::string FormatNumber(double value);         // three significant digits
std::string FormatCount(double value);          // "7,639"
std::string FormatBytes(double bytes);          // "1.25 GB", powers of 1000
std::string FormatTimes(double ratio);          // "2.41×"

// Shortest decimal that reads back as the same double.
std::string RawNumber(double value);

}  // namespace condense::report
