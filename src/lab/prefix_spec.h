// Prefixes of texts, as most experiments want them: the keys that name them in a spec, and their
// tokens for a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "lab/lab_model.h"
#include "lab/records.h"
#include "lab/spec_reader.h"

namespace condense {

struct PrefixSpec {
  std::vector<std::string> texts;
  std::vector<int64_t> offsets;   // tokens of the text before the prefix
  std::vector<int64_t> contexts;  // tokens of the prefix, BOS not counted
  int n_generate = 0;             // tokens after it: 1 by the prefill, the rest decisions
};

// Reads the keys texts, offsets, contexts and tokens.
PrefixSpec ReadPrefixSpec(SpecReader& spec);

struct LabPrefix {
  Json shared;                    // LabModel::Parameters() with context, text and offset
  std::string text, text_sha256;  // as the spec names it; of the whole file
  int64_t offset = 0;
  int64_t context = 0;              // tokens, BOS not counted
  int n_rows = 0;                   // of the KV cache: prompt and generated tokens
  std::vector<Token> prompt;        // BOS first where the model asks for one
  std::vector<Token> continuation;  // the text's own next n_generate tokens
};

// Every text × context × offset, in this order. Errors: a text that is shorter than a prefix and
// its continuation, or is named twice, a context beyond what the model takes; both numbers named.
// An experiment keeps them by their group, CellId(shared), until it runs.
Result<std::vector<LabPrefix>> PlanPrefixes(LabModel& model, const PrefixSpec& spec);

}  // namespace condense
