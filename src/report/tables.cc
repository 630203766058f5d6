// Tables as HTML. A figure that a record lacks is an en dash, never a zero.
#include "report/tables.h"

#include <fmt/format.h>

#include "report/html.h"

namespace condense::report {
namespace {

std::string Cell(const std::string& inner, int rows = 1, const char* kind = "") {
  return fmt::format("<td{}{}>{}</td>", rows > 1 ? fmt::format(" rowspan=\"{}\"", rows) : "", kind,
                     inner);
}

std::string PolicyHead(const PolicyRow& row, int rows) {
  const std::string swatch = row.is_sparse() ? KeyHtml(row) + " " : "";
  const char* remark = row.policy == "dense"     ? "<span class=\"interval\">the ceiling</span>"
                       : row.policy == "control" ? "<span class=\"interval\">the noise floor</span>"
                                                 : "";
  return fmt::format("<th scope=\"rowgroup\"{}>{}{}{}</th>",
                     rows > 1 ? fmt::format(" rowspan=\"{}\"", rows) : "", swatch,
                     SpecHtml(row.policy), remark);
}

// 1.004 → "+0.4 %"
std::string FormatChange(double ratio) { return FormatSignedPercent(ratio - 1); }

std::string Fallbacks(const Json& record) {
  const auto it = record.find("fallbacks");
  if (it == record.end() || it->is_null()) return kNoFigure;
  std::string out;
  for (const auto& [reason, count] : it->items()) {
    if (count == 0) continue;
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", EscapeHtml(reason),
                       FormatCount(count.get<double>()));
  }
  return out.empty() ? "none" : out;
}

// Rows a query head was meant to read, as a share of the rows it could see.
std::string Asked(const Json& record) {
  const auto nominal = Number(record, "nominal_rows_per_query_head");
  const auto visible = Number(record, "visible_rows");
  std::string out = FigureHtml(record, "nominal_rows_per_query_head", FormatCount);
  if (nominal && visible && *visible > 0)
    out +=
        fmt::format("<span class=\"interval\">{} of {}</span>", FormatPercent(*nominal / *visible),
                    FigureHtml(record, "visible_rows", FormatCount));
  return out;
}

std::string BytesRead(const Json& record) {
  const auto k = Number(record, "k_bytes"), v = Number(record, "v_bytes");
  const auto summary = Number(record, "summary_bytes");
  if (!k || !v) return kNoFigure;
  return fmt::format(
      "{}<span class=\"interval\">K {}, V {}</span><span class=\"interval\">summaries {}</span>",
      FormatBytes(*k + *v + summary.value_or(0)), FigureHtml(record, "k_bytes", FormatBytes),
      FigureHtml(record, "v_bytes", FormatBytes), FigureHtml(record, "summary_bytes", FormatBytes));
}

void Fact(std::string& out, const char* name, const std::string& html) {
  if (!html.empty()) out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", name, html);
}

std::string Count(const Json& record, const char* field) {
  const auto value = Number(record, field);
  return value ? FormatCount(*value) : "";
}

std::string Joined(std::initializer_list<std::string> parts, const char* between) {
  std::string out;
  for (const std::string& part : parts)
    if (!part.empty()) out += (out.empty() ? "" : between) + part;
  return out;
}

std::string Hash(const Json& record, const char* field) {
  const std::string hash = Text(record, field);
  if (hash.empty()) return "";
  return fmt::format("<code class=\"hash\" title=\"{0}\">{1}</code>", EscapeHtml(hash),
                     EscapeHtml(hash.substr(0, 12)));
}

std::string CommandLine(const Json& run) {
  const auto it = run.find("argv");
  if (it == run.end() || it->is_null()) return "";
  if (it->is_string()) return EscapeHtml(it->get<std::string>());
  std::string line;
  for (const Json& word : *it)
    line.append(line.empty() ? "" : " ")
        .append(word.is_string() ? word.get<std::string>() : word.dump());
  return EscapeHtml(line);
}

}  // namespace

std::string FigureHtml(const Json& record, const char* field, Format format) {
  const std::optional<double> value = Number(record, field);
  if (!value)
    return fmt::format("<span class=\"none\" title=\"not recorded\">{}</span>", kNoFigure);
  return fmt::format("<data class=\"{}\" value=\"{}\">{}</data>", field, RawNumber(*value),
                     format(*value));
}

std::string DivergenceHtml(const Json& record, const char* field) {
  const auto it = record.find(field);
  if (it == record.end()) return FigureHtml(record, field, FormatCount);
  if (!it->is_null()) return FigureHtml(record, field, FormatCount);
  return fmt::format("<span class=\"{} survives\">survives</span>", field);
}

std::string IntervalHtml(const Json& record, const char* low, const char* high, Format format) {
  if (!Number(record, low) || !Number(record, high)) return "";
  return fmt::format("<span class=\"interval\">{} to {}</span>", FigureHtml(record, low, format),
                     FigureHtml(record, high, format));
}

