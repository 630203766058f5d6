// What policies choose on stored q, K, V (kv_capture), through the seam that the plug-in uses: the
// prompt is written node by node, and computed dense where the policy keeps something of its
// queries; then each step is selected with SelectStep. What a policy derives from keys by a rule
// that leaves room (clusters, codebooks) is printed too, so that the reference can start from the
// same.
//
//   policy_rows FOLDER < lines of {"spec", "layer"}
//
// Answers a line each: {"spec": canonical, "steps": [{"dense", "reason", "per_query_head",
// "k": rows whose key is read, by set, "v": those whose value is, "summary_bytes", "tail": {"max",
// "sum", "o"}, "rest": [n_heads, v_dim], "clusters": by KV head, lists of rows, "codes": …}]}, or
// {"error"}.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/layer_attention.h"
#include "attention/step.h"
#include "kernels/half.h"
#include "select/registry.h"

namespace condense {
namespace {

using nlohmann::json;

constexpr int kNodeRows = 512;  // of a prompt's nodes, as the host cuts them

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path + ": kv_capture writes it");
  return {std::istreambuf_iterator<char>(in), {}};
}

KvType KvTypeNamed(const std::string& name) {
  const std::optional<KvType> type = ParseKvType(name);
  if (!type) throw std::runtime_error("unknown KV type " + name);
  return *type;
}

struct Shape {
  int n_prompt = 0, n_steps = 0, n_heads = 0, n_kv_heads = 0, k_dim = 0;
  float scale = 0;
  KvType type = KvType::kF16;

  explicit Shape(const json& from)
      : n_prompt(from.at("n_prompt")),
        n_steps(from.at("n_steps")),
        n_heads(from.at("n_heads")),
        n_kv_heads(from.at("n_kv_heads")),
        k_dim(from.at("k_dim")),
        scale(from.at("scale")),
        type(KvTypeNamed(from.at("kv_type"))) {}
  int n_rows() const { return n_prompt + n_steps; }
  // Rows of the host's view: it grows in steps of 256.
  int n_cells() const { return (n_rows() + 255) / 256 * 256; }
};

json RowsOf(const uint16_t* mask, int n_blocks) {
  json rows = json::array();
  const std::span words(mask, n_blocks);
  for (int row = 0; row < n_blocks * kBlockRows; ++row) {
    if (HasRow(words, row)) rows.push_back(row);
  }
  return rows;
}

json ClustersOf(BlockIndex& index, int n_kv_heads) {
  json heads = json::array();
  for (int g = 0; g < n_kv_heads; ++g) {
    json clusters = json::array();
    for (const auto& piece : index.clusters().pieces()) {
      const ClusterPiece::Head& head = piece->heads[g];
      for (int c = 0; c < head.n_clusters; ++c) {
        json rows = json::array();
        for (int i = head.begin[c]; i < head.begin[c + 1]; ++i)
          rows.push_back(piece->first_row() + head.members[i]);
        clusters.push_back(std::move(rows));
      }
    }
    heads.push_back(std::move(clusters));
  }
  return heads;
}

json BookJson(const TokenCodebook& book) {
  json entries = json::array();
  for (size_t i = 0; i < book.entries.size(); ++i) entries.push_back(book.Entry(i));
  return {{"first", book.first}, {"channel", book.channel}, {"weight", book.weight},
          {"entries", entries},  {"to_code", book.to_code}, {"to_query", book.to_query}};
}

// Of one KV head: the codebook, and of its segments centroids and the nibbles of every row.
json CodesOf(const CodeIndex& index, int n_segments, int kv_head) {
  const CodesView view = index.View(kv_head);
  json centroids = json::array(), nibbles = json::array();
  for (int s = 0; s < n_segments; ++s) {
    const int8_t* tile =
        view.centroids + static_cast<size_t>(s / kTileSegments) * kTileSegments * view.dim;
    json centroid = json::array();
    for (int c = 0; c < view.dim; ++c)
      centroid.push_back(tile[c * kTileSegments + s % kTileSegments]);
    centroids.push_back(std::move(centroid));
    const uint8_t* codes = view.codes + CodeBytes(s, view.n_nibbles);
    for (int row = 0; row < kSegmentRows; ++row) {
      json of_row = json::array();
      for (int n = 0; n < view.n_nibbles; ++n) {
        const uint8_t byte = codes[n / 2 * kSegmentRows + 4 * (row % 16) + row / 16];
        of_row.push_back(n % 2 == 0 ? byte & 15 : byte >> 4);
      }
      nibbles.push_back(std::move(of_row));
    }
  }
  const int book = index.book_of(0);
  return {{"centroids", centroids},
          {"scales", std::vector<float>(view.centroid_scales, view.centroid_scales + n_segments)},
          {"nibbles", nibbles},
          {"book", BookJson(index.Book(book, kv_head))}};
}

