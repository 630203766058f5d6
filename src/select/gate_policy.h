// What policies by trained gates share (`seer`, `nsa`): blocks of a sequence's rows in its own
// order, scored per KV head by a gate; rows that are read always; a budget. What a gate makes of
// keys and queries is its file's business. Rules: docs/POLICIES.md; files: docs/GATES.md.
//
// Positions are not the plug-in's to see: the i-th row that a query sees, by cells, counts as
// position i, and the newest row must be the last. Keys at 8 bits are refused, since hosts rotate
// them by more than RoPE.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/gate_index.h"
#include "kernels/rope.h"
#include "select/gate_file.h"
#include "select/key_reader.h"
#include "select/policy.h"

namespace condense {

// Of the positions of one step.
struct GateAngles {
  RopeTable host;  // GateModel::rope
  RopeTable own;   // Gate::own_rope
};

struct GateStep {
  const LayerQuery* query = nullptr;
  const GateAngles* angles = nullptr;
  GateIndex* keys = nullptr;
};

class Gate {
 public:
  virtual ~Gate() = default;

  const GateModel& model() const { return model_; }
  const RopeRule& own_rope() const { return own_rope_; }
  int block_rows() const { return block_rows_; }

  // A key is made of each run of so many rows, one each `stride` rows.
  virtual int run_rows() const = 0;
  virtual int run_stride() const = 0;
  virtual int key_dim() const = 0;
  // rows: [run_rows, head_dim], as they were before the host rotated them; overwritten. first: the
  // first one's position. key: [key_dim]
  virtual void MakeKey(int layer, int kv_head, float* rows, int first, const GateAngles& angles,
                       float* key) const = 0;
  // What the whole blocks are worth to the newest row's query in one KV head. Returns the logit
  // with which a last block that is not whole takes part in a softmax over blocks.
  virtual float Score(const GateStep& step, int kv_head, std::span<float> per_block) const = 0;

 protected:
  GateModel model_;
  RopeRule own_rope_;
  int block_rows_ = 64;
};

struct GateDefaults {
  int tokens = 0;
  // Where `automatic`, parts of `tokens`: less of a smaller budget.
  int anchor = 0, window = 64;
  bool automatic = false;
  bool has_threshold = false;
};

std::vector<PolicyKey> GateKeys(const GateDefaults& defaults, const std::string& file_help);
// `read` gives the gate of a file, or its error in the file's status. `needed` says where gates
// come from.
std::unique_ptr<Policy> MakeGatePolicy(KeyReader& reader, const GateDefaults& defaults,
                                       const std::string& kind, const std::string& needed,
                                       std::unique_ptr<Gate> (*read)(GateFile& file));

}  // namespace condense
