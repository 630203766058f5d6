#!/usr/bin/env python3
"""Writes the small llama-architecture model that the tests compare attention with: F32 weights, so that no int8
activation blurs the last bits; three layers, six query heads and two KV heads of 64, context 4096.

    make_tiny_model.py OUT.gguf [--gguf-py DIR]

The weights come from a counter-based integer generator (SplitMix64) and exact scaling: every machine writes the same
bytes. Queries and keys share a component, so attention looks for rows like the present one and is peaked as in trained
models, not flat. The tokenizer is SentencePiece-style with all 256 byte tokens: any text tokenises. Needs NumPy and
llama.cpp's gguf-py; the text the model writes means nothing.
"""

import argparse
import importlib
import os
import pathlib
import sys
import types

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
SEED = 0x636F6E64656E7365
N_LAYER, N_EMBD, N_HEAD, N_HEAD_KV, HEAD_DIM, N_FF, N_CTX = 3, 256, 6, 2, 64, 512, 4096
# Frequent letter pairs of English: enough for a tokenizer that really merges.
PAIRS = ("th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi ri ro ic "
         "ne ea ra ce li ch ll be ma si om ur").split()
CHAT_TEMPLATE = ("{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
                 "{% if add_generation_prompt %}[assistant] {% endif %}")


def import_gguf(folder):
    """gguf-py's writer without its package file, which asks for PyYAML."""
    package = types.ModuleType("gguf")
    package.__path__ = [str(pathlib.Path(folder) / "gguf")]
    sys.modules["gguf"] = package
    return importlib.import_module("gguf.gguf_writer"), importlib.import_module("gguf.constants")


class Generator:
    """Uniform values in [-1, 1), multiples of 2^-23: exact in FP32."""

    def __init__(self, seed):
        self.counter = np.uint64(seed)

    def uniform(self, *shape):
        n = int(np.prod(shape))
        with np.errstate(over="ignore"):
            z = self.counter + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            self.counter = z[-1]
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
        return (z >> np.uint64(40)).astype(np.float32).reshape(shape) * np.float32(2.0**-23) - np.float32(1)

    def matrix(self, n_out, n_in, gain):
        """[n_out, n_in]; an input of unit variance gives an output of standard deviation `gain`."""
        return self.uniform(n_out, n_in) * np.float32(gain * (3.0 / n_in) ** 0.5)


def vocabulary(kinds):
    pieces = [("<unk>", 0.0, kinds.UNKNOWN), ("<s>", 0.0, kinds.CONTROL), ("</s>", 0.0, kinds.CONTROL)]
    pieces += [(f"<0x{byte:02X}>", 0.0, kinds.BYTE) for byte in range(256)]
    pieces += [(pair, -1.0 - rank, kinds.NORMAL) for rank, pair in enumerate(PAIRS)]
    singles = ["\u2581"] + [chr(code) for code in range(0x21, 0x7F)]
    pieces += [(single, -1000.0 - rank, kinds.NORMAL) for rank, single in enumerate(singles)]
    return pieces


def tensors(n_vocab):
    generator = Generator(SEED)
    yield "token_embd.weight", generator.uniform(n_vocab, N_EMBD)
    yield "output_norm.weight", np.ones(N_EMBD, np.float32)
    # The large gain separates the best token from the next ones, as in a trained model.
    yield "output.weight", generator.matrix(n_vocab, N_EMBD, 3.0)
    group = N_HEAD // N_HEAD_KV
    for layer in range(N_LAYER):
        name = f"blk.{layer}."
        yield name + "attn_norm.weight", np.ones(N_EMBD, np.float32)
        yield name + "ffn_norm.weight", np.ones(N_EMBD, np.float32)
        k = generator.matrix(N_HEAD_KV * HEAD_DIM, N_EMBD, 1.0)
        q = generator.matrix(N_HEAD * HEAD_DIM, N_EMBD, 1.0)
        for head in range(N_HEAD):
            rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            kv = slice(head // group * HEAD_DIM, (head // group + 1) * HEAD_DIM)
            # Query heads of one group differ in how far they look for likeness.
            q[rows] = np.float32(1.5) * q[rows] + np.float32(0.25 + 0.25 * (head % group)) * k[kv]
        yield name + "attn_q.weight", q
        yield name + "attn_k.weight", k * np.float32(1.5)
        yield name + "attn_v.weight", generator.matrix(N_HEAD_KV * HEAD_DIM, N_EMBD, 1.0)
        yield name + "attn_output.weight", generator.matrix(N_EMBD, N_HEAD * HEAD_DIM, 1.0)
        yield name + "ffn_gate.weight", generator.matrix(N_FF, N_EMBD, 1.0)
        yield name + "ffn_up.weight", generator.matrix(N_FF, N_EMBD, 1.0)
        yield name + "ffn_down.weight", generator.matrix(N_EMBD, N_FF, 1.0)


def write(path, gguf_py):
    writer_module, constants = import_gguf(gguf_py)
    pieces = vocabulary(constants.TokenType if hasattr(constants, "TokenType") else writer_module.TokenType)
    writer = writer_module.GGUFWriter(path, "llama")
    writer.add_name("tiny test model")
    writer.add_file_type(0)
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(pieces))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece for piece, _, _ in pieces])
    writer.add_token_scores([score for _, score, _ in pieces])
    writer.add_token_types([int(kind) for _, _, kind in pieces])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, values in tensors(len(pieces)):
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--gguf-py", default=ROOT / "build" / "llama.cpp" / "gguf-py", type=pathlib.Path,
                        help="folder of llama.cpp's Python package (default: the pinned source's)")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    part = arguments.out.with_name(arguments.out.name + ".part")
    write(part, arguments.gguf_py)
    os.replace(part, arguments.out)


if __name__ == "__main__":
    main()