class Layer {
 public:
  Layer(const std::string& folder, const Shape& shape, int number)
      : shape_(shape),
        number_(number),
        k_from_(ReadFile(folder + "/" + std::to_string(number) + ".k")),
        v_from_(ReadFile(folder + "/" + std::to_string(number) + ".v")),
        q_(ReadFile(folder + "/" + std::to_string(number) + ".q")),
        row_bytes_(KvBytes(shape.type, shape.k_dim) * shape.n_kv_heads),
        k_(row_bytes_ * shape.n_cells(), 0),
        v_(k_.size(), 0) {
    if (k_from_.size() != row_bytes_ * shape.n_rows() || v_from_.size() != k_from_.size() ||
        q_.size() != sizeof(float) * shape.n_rows() * shape.n_heads * shape.k_dim)
      throw std::runtime_error("layer " + std::to_string(number) +
                               " is not of fixture.json's size");
  }

  json Run(const BoundPolicy& bound, const Policy& dense) {
    const Policy& policy = *bound.policy;
    LayerCache cache;
    const bool clustered = bound.spec.starts_with("tactic") || bound.spec.starts_with("retrieval");
    const bool coded = bound.spec.starts_with("condense");
    const PromptWants wants = policy.prompt_wants();
    for (int begin = 0; begin < shape_.n_prompt; begin += kNodeRows) {
      AttentionNode node = Node(begin, std::min(begin + kNodeRows, shape_.n_prompt), cache);
      // Nothing else reads a prompt's queries.
      if (coded || !wants.empty()) Prefill(node, policy, dense, wants, cache);
      cache.Stream(0).written.clear();
    }
    json steps = json::array();
    for (int row = shape_.n_prompt; row < shape_.n_rows(); ++row) {
      json step = Step(row, policy, cache);
      StreamCache& stream = cache.Stream(0);
      if (clustered && !step.at("dense"))
        step["clusters"] = ClustersOf(stream.index, shape_.n_kv_heads);
      // Codes stay, but for the segments that close meanwhile: the last step's tell all.
      if (coded && !step.at("dense") && row + 1 == shape_.n_rows()) {
        const int n_segments = (row + 1 - 64) / kSegmentRows;
        for (int g = 0; g < shape_.n_kv_heads; ++g)
          step["codes"].push_back(CodesOf(stream.codes, n_segments, g));
      }
      steps.push_back(std::move(step));
    }
    return {{"spec", bound.spec}, {"steps", steps}};
  }

 private:
  KvView View() const {
    KvView view;
    view.k_type = view.v_type = shape_.type;
    view.k = reinterpret_cast<const std::byte*>(k_.data());
    view.v = reinterpret_cast<const std::byte*>(v_.data());
    view.k_head = view.v_head = KvBytes(shape_.type, shape_.k_dim);
    view.k_row = view.v_row = row_bytes_;
    view.n_rows = shape_.n_cells();
    view.n_kv_heads = shape_.n_kv_heads;
    view.k_dim = view.v_dim = shape_.k_dim;
    return view;
  }

