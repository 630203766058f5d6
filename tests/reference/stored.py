"""q, K and V of a real model as kv_capture stores them, and what a choice of rows is compared with.

Rows are numbered from 0; at a step with n visible rows the newest is n - 1 and all before it are visible. Arithmetic is
in double, on the stored (rounded) keys and values."""

import dataclasses
import json
import pathlib

import numpy as np

BLOCK = 16
EPSILON = 2.0**-24  # FP32: half a unit in the last place, relative


def percent(text):
    """Of a spec's key: "5%" is 0.05."""
    return float(text.rstrip("%")) / 100


def half(values):
    """As summaries are kept: rounded to f16."""
    return np.asarray(values, np.float32).astype(np.float16).astype(np.float64)


def from_q8_0(raw, n_heads, dim):
    blocks = raw.reshape(-1, n_heads, dim // 32, 34)
    scale = blocks[..., :2].copy().view(np.float16).astype(np.float64)
    return (blocks[..., 2:].view(np.int8) * scale).reshape(-1, n_heads, dim)


def softmax(logits):
    """Over the last axis."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


class Layer:
    """q: [n_rows, n_heads, dim]; k, v: [n_rows, n_kv_heads, dim]."""

    def __init__(self, folder, number):
        folder = pathlib.Path(folder)
        shape = json.loads((folder / "fixture.json").read_text())
        self.number, self.scale = number, shape["scale"]
        self.n_prompt, self.n_steps = shape["n_prompt"], shape["n_steps"]
        self.n_heads, self.n_kv_heads, self.dim = shape["n_heads"], shape["n_kv_heads"], shape["k_dim"]
        self.group = self.n_heads // self.n_kv_heads
        self.kv_type = shape["kv_type"]
        n = self.n_prompt + self.n_steps
        self.q = np.fromfile(folder / f"{number}.q", np.float32).reshape(n, self.n_heads, self.dim).astype(np.float64)
        self.k, self.v = (self.load(folder / f"{number}.{name}", n) for name in "kv")
        self.summaries = {}  # frame.Summaries by step and blocks: specs share them
        self.row_bytes = {"f16": 2 * self.dim, "q8_0": self.dim // 32 * 34}[self.kv_type]  # of K; V has as many

    def load(self, path, n):
        raw = np.fromfile(path, np.uint8)
        if self.kv_type == "q8_0":
            return from_q8_0(raw, self.n_kv_heads, self.dim)
        return raw.view(np.float16).reshape(n, self.n_kv_heads, self.dim).astype(np.float64)

    def step(self, i):
        return Step(self, i)


class Step:
    """The i-th one-row step after the prompt."""

    def __init__(self, layer, i):
        self.layer, self.i = layer, i
        self.n = layer.n_prompt + i + 1
        self.q = layer.q[self.n - 1]
        self.k, self.v = layer.k[:self.n], layer.v[:self.n]
        self.scale, self.group = layer.scale, layer.group

    def heads(self, kv_head):
        """[group, dim]: the queries of a KV head's group."""
        return self.q[kv_head * self.group:(kv_head + 1) * self.group]

    def logits(self, kv_head):
        """[group, n]"""
        return self.scale * self.heads(kv_head) @ self.k[:, kv_head].T

    def logit_error(self, kv_head):
        """[group, n]: what FP32 may be off: two chains of multiply-adds and the scale."""
        sizes = self.scale * np.abs(self.heads(kv_head)) @ np.abs(self.k[:, kv_head]).T
        return (self.layer.dim / 2 + 4) * EPSILON * sizes

    def shares(self, kv_head):
        """[group, n]: softmax over all visible rows."""
        return softmax(self.logits(kv_head))

    def ends(self, anchor, window, partial=True):
        """[n] bool: rows that are always read: the first, the last, the newest; `partial`: of a block that is not whole."""
        rows = np.arange(self.n)
        whole = self.n // BLOCK * BLOCK if partial else self.n - 1
        return (rows < anchor) | (rows >= self.n - max(window, 1)) | (rows >= whole)

    @property
    def dense_bytes(self):
        """Of one KV head."""
        return 2 * self.n * self.layer.row_bytes


# What may be off in a softmax share whose logit is off by e: p (exp(2 e) - 1), e being at most the same in the normaliser;
# and the exponential of the program, 4 units in the last place, and sums of up to n terms in 16 lanes.
def share_error(shares, logit_error):
    worst = np.max(logit_error, -1, keepdims=True)
    return shares * (np.expm1(2 * worst) + 1e-5)


@dataclasses.dataclass
class Pick:
    """One set of rows: what must be in it, and which of the items (groups of rows) score best.

    item: [n] int, each row's item; ALWAYS: must be read, NEVER: must not. scores, bounds: [n_items]; count: (least, most)
    items that are chosen. Two items may change places where their scores are within the sum of their bounds."""

    item: np.ndarray
    scores: np.ndarray
    bounds: np.ndarray
    count: tuple

    ALWAYS, NEVER = -1, -2

    def chosen(self, rows):
        """The items of which `rows` holds a row."""
        items = self.item[rows]
        return np.unique(items[items >= 0])

    def wrong(self, rows):
        """What is wrong with a set of rows; "" for nothing."""
        rows = np.asarray(rows, int)
        have = np.zeros(len(self.item), bool)
        have[rows] = True
        if np.any((self.item == self.ALWAYS) & ~have):
            return f"rows {np.flatnonzero((self.item == self.ALWAYS) & ~have)[:8]} must be read"
        if np.any((self.item == self.NEVER) & have):
            return f"rows {np.flatnonzero((self.item == self.NEVER) & have)[:8]} must not be read"
        chosen = self.chosen(rows)
        in_chosen = np.isin(self.item, chosen) & (self.item >= 0)
        if np.any(in_chosen & ~have):
            return f"rows {np.flatnonzero(in_chosen & ~have)[:8]} are missing of blocks that are read in part"
        low, high = self.count
        if not low <= len(chosen) <= high:
            return f"{len(chosen)} items are read, not {low}" + ("" if low == high else f" to {high}")
        if len(chosen) == 0 or len(chosen) == len(self.scores):
            return ""
        out = np.setdiff1d(np.arange(len(self.scores)), chosen)
        worst = chosen[np.argmin(self.scores[chosen] + self.bounds[chosen])]
        best = out[np.argmax(self.scores[out] - self.bounds[out])]
        if self.scores[worst] + self.bounds[worst] < self.scores[best] - self.bounds[best]:
            n_wrong = len(np.setdiff1d(chosen, np.argsort(-self.scores, kind="stable")[:len(chosen)]))
            return (f"item {worst} scores {self.scores[worst]:.8g} (within {self.bounds[worst]:.2g}) and is read, item {best} "
                    f"{self.scores[best]:.8g} ({self.bounds[best]:.2g}) and is not; {n_wrong} of {len(chosen)} differ")
        return ""


def rows_pick(always, scores, bounds, count, within=None):
    """Single rows: those of `within` that are not always read. scores, bounds: [n]; count: or a range."""
    rows = np.flatnonzero(~always if within is None else within & ~always)
    item = np.full(len(always), Pick.NEVER)
    item[always] = Pick.ALWAYS
    item[rows] = np.arange(len(rows))
    low, high = count if isinstance(count, tuple) else (count, count)
    return Pick(item, scores[rows], bounds[rows], (min(low, len(rows)), min(high, len(rows))))


def exact_pick(always):
    """These rows and no other."""
    return Pick(np.where(always, Pick.ALWAYS, Pick.NEVER), np.zeros(0), np.zeros(0), (0, 0))
