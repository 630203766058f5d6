#include "select/gate_policy.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/summary.h"
#include "select/row_keys.h"
#include "select/row_shares.h"

namespace condense {
namespace {

struct Options {
  int tokens = 0;                    // rows a KV head, unless one of the next two is set
  std::optional<double> byte_share;  // (0, 1] of the bytes that dense attention reads
  std::optional<double> threshold;   // blocks whose share is greater
  std::optional<int64_t> anchor, window;
  LayerRange dense_layers;
  GateDefaults defaults;
};

// One KV head's ranking.
struct HeadScratch {
  std::vector<float> scores;  // [n_blocks]
  std::vector<int32_t> order;
};

// Of the thread that calls; the team works on it.
struct StepScratch {
  std::vector<int32_t> seen;  // visible rows, ascending
  std::vector<uint16_t> always;
  GateAngles angles;
  std::vector<HeadScratch> heads;  // [n_kv_heads]
};

// What a step may read of each KV head.
struct Allowance {
  int64_t rows = 0;    // in all
  bool scores = true;  // the gate's keys are paid for
};

class GatePolicy final : public Policy {
 public:
  GatePolicy(const Options& options, std::unique_ptr<const Gate> gate)
      : options_(options), gate_(std::move(gate)) {
    static std::atomic<uint64_t> n_gates{0};
    id_ = ++n_gates;
  }

  int least_rows() const override {
    return options_.byte_share || options_.threshold ? 0 : options_.tokens;
  }

  void Select(const LayerQuery& query, Selection& selection) const override {
    static thread_local StepScratch scratch;
    StepScratch& s = scratch;
    selection.Reset();
    s.seen.reserve(query.kv->n_rows);
    ListRows(query.visible, s.seen);
    if (!Fits(query, s)) {
      selection.reason = Fallback::kLayer;
      return;
    }
    const double rows = NominalRows(query.n_visible);
    const int n_always = FindAlways(query, rows, s);
    if (rows >= query.n_visible || n_always >= query.n_visible) {
      selection.reason = Fallback::kShort;
      return;
    }
    const std::optional<Allowance> allowed = Allow(query, n_always);
    if (!allowed) {
      selection.reason = Fallback::kBudget;
      return;
    }
    if (allowed->scores) MakeKeys(query, s);
    ChooseByHead(
        query, s.always, s.heads, selection,
        [&](int g, HeadScratch& head, std::span<uint16_t> mask) -> std::optional<uint64_t> {
          head.order.clear();
          if (allowed->scores && !Rank(query, s, g, head)) return std::nullopt;
          Read(s.seen, allowed->rows - n_always, head.order, mask);
          return allowed->scores ? KeyBytes(query) : 0;
        });
  }

 private:
  // The gate knows this layer of this model, and rows are where their positions say.
  bool Fits(const LayerQuery& query, const StepScratch& s) const {
    const GateModel& model = gate_->model();
    return !options_.dense_layers.Contains(query.layer) && query.layer < model.n_layers &&
           query.n_query_heads == model.n_query_heads && query.kv->n_kv_heads == model.n_kv_heads &&
           query.kv->k_dim == model.head_dim && query.kv->k_type != KvType::kQ8_0 &&
           !s.seen.empty() && (query.newest_row < 0 || query.newest_row == s.seen.back());
  }

  double NominalRows(int n_visible) const {
    if (options_.threshold) return 0;
    return options_.byte_share ? *options_.byte_share * n_visible : options_.tokens;
  }

  // Rows read always, to s.always; how many. `rows`: the budget that automatic sizes are parts of.
  int FindAlways(const LayerQuery& query, double rows, StepScratch& s) const {
    const GateDefaults& d = options_.defaults;
    const auto part = [&](int of_default) {
      const double share = options_.threshold ? of_default : rows * of_default / d.tokens;
      return static_cast<int64_t>(std::min<double>(of_default, std::floor(share)));
    };
    const auto n = static_cast<int64_t>(s.seen.size());
    const int64_t anchor = std::min(options_.anchor.value_or(part(d.anchor)), n);
    const int64_t window = std::clamp<int64_t>(options_.window.value_or(part(d.window)), 1, n);
    s.always.assign(query.visible.size(), 0);
    for (int64_t i = 0; i < anchor; ++i) AddRow(s.always, s.seen[i]);
    for (int64_t i = n - window; i < n; ++i) AddRow(s.always, s.seen[i]);
    return CountRows(s.always);
  }

  int RunsOf(int n_visible) const {
    return GateIndex::RunsIn(n_visible, gate_->run_rows(), gate_->run_stride());
  }

  // Of the keys that one KV head's scores are made of.
  uint64_t KeyBytes(const LayerQuery& query) const {
    return sizeof(float) * static_cast<uint64_t>(RunsOf(query.n_visible)) * gate_->key_dim();
  }

