"""The tiny model of scripts/make_tiny_model.py in NumPy and double precision: an oracle that shares no code with
llama.cpp or Condense. Keys and values are rounded as the KV cache stores them; all else stays double.
"""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import make_tiny_model as tiny


def round_to(values, kv):
    """float32 [..., head_dim] as stored in a cache of type `kv`, as double."""
    x = values.astype(np.float32)
    if kv == "f16":
        x = x.astype(np.float16)
    elif kv == "bf16":
        bits = x.view(np.uint32)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    elif kv == "q8_0":
        blocks = x.reshape(*x.shape[:-1], -1, 32)
        scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
        inverse = np.where(scale > 0, np.float32(1) / np.where(scale > 0, scale, 1), 0).astype(np.float32)
        codes = np.round(blocks * inverse)
        x = (codes * scale.astype(np.float16).astype(np.float32)).reshape(x.shape)
    return x.astype(np.float64)


def rms_norm(x):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5)


def rope(x):
    """[n, heads, dim]: neighbouring pairs turn, as llama.cpp turns the llama architecture's."""
    n, _, dim = x.shape
    angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, dim, 2) / dim)
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def logits(tokens, n_vocab, kv):
    """[n_tokens, n_vocab] of one sequence from position 0 on."""
    w = {name: values.astype(np.float64) for name, values in tiny.tensors(n_vocab)}
    n, group = len(tokens), tiny.N_HEAD // tiny.N_HEAD_KV
    x = w["token_embd.weight"][tokens]
    hidden = np.triu(np.ones((n, n), bool), 1)
    for layer in range(tiny.N_LAYER):
        name = f"blk.{layer}."
        h = rms_norm(x)
        q = rope((h @ w[name + "attn_q.weight"].T).reshape(n, tiny.N_HEAD, tiny.HEAD_DIM))
        k = rope((h @ w[name + "attn_k.weight"].T).reshape(n, tiny.N_HEAD_KV, tiny.HEAD_DIM))
        v = (h @ w[name + "attn_v.weight"].T).reshape(n, tiny.N_HEAD_KV, tiny.HEAD_DIM)
        k, v = round_to(k, kv), round_to(v, kv)
        out = np.empty((n, tiny.N_HEAD, tiny.HEAD_DIM))
        for head in range(tiny.N_HEAD):
            z = q[:, head] @ k[:, head // group].T / tiny.HEAD_DIM**0.5
            z[hidden] = -np.inf
            p = np.exp(z - z.max(axis=1, keepdims=True))
            out[:, head] = p / p.sum(axis=1, keepdims=True) @ v[:, head // group]
        x = x + out.reshape(n, -1) @ w[name + "attn_output.weight"].T
        h = rms_norm(x)
        gate = h @ w[name + "ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[name + "ffn_up.weight"].T)) @ w[name + "ffn_down.weight"].T
    return rms_norm(x) @ w["output.weight"].T