std::string KeyHtml(const PolicyRow& row) {
  if (!row.is_sparse()) return "";
  return fmt::format("<b class=\"key c{}\">{}</b>", row.colour + 1, row.key);
}

std::string PplChangeHtml(const Json& record) {
  return FigureHtml(record, "ppl_ratio", FormatChange) +
         IntervalHtml(record, "ppl_ratio_low", "ppl_ratio_high", FormatChange);
}

std::string FactsHtml(const RunView& view) {
  const Json &run = view.run(), &prompt = view.prompt();
  const auto code = [&](const char* field) {
    const std::string text = Text(run, field);
    return text.empty() ? "" : fmt::format("<code>{}</code>", EscapeHtml(text));
  };
  const auto plain = [&](const char* field) { return EscapeHtml(Text(run, field)); };
  const auto with = [](const std::string& value, const char* before, const char* after) {
    return value.empty() ? "" : fmt::format("{}{}{}", before, value, after);
  };
  std::string out = "<dl class=\"facts\">\n";
  Fact(out, "Model",
       Joined({code("model"), plain("model_desc"), with(Hash(run, "model_sha256"), "SHA-256 ", "")},
              ", "));
  Fact(out, "Shape",
       Joined({with(Count(run, "n_layers"), "", " layers"),
               with(Count(run, "n_query_heads"), "", " query heads"),
               with(Count(run, "n_kv_heads"), "", " KV heads"),
               with(Count(run, "head_dim"), "of ", "")},
              ", "));
  Fact(out, "Text",
       Joined({code("text_source"), with(Count(run, "offset"), "from token ", ""),
               with(Hash(run, "text_sha256"), "SHA-256 ", "")},
              ", "));
  Fact(out, "Tokens",
       Joined({with(Count(run, "n_prompt"), "prompt ", ""),
               with(Count(run, "n_generate"), "generated ", ""),
               with(view.Horizon() > 0 ? FormatCount(view.Horizon()) : "", "", " decisions"),
               with(Count(run, "context"), "context ", "")},
              ", "));
  Fact(out, "KV cache",
       Joined({with(code("kv_type_k"), "K ", ""), with(code("kv_type_v"), "V ", ""),
               with(Count(run, "kv_bytes_per_token"), "", " bytes a token")},
              ", "));
  if (const auto rate = Number(prompt, "prefill_tokens_per_second"))
    Fact(out, "Prefill",
         Joined({FormatNumber(*rate) + " tokens a second",
                 Number(prompt, "prefill_seconds")
                     ? FormatNumber(*Number(prompt, "prefill_seconds")) + " s"
                     : ""},
                ", "));
  Fact(out, "Machine",
       Joined({plain("cpu"), with(Count(run, "threads"), "", " threads"), plain("instruction_set")},
              ", "));
  Fact(out, "Versions",
       Joined({Joined({plain("program"), plain("version"), with(code("commit"), "(", ")")}, " "),
               with(code("llama_cpp_commit"), "llama.cpp ", ""),
               with(plain("ggml_version"), "ggml ", ""), plain("compiler")},
              ", "));
  Fact(out, "Time", plain("time_utc"));
  Fact(out, "Command", with(CommandLine(run), "<code>", "</code>"));
  Fact(out, "Records", fmt::format("<code>{}</code>", EscapeHtml(view.records->file)));
  return out + "</dl>\n";
}