  std::optional<Allowance> Allow(const LayerQuery& query, int n_always) const {
    if (!options_.byte_share)
      return Allowance{.rows = options_.threshold ? query.n_visible : options_.tokens};
    const double row_bytes =
        static_cast<double>(query.kv->KeyBytes() + query.kv->ValueBytes()) * query.kv->n_kv_heads;
    const double bytes = *options_.byte_share * query.n_visible * row_bytes;
    const double left = bytes - static_cast<double>(KeyBytes(query) * query.kv->n_kv_heads);
    if (bytes < n_always * row_bytes) return std::nullopt;
    if (left >= n_always * row_bytes) return Allowance{static_cast<int64_t>(left / row_bytes)};
    return Allowance{.rows = static_cast<int64_t>(bytes / row_bytes), .scores = false};
  }

  // Those of runs that are new or were written again.
  void MakeKeys(const LayerQuery& query, StepScratch& s) const {
    const KvView& kv = *query.kv;
    query.index->Refresh(kv, kFingerprint, query.visible);  // so that foreign writes are noticed
    GateIndex& keys = query.index->gates();
    keys.Find({.owner = id_,
               .size = gate_->run_rows(),
               .stride = gate_->run_stride(),
               .n_kv_heads = kv.n_kv_heads,
               .dim = gate_->key_dim(),
               .rows = s.seen,
               .n_rows = kv.n_rows});
    s.angles.host.Cover(gate_->model().rope, id_, query.n_visible, kv.n_rows);
    s.angles.own.Cover(gate_->own_rope(), id_, query.n_visible, kv.n_rows);
    const std::span<const int32_t> missing = keys.missing();
    const int n = static_cast<int>(missing.size()) * kv.n_kv_heads;
    if (n == 0) return;
    const bool parallel = query.n_threads > 1 && n > 1;
#pragma omp parallel for num_threads(query.n_threads) if (parallel) schedule(static)
    for (int i = 0; i < n; ++i) {
      const int run = missing[i / kv.n_kv_heads], head = i % kv.n_kv_heads;
      MakeKey(query, s, run, head, keys.Key(run, head));
    }
  }

  void MakeKey(const LayerQuery& query, const StepScratch& s, int run, int kv_head,
               float* key) const {
    const KvView& kv = *query.kv;
    const RopeRule& rope = gate_->model().rope;
    static thread_local std::vector<float> rows;  // [run_rows, head_dim]
    const int n = gate_->run_rows(), first = run * gate_->run_stride();
    rows.resize(static_cast<size_t>(n) * kv.k_dim);
    for (int i = 0; i < n; ++i) {
      float* row = rows.data() + static_cast<size_t>(i) * kv.k_dim;
      // The mean of one row: its values in FP32.
      SummarizeRows(kv.KeyRow(kv_head, s.seen[first + i]), kv.k_row, kv.k_type, 1, kv.k_dim,
                    {.mean = row});
      if (rope.pairs != RopePairs::kNone) RotateBack(rope, s.angles.host.At(first + i), row);
    }
    gate_->MakeKey(query.layer, kv_head, rows.data(), first, s.angles, key);
  }

  // Blocks in the order in which they are read, the newest rows' first; with a threshold only those
  // above it. False where a score is no number.
  bool Rank(const LayerQuery& query, const StepScratch& s, int kv_head, HeadScratch& head) const {
    const int block_rows = gate_->block_rows();
    const int n_whole = query.n_visible / block_rows;
    const bool rest = query.n_visible % block_rows != 0;
    const size_t most = query.kv->n_rows / block_rows + 1;
    head.scores.reserve(most);
    head.order.reserve(most);
    head.scores.assign(n_whole, 0.0f);
    const float rest_logit =
        gate_->Score({&query, &s.angles, &query.index->gates()}, kv_head, head.scores);
    for (float score : head.scores) {
      if (std::isnan(score)) return false;
    }
    if (options_.threshold && !ToShares(rest, rest_logit, head.scores)) return false;
    const int last = rest ? n_whole : n_whole - 1;
    head.order.clear();
    if (last >= 0) head.order.push_back(last);
    for (int b = 0; b < std::min(n_whole, last); ++b) {
      if (!options_.threshold || head.scores[b] > *options_.threshold) head.order.push_back(b);
    }
    if (last >= 0) {
      std::sort(head.order.begin() + 1, head.order.end(), [&](int32_t a, int32_t b) {
        return head.scores[a] != head.scores[b] ? head.scores[a] > head.scores[b] : a < b;
      });
    }
    return true;
  }

