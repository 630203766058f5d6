/*
 * The C interface of the Condense ggml backend plug-in (libggml-condense.so).
 *
 * A host loads the plug-in as any ggml backend (GGML_BACKEND_PATH, or ggml_backend_load) and asks
 * it for this table:
 *
 *   ggml_backend_reg_t reg = ggml_backend_reg_by_name("Condense");
 *   const struct condense_api * api =
 *       ((condense_api_fn) ggml_backend_reg_get_proc_address(reg, CONDENSE_API_NAME))();
 *
 * Everything here is process-wide, as the plug-in's settings are: they hold for every context of
 * the process and are taken up at the next attention node. Calls are safe from any thread; none
 * throws, none aborts.
 */
#ifndef CONDENSE_CONDENSE_H
#define CONDENSE_CONDENSE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CONDENSE_API_VERSION 4
#define CONDENSE_API_NAME "condense_api_v4"
#define CONDENSE_MAX_LAYERS 512

/* Why a one-row attention step was computed dense although the policy is sparse. */
enum condense_fallback {
  CONDENSE_FALLBACK_SHORT =
      0, /* nothing could be left out: visible rows <= what the policy reads at least */
  CONDENSE_FALLBACK_NAN = 1,    /* a score was NaN */
  CONDENSE_FALLBACK_BIAS = 2,   /* the mask carries an additive bias */
  CONDENSE_FALLBACK_LAYER = 3,  /* the policy keeps this layer dense (dense_layers) */
  CONDENSE_FALLBACK_BUDGET = 4, /* the byte budget does not cover the rows that are always read */
  CONDENSE_FALLBACK_UNTRACKED =
      5, /* the host writes this cache without a SET_ROWS that reaches the plug-in */
  CONDENSE_FALLBACK_COUNT = 6
};

/* Attention nodes of one layer since the last reset. A step is one query row of one sequence in one
 * layer. */
struct condense_layer_counters {
  uint64_t dense_steps;    /* one-row steps under the policy `dense` */
  uint64_t sparse_steps;   /* one-row steps that left rows out */
  uint64_t fallback_steps; /* one-row steps of a sparse policy computed dense */
  uint64_t multi_rows;     /* query rows computed in nodes of several rows a sequence (prefill,
                              verification) */
  /* Over all one-row steps (dense, sparse, fallback): */
  uint64_t visible_rows; /* sum of visible rows */
  uint64_t unique_rows;  /* sum over KV heads of the rows whose K was read by any query head of the
                            group */
  uint64_t nominal_rows; /* sum over query heads of the rows attended */
  uint64_t k_bytes, v_bytes; /* bytes of K and V rows read, each row counted once a KV head */
  uint64_t summary_bytes;    /* bytes of summaries read to choose */
  uint64_t dense_bytes;      /* bytes of K and V that dense attention would have read */
};

struct condense_counters {
  uint64_t n_layers;                           /* highest layer seen + 1 */
  uint64_t n_query_heads, n_kv_heads;          /* of the last attention node */
  uint64_t fallbacks[CONDENSE_FALLBACK_COUNT]; /* one-row steps by reason */
  uint64_t rebuilds;                           /* summaries found stale and dropped */
  uint64_t nodes;                              /* attention nodes computed */
  uint64_t declined; /* times the host was told to keep an attention node (it asks more than once a
                        graph) */
  uint64_t select_ns, attend_ns; /* wall time of one-row nodes: choosing rows; attention */
};

/* What the observer sees of one one-row step of one layer and query head. Both the dense and the
 * sparse attention are computed; the graph goes on with the sparse output. */
struct condense_observation {
  int32_t layer, query_head, kv_head;
  int32_t visible_rows, rows_read;
  float omitted_mass; /* epsilon: full attention weight of the rows whose key is not read, in [0, 1]
                       */
  float value_norm_max;      /* largest |v| among the visible rows of this KV head */
  float output_error;        /* |o_full - o_sparse| */
  float output_norm;         /* |o_full| */
  float identity_error;      /* |(o_full - o_sparse) - epsilon (o_dropped - o_sparse)|: 0 but for
                                rounding. Where some rows' keys are read and not their values, o_sparse
                                in the bracket on the right has their values, and what took their place
                                is accounted for */
  const uint16_t* row_words; /* bit r % 16 of word r / 16: the key of cache row r is read; valid
                                during the call */
  int32_t n_row_words;
  const float* row_logits; /* [16 n_row_words] logits of this query head as the softmax takes them,
                              by cache row, -inf where a row is not visible; valid during the call.
                              NULL unless observe_logits asked for them */
};
typedef void (*condense_observer)(const struct condense_observation* observations, size_t n,
                                  void* user);

struct condense_api {
  uint32_t version; /* CONDENSE_API_VERSION */

  /* Sets the policy from a spec such as "mean:blocks=8,window=64", or from the policy file FILE by
   * "@FILE". Returns 0; or -1 with the reason in `error` (NUL-terminated, cut at `error_size`), and
   * the policy in force stays. */
  int (*set_policy)(const char* spec, char* error, size_t error_size);
  /* Writes the canonical spec of the policy in force; returns its length without the NUL. */
  size_t (*get_policy)(char* spec, size_t spec_size);

  /* JSON text that describes every registered policy: [{name, summary, source, label, keys: [{name,
   * default, help}]}]. Owned by the plug-in, valid until it is unloaded. */
  const char* (*policies_json)(void);

  void (*get_counters)(struct condense_counters* counters);
  /* One layer's counters; returns -1 where `layer` is out of range. */
  int (*get_layer_counters)(uint32_t layer, struct condense_layer_counters* counters);
  void (*reset_counters)(void);

  /* Calls `observer` after each one-row node, on the thread that computes the graph; NULL ends it.
   */
  void (*set_observer)(condense_observer observer, void* user);
  /* While `on` is not 0, observations carry row_logits, which cost one more pass over the keys. */
  void (*observe_logits)(int on);

  /* Drops every summary and every remembered choice: for hosts that wrote the cache behind the
   * graph's back. */
  void (*forget)(void);

  const char* (*version_string)(void);  /* "condense 0.1.0 (commit)" */
  const char* (*instruction_set)(void); /* the kernels' target in use, e.g. "AVX3" */
  /* Forces an instruction set by name, or gives the choice back with "". Returns 0, or -1 with the
   * reason. */
  int (*force_instruction_set)(const char* name, char* error, size_t error_size);

  /* While `on` is not 0, one-row steps are computed dense, as under the policy `dense`; the policy
   * stays in force with all that it remembers, which set_policy drops. For hosts that decide step
   * by step: a call takes less than a microsecond. */
  void (*set_dense)(int on);

  /* While `on` is not 0, every node of a graph that a host schedules is left to the host, as if the
   * plug-in were not loaded. A graph keeps what was said when it was scheduled, for as long as the
   * host uses it: a context whose work is to be the host's own is made and computed with this on,
   * every time, and any other one never. Counters stay as they are: `declined` counts what the
   * plug-in cannot do. */
  void (*leave_to_host)(int on);
};

typedef const struct condense_api* (*condense_api_fn)(void);

#ifdef __cplusplus
}
#endif

#endif /* CONDENSE_CONDENSE_H */
