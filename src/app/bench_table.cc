#include "app/bench_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "app/machine.h"
#include "app/output.h"
#include "app/table.h"

namespace condense {
namespace {

using Cell = std::function<std::string(const BenchRecord&)>;

std::string Percent(const std::optional<Sample>& share) {
  return share ? fmt::format("{:.1f}%", 100 * share->median) : "";
}

std::string Times(const std::optional<Sample>& ratio) {
  if (!ratio) return "";
  return fmt::format("{:.{}f}x", ratio->median, ratio->median < 100 ? 2 : 0);
}

std::string Rate(double per_second) {
  const double giga = per_second / 1e9;
  return giga > 0 ? fmt::format("{:.{}f}", giga, giga < 100 ? 1 : 0) : "";
}

std::string Heading(const BenchRecord& r) {
  if (r.bench == "machine") return "machine\n";
  const Shape& shape = r.shape;
  const std::string preset = r.preset.empty() ? "" : " " + r.preset;
  std::string text =
      fmt::format("{}{}: {} rows, {} query and {} KV heads of {}, {}/{}", r.bench, preset,
                  FormatCount(shape.n_rows), shape.n_query_heads, shape.n_kv_heads, shape.head_dim,
                  KvTypeName(shape.k_type), KvTypeName(shape.v_type));
  if (r.bench == "candidate") return text + ", a whole sequence\n";
  if (r.n_query_rows > 1) text += fmt::format(", {} query rows", r.n_query_rows);
  return text + fmt::format("; {} layers, from {}; a {}\n", r.n_layers, r.source, r.per);
}

std::string YardstickLine(const BenchRecord& r) {
  const Yardstick& y = r.yardstick;
  if (y.stream.n == 0) return "";
  return fmt::format(
      "yardstick, {} threads: stream {:.1f} GB/s ({:.1f} to {:.1f}) over {}, {:.0f} % on huge "
      "pages; "
      "peak {:.0f} GFLOP/s ({:.0f} to {:.0f}){}; n = {}\n",
      r.n_threads, y.stream.median / 1e9, y.stream.low / 1e9, y.stream.high / 1e9,
      FormatBytes(y.buffer_bytes), 100 * y.huge_share, y.peak.median / 1e9, y.peak.low / 1e9,
      y.peak.high / 1e9, y.trustworthy ? "" : ", not trustworthy: its loop was folded or disturbed",
      y.stream.n);
}

}  // namespace

std::string FormatNs(double ns) {
  constexpr std::pair<double, const char*> kUnits[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}};
  for (const auto& [unit, name] : kUnits) {
    if (ns >= unit) return fmt::format("{:.{}f} {}", ns / unit, ns < 100 * unit ? 2 : 1, name);
  }
  return fmt::format("{:.0f} ns", ns);
}

std::string BenchTable(std::span<const BenchRecord> records, int width) {
  if (records.empty()) return "";
  const bool machine = records[0].bench == "machine";
  struct Spec {
    const char* title;
    int priority;
    Cell cell;
  };
  const Spec specs[] = {
      {"arm", 0, [](const BenchRecord& r) { return r.arm; }},
      {"threads", 0,
       [&](const BenchRecord& r) { return machine ? std::to_string(r.n_threads) : ""; }},
      {"from", 1, [&](const BenchRecord& r) { return machine ? r.source : ""; }},
      {"time", 0, [&](const BenchRecord& r) { return machine ? "" : FormatNs(r.ns.median); }},
      {"quartiles", 4,
       [&](const BenchRecord& r) {
         return machine ? "" : fmt::format("{} to {}", FormatNs(r.ns.low), FormatNs(r.ns.high));
       }},
      {"n", 2, [](const BenchRecord& r) { return std::to_string(r.ns.n); }},
      {"read", 3,
       [&](const BenchRecord& r) {
         return machine || r.bytes == 0 ? "" : FormatBytes(static_cast<uint64_t>(r.bytes));
       }},
      {"GB/s", 1, [](const BenchRecord& r) { return Rate(r.bytes_per_second()); }},
      {"stream", 1, [](const BenchRecord& r) { return Percent(r.stream_share); }},
      {"GFLOP/s", 1, [](const BenchRecord& r) { return Rate(r.flops_per_second()); }},
      {"peak", 1, [](const BenchRecord& r) { return Percent(r.peak_share); }},
      {"select", 2, [](const BenchRecord& r) { return Percent(r.select_share); }},
      {"upkeep", 1,
       [](const BenchRecord& r) {
         return r.upkeep_share ? fmt::format("{:.1f}%", 100 * *r.upkeep_share) : "";
       }},
      {"over dense", 0, [](const BenchRecord& r) { return Times(r.ratio_to_dense); }},
      {"over ggml", 0, [](const BenchRecord& r) { return Times(r.ratio_to_host); }},
      {"over one by one", 0, [](const BenchRecord& r) { return Times(r.speedup); }},
      {"published", 1,
       [](const BenchRecord& r) {
         return r.published ? fmt::format("{:.1f}x", r.published->ratio) : "";
       }},
  };
  std::vector<TableColumn> columns;
  for (const Spec& spec : specs) {
    TableColumn column;
    column.title = spec.title;
    column.priority = spec.priority;
    column.left = columns.empty();
    bool any = false;
    for (const BenchRecord& record : records) {
      column.cells.push_back(spec.cell(record));
      any = any || !column.cells.back().empty();
    }
    if (any) columns.push_back(std::move(column));
  }
  std::string text = Heading(records[0]) + RenderTable(std::move(columns), width);
  for (const BenchRecord& r : records) {
    if (r.equal_bits) {
      text += fmt::format("{}: each row's bits {} those of the row alone\n", r.arm,
                          *r.equal_bits ? "equal" : "DIFFER from");
    }
    if (!r.note.empty()) text += fmt::format("{}: {}\n", r.arm, r.note);
    if (r.fallback_steps > 0) {
      text += fmt::format("{}: {} of {} layer-steps fell back to dense\n", r.arm,
                          FormatCount(static_cast<int64_t>(r.fallback_steps)),
                          FormatCount(static_cast<int64_t>(r.fallback_steps + r.sparse_steps)));
    }
    if (r.max_error) {
      text += fmt::format("{}: check {}: error {:.2g} where the bound is {:.2g}\n", r.arm,
                          r.check_failed ? "FAILED" : "passed", *r.max_error, *r.error_bound);
    }
  }
  const auto published = std::find_if(records.begin(), records.end(),
                                      [](const BenchRecord& r) { return r.published.has_value(); });
  if (published != records.end()) {
    text +=
        fmt::format("published over dense on other hardware: {}\n", published->published->source);
  }
  return text + YardstickLine(records.back());
}

}  // namespace condense