  static bool ToShares(bool rest, float rest_logit, std::vector<float>& logits) {
    float max = rest ? rest_logit : -std::numeric_limits<float>::infinity();
    for (float logit : logits) max = std::max(max, logit);
    double sum = rest ? std::exp(rest_logit - max) : 0.0;
    for (float& logit : logits) {
      logit = std::exp(logit - max);
      sum += logit;
    }
    for (float& logit : logits) logit = static_cast<float>(logit / sum);
    return std::isfinite(sum);
  }

  // Whole blocks in their order while there is room for the next one; what is left widens the
  // window.
  void Read(std::span<const int32_t> seen, int64_t room, std::span<const int32_t> order,
            std::span<uint16_t> mask) const {
    const int n = static_cast<int>(seen.size()), block_rows = gate_->block_rows();
    for (int32_t block : order) {
      const int begin = block * block_rows, end = std::min(n, begin + block_rows);
      int gain = 0;
      for (int i = begin; i < end; ++i) gain += !HasRow(mask, seen[i]);
      if (gain > room) break;
      for (int i = begin; i < end; ++i) AddRow(mask, seen[i]);
      room -= gain;
    }
    if (options_.threshold) return;
    for (int i = n; i-- > 0 && room > 0;) {
      room -= !HasRow(mask, seen[i]);
      AddRow(mask, seen[i]);
    }
  }

  const Options options_;
  const std::unique_ptr<const Gate> gate_;
  uint64_t id_ = 0;
};

std::optional<int64_t> ReadRows(KeyReader& reader, const std::string& key, int64_t min,
                                bool automatic) {
  constexpr int64_t kMost = 1'000'000;
  return automatic ? reader.IntOrAuto(key, min, kMost) : reader.Int(key, min, kMost);
}

Options ReadOptions(KeyReader& reader, const GateDefaults& defaults) {
  Options options;
  options.defaults = defaults;
  options.anchor = ReadRows(reader, "anchor", 0, defaults.automatic);
  options.window = ReadRows(reader, "window", 1, defaults.automatic);
  options.dense_layers = reader.Layers("dense_layers");
  const std::string given = defaults.has_threshold
                                ? GivenOf(reader, {"tokens", "budget", "threshold"})
                                : GivenOf(reader, {"tokens", "budget"});
  if (given == "threshold") {
    options.threshold = reader.Number("threshold", 0, 1);
  } else if (given == "budget") {
    options.byte_share = ReadByteShare(reader);
  } else {
    options.tokens = static_cast<int>(reader.Int("tokens", 8, kMostTokens));
    CheckTokens(reader, options.tokens, options.anchor.value_or(0) + options.window.value_or(1));
  }
  return options;
}

std::string PartHelp(const GateDefaults& defaults, int rows) {
  if (!defaults.automatic) return "";
  return ", or auto: " + std::to_string(rows) + ", at most " + std::to_string(rows) + "/" +
         std::to_string(defaults.tokens) + " of the budget";
}

}  // namespace

std::vector<PolicyKey> GateKeys(const GateDefaults& defaults, const std::string& file_help) {
  const auto rows = [&](int n) { return defaults.automatic ? "auto" : std::to_string(n); };
  std::vector<PolicyKey> keys = {
      {.name = "gates", .default_value = "", .help = file_help, .required = true},
      {"tokens", std::to_string(defaults.tokens),
       "budget: rows read per KV head, first and last counted; 8 to 32000000", true},
      {"budget", "",
       "budget: share of the K + V bytes of dense attention, the gate's keys counted, such as 5%; "
       "instead of tokens",
       true},
      {"anchor", rows(defaults.anchor),
       "rows: the first visible ones are always read; 0 to 1000000" +
           PartHelp(defaults, defaults.anchor)},
      {"window", rows(defaults.window),
       "rows: the last visible ones are always read; 1 to 1000000" +
           PartHelp(defaults, defaults.window)},
      DenseLayersKey()};
  if (defaults.has_threshold) {
    keys.push_back({"threshold", "",
                    "all blocks whose share of the gate's softmax is greater; 0 to 1; instead of "
                    "tokens",
                    true});
  }
  return keys;
}

std::unique_ptr<Policy> MakeGatePolicy(KeyReader& reader, const GateDefaults& defaults,
                                       const std::string& kind, const std::string& needed,
                                       std::unique_ptr<Gate> (*read)(GateFile& file)) {
  const Options options = ReadOptions(reader, defaults);
  if (!reader.Given("gates")) {
    reader.Fail(
        "gates=FILE is needed: a GGUF file of the trained gates of the model in use "
        "(docs/GATES.md). " +
        needed);
    return nullptr;
  }
  GateFile file(reader.String("gates"), kind);
  std::unique_ptr<Gate> gate = read(file);
  if (!file.status().ok()) {
    reader.Fail(file.status().error());
    return nullptr;
  }
  return std::make_unique<GatePolicy>(options, std::move(gate));
}

}  // namespace condense
