// The place of the first difference is found in the token ids (in the pieces where ids are
// missing), so that it does not rest on whether the lists begin with the shared first token; T_div
// is the record's.
#include "report/parting.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/html.h"

namespace condense::report {
namespace {

struct Side {
  std::vector<std::string> pieces;
  std::vector<int64_t> tokens;
};

// The first token is the shared prefill's: one list may hold it and the other not.
void DropShared(Side& side, const Json& prompt, size_t n_other) {
  const auto first = Number(prompt, "first_token");
  if (side.tokens.size() != n_other + 1 || !first || side.tokens.front() != *first) return;
  side.tokens.erase(side.tokens.begin());
  if (!side.pieces.empty()) side.pieces.erase(side.pieces.begin());
}

template <typename T>
size_t CommonPrefix(const std::vector<T>& a, const std::vector<T>& b) {
  const size_t n = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin();
}

std::string Concat(const std::vector<std::string>& pieces, size_t begin, size_t end) {
  std::string out;
  for (size_t i = begin; i < std::min(end, pieces.size()); ++i) out += pieces[i];
  return out;
}

std::string SideHtml(const char* name, const Side& side, size_t parts_at, bool parts) {
  std::string out =
      fmt::format("<div class=\"side\"><h4>{}</h4><div class=\"text\" lang=\"und\">", name);
  out += VisibleText(Concat(side.pieces, 0, parts_at), Spaces::kLost);
  if (parts && parts_at < side.pieces.size()) {
    const std::string& piece = side.pieces[parts_at];
    out += fmt::format(
        "<mark><span class=\"aloud\">first difference: </span>{}</mark>",
        piece.empty() ? "<span class=\"esc\">empty</span>" : VisibleText(piece, Spaces::kAll));
    out += fmt::format(
        "<span class=\"after\">{}</span>",
        VisibleText(Concat(side.pieces, parts_at + 1, side.pieces.size()), Spaces::kLost));
  } else if (parts) {
    out +=
        "<mark><span class=\"aloud\">first difference: </span><span class=\"esc\">ends "
        "here</span></mark>";
  }
  return out + "</div></div>\n";
}

// The dense margin at the decision where the texts part: up to there both were fed the same tokens,
// so the teacher-forced step is the autonomous one.
std::string MarginAt(const RunView& view, const std::string& policy, double decision) {
  for (const Json& step : view.records->steps) {
    if (Text(step, "policy") != policy || Text(step, "teacher") != "greedy") continue;
    if (Number(step, "decision") != decision) continue;
    const auto margin = Number(step, "margin_dense"), delta = Number(step, "delta");
    if (!margin) return "";
    std::string out =
        fmt::format(" There dense preferred its token by {} logits", FormatNumber(*margin));
    if (delta) out += fmt::format(", and the largest logit change was {}", FormatNumber(*delta));
    return out + ".";
  }
  return "";
}

std::string Article(const RunView& view, const PolicyRow& row) {
  const Json& line = row.Main();
  Side dense{Pieces(view.prompt(), "dense_text"), Tokens(view.prompt(), "dense_tokens")};
  Side sparse{Pieces(line, "autonomous_text"), Tokens(line, "autonomous_tokens")};
  std::string out = fmt::format(
      "<article><h3>{}{}</h3>\n",
      row.is_sparse() ? fmt::format("<b class=\"key c{}\">{}</b> ", row.colour + 1, row.key) : "",
      SpecHtml(row.policy));
  if (dense.pieces.empty() || sparse.pieces.empty())
    return out + "<p>The texts of this run are not in the records.</p></article>\n";

  const bool by_tokens = !dense.tokens.empty() && !sparse.tokens.empty();
  if (by_tokens) {
    DropShared(dense, view.prompt(), sparse.tokens.size());
    DropShared(sparse, view.prompt(), dense.tokens.size());
  }
  const size_t parts_at = by_tokens ? CommonPrefix(dense.tokens, sparse.tokens)
                                    : CommonPrefix(dense.pieces, sparse.pieces);
  const size_t n = std::min(dense.pieces.size(), sparse.pieces.size());
  const bool parts = parts_at < n;

  const auto t_div = Number(line, "t_div"), t_sig = Number(line, "t_sig");
  out += "<p>";
  if (t_div) {
    out += fmt::format("First difference at decision <strong>{}</strong> of {}.",
                       FormatCount(*t_div), FormatCount(view.Horizon()));
    out += MarginAt(view, row.policy, *t_div);
    out += t_sig ? fmt::format(" First difference beyond rounding (T_sig): decision {}.",
                               FormatCount(*t_sig))
           : line.contains("t_sig") ? " No difference beyond rounding (T_sig survives)."
                                    : "";
  } else if (line.contains("t_div")) {
    out += fmt::format("The same text through all {} decisions.", FormatCount(view.Horizon()));
  } else {
    out += "T_div is not in the records.";
  }
  // Decision k is at index k of a list that begins with the shared first token, else at k - 1.
  if (line.contains("t_div") &&
      (t_div ? !parts || (parts_at != *t_div && parts_at + 1 != *t_div) : parts))
    out += " <strong>The recorded tokens disagree with this.</strong>";
  out += "</p>\n<div class=\"sides\">";
  out += SideHtml("Dense", dense, parts_at, parts);
  out += SideHtml(row.policy == "control" ? "Control" : "Sparse", sparse, parts_at, parts);
  return out + "</div></article>\n";
}

}  // namespace

std::string PartingHtml(const RunView& view) {
  std::string out;
  for (const PolicyRow& row : view.rows)
    if (row.policy != "dense") out += Article(view, row);
  return out.empty() ? "<p>No policy was finished.</p>\n" : out;
}

}  // namespace condense::report