std::string DecisionsTable(const RunView& view) {
  std::string out =
      "<table class=\"decisions\"><caption><span>Decisions kept, by policy and teacher. Intervals "
      "of "
      "shares "
      "are Wilson’s, 95 %; KL is in nats, ± one standard error.</span></caption>\n<thead><tr>"
      "<th scope=\"col\">Policy</th><th scope=\"col\">KV bytes read</th>"
      "<th scope=\"col\" title=\"first differing decision of the autonomous run\">T_div</th>"
      "<th scope=\"col\" title=\"the same, counting only margins of at least 0.25 "
      "logits\">T_sig</th>"
      "<th scope=\"col\">Teacher</th><th scope=\"col\">n</th><th scope=\"col\">Same decision</th>"
      "<th scope=\"col\">ΔPPL</th><th scope=\"col\">KL mean</th><th scope=\"col\">KL median</th>"
      "<th scope=\"col\">Same top</th>"
      "<th scope=\"col\" title=\"mean and maximum over layers and decisions\">Omitted mass</th>"
      "</tr></thead>\n";
  for (const PolicyRow& row : view.rows) {
    const int n_lines = static_cast<int>(row.lines.size());
    out += fmt::format("<tbody{}>\n", row.is_sparse() ? "" : " class=\"reference\"");
    for (int i = 0; i < n_lines; ++i) {
      const Json& line = *row.lines[i];
      out += fmt::format("<tr data-policy=\"{}\" data-teacher=\"{}\">", EscapeHtml(row.policy),
                         EscapeHtml(Text(line, "teacher")));
      if (i == 0) {
        out += PolicyHead(row, n_lines);
        out += Cell(FigureHtml(row.Main(), "kv_read_share", FormatPercent), n_lines);
        out += Cell(DivergenceHtml(row.Main(), "t_div"), n_lines);
        out += Cell(DivergenceHtml(row.Main(), "t_sig"), n_lines);
      }
      out += Cell(EscapeHtml(TeacherName(Text(line, "teacher"))), 1, " class=\"word\"");
      out += Cell(FigureHtml(line, "n_decisions", FormatCount));
      out += Cell(FigureHtml(line, "tf_match", FormatPercent) +
                  IntervalHtml(line, "tf_match_low", "tf_match_high", FormatPercent));
      out += Cell(PplChangeHtml(line));
      out += Cell(FigureHtml(line, "kl_mean", FormatNumber) +
                  (Number(line, "kl_stderr")
                       ? "<span class=\"interval\">± " +
                             FigureHtml(line, "kl_stderr", FormatNumber) + "</span>"
                       : ""));
      out +=
          Cell(FigureHtml(line, "kl_median", FormatNumber) + "<span class=\"interval\">99 % " +
               FigureHtml(line, "kl_p99", FormatNumber) + "</span><span class=\"interval\">max " +
               FigureHtml(line, "kl_max", FormatNumber) + "</span>");
      out += Cell(FigureHtml(line, "same_top", FormatPercent));
      out += Cell(FigureHtml(line, "omitted_mass_mean", FormatPercent) +
                  "<span class=\"interval\">max " +
                  FigureHtml(line, "omitted_mass_max", FormatPercent) + "</span>");
      out += "</tr>\n";
    }
    out += "</tbody>\n";
  }
  return out + "</table>\n";
}

std::string CostTable(const RunView& view) {
  std::string out =
      "<table class=\"cost\"><caption><span>What was asked, what was read, and how fast. Bytes and "
      "steps "
      "are the counters’ totals over the first teacher’s run, summaries included; speed is sparse "
      "and "
      "dense decode steps in turn, with the quartiles of the pairs.</span></caption>\n<thead><tr>"
      "<th scope=\"col\">Policy</th><th scope=\"col\">Rows asked a query head</th>"
      "<th scope=\"col\">Rows read a KV head</th><th scope=\"col\">KV bytes read</th>"
      "<th scope=\"col\">Dense bytes</th><th scope=\"col\">Share read</th>"
      "<th scope=\"col\">Sparse tokens/s</th><th scope=\"col\">Dense tokens/s</th>"
      "<th scope=\"col\">Speed, sparse to dense</th><th scope=\"col\" title=\"of single "
      "layers\">Sparse steps</th>"
      "<th scope=\"col\">Fallbacks</th>"
      "<th scope=\"col\">Rebuilds</th></tr></thead>\n<tbody>\n";
  for (const PolicyRow& row : view.rows) {
    const Json& line = row.Main();
    out += fmt::format("<tr data-policy=\"{}\" data-teacher=\"{}\"{}>", EscapeHtml(row.policy),
                       EscapeHtml(Text(line, "teacher")),
                       row.is_sparse() ? "" : " class=\"reference\"");
    out += PolicyHead(row, 1);
    out += Cell(Asked(line));
    out += Cell(FigureHtml(line, "unique_rows_per_kv_head", FormatNumber));
    out += Cell(BytesRead(line));
    out += Cell(FigureHtml(line, "dense_bytes", FormatBytes));
    out += Cell(FigureHtml(line, "kv_read_share", FormatPercent));
    out += Cell(FigureHtml(line, "sparse_tokens_per_second", FormatNumber));
    out += Cell(FigureHtml(line, "dense_tokens_per_second", FormatNumber));
    out += Cell(FigureHtml(line, "speed_ratio_median", FormatTimes) +
                IntervalHtml(line, "speed_ratio_low", "speed_ratio_high", FormatTimes));
    out += Cell(FigureHtml(line, "sparse_steps", FormatCount) + "<span class=\"interval\">dense " +
                FigureHtml(line, "dense_steps", FormatCount) + "</span>");
    out += Cell(Fallbacks(line), 1, " class=\"word\"");
    out += Cell(FigureHtml(line, "rebuilds", FormatCount));
    out += "</tr>\n";
  }
  return out + "</tbody></table>\n";
}

std::string LegendHtml(const RunView& view) {
  std::string out = "<ul class=\"legend\" aria-label=\"Letters and colours of the policies\">\n";
  std::string last;
  for (const PolicyRow* row : view.SparseRows()) {
    if (row->key == last) continue;
    last = row->key;
    out += fmt::format("<li>{}&nbsp;{}</li>\n", KeyHtml(*row),
                       SpecHtml(view.is_grid() ? row->name : row->policy));
  }
  return out + "</ul>\n";
}

}  // namespace condense::report