  // The query rows of [begin, end), their keys and values just written.
  AttentionNode Node(int begin, int end, LayerCache& cache) {
    const int n = end - begin;
    std::copy_n(k_from_.begin() + begin * row_bytes_, n * row_bytes_,
                k_.begin() + begin * row_bytes_);
    std::copy_n(v_from_.begin() + begin * row_bytes_, n * row_bytes_,
                v_.begin() + begin * row_bytes_);
    for (int row = begin; row < end; ++row) cache.MarkWritten(0, row);
    mask_.assign(static_cast<size_t>(n) * shape_.n_cells(), kF16MinusInf);
    for (int i = 0; i < n; ++i)
      std::fill_n(mask_.begin() + static_cast<size_t>(i) * shape_.n_cells(), begin + i + 1, 0);
    out_.resize(static_cast<size_t>(n) * shape_.n_heads * shape_.k_dim);
    AttentionNode node;
    node.layer = number_;
    node.n_rows = n;
    node.n_query_heads = shape_.n_heads;
    node.q_head = sizeof(float) * shape_.k_dim;
    node.q_row = node.q_head * shape_.n_heads;
    node.q = reinterpret_cast<const std::byte*>(q_.data()) + begin * node.q_row;
    node.kv = View();
    node.mask = reinterpret_cast<const std::byte*>(mask_.data());
    node.mask_row = sizeof(uint16_t) * shape_.n_cells();
    node.scale = shape_.scale;
    node.out = out_.data();
    return node;
  }

  static void Prefill(AttentionNode& node, const Policy& policy, const Policy& dense,
                      const PromptWants& wants, LayerCache& cache) {
    node.prompt_wants = &wants;
    node.query_products = policy.wants_query_products();
    AttentionSink sink;
    ComputeAttention(node, cache, dense, 1, sink);
  }

  json Step(int row, const Policy& policy, LayerCache& cache) {
    const AttentionNode node = Node(row, row + 1, cache);
    StreamCache& stream = cache.Stream(0);
    RowMask visible(BlocksFor(shape_.n_cells()), 0);
    for (int r = 0; r <= row; ++r) AddRow(visible, r);
    Selection selection;
    std::vector<float> query;
    SelectStep({.node = node,
                .view = node.kv,
                .stream = 0,
                .row = 0,
                .visible = visible,
                .n_visible = row + 1,
                .has_bias = false,
                .n_threads = 1},
               policy, stream, query, selection);
    stream.written.clear();
    return Describe(selection);
  }

  json Describe(const Selection& selection) const {
    json out = {{"dense", selection.dense}, {"reason", static_cast<int>(selection.reason)}};
    if (selection.dense) return out;
    const int n_sets = selection.per_query_head ? shape_.n_heads : shape_.n_kv_heads;
    json k = json::array(), v = json::array();
    for (int set = 0; set < n_sets; ++set) {
      k.push_back(RowsOf(selection.KMask(set), selection.n_blocks));
      v.push_back(RowsOf(selection.VMask(set), selection.n_blocks));
    }
    out.update({{"per_query_head", selection.per_query_head},
                {"k", k},
                {"v", v},
                {"summary_bytes", selection.summary_bytes}});
    if (selection.has_tail)
      out["tail"] = {
          {"max", selection.tail.max}, {"sum", selection.tail.sum}, {"o", selection.tail.o}};
    if (!selection.rest_value.empty()) out["rest"] = selection.rest_value;
    return out;
  }

  const Shape& shape_;
  int number_;
  std::string k_from_, v_from_, q_;
  size_t row_bytes_;
  std::vector<char> k_, v_;  // as written so far
  std::vector<uint16_t> mask_;
  std::vector<float> out_;
};

json Answer(const std::string& folder, const Shape& shape, const Policy& dense, const json& ask) {
  const Result<BoundPolicy> policy = MakePolicy(ask.at("spec").get<std::string>());
  if (!policy.ok()) throw std::runtime_error(policy.error());
  return Layer(folder, shape, ask.at("layer")).Run(policy.value(), dense);
}

int Main(const std::string& folder) {
  const Shape shape(json::parse(ReadFile(folder + "/fixture.json")));
  const Result<BoundPolicy> dense = MakePolicy("dense");
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      answer = Answer(folder, shape, *dense.value().policy, json::parse(line));
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    // A tail without rows has max = -inf, which JSON can't say: null.
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace condense

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--policies") {
    std::puts(condense::PoliciesJson().c_str());
    return 0;
  }
  if (argc != 2) {
    std::fprintf(stderr, "policy_rows FOLDER < lines of {\"spec\", \"layer\"}, or --policies\n");
    return 2;
  }
  try {
    return condense::Main(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "policy_rows: %s\n", error.what());
    return 1;
  }
}
