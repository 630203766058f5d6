"""The frame of block policies and their scores, in NumPy, from docs/POLICIES.md: what is always read, candidates, budget,
sharing, reuse, tail."""

import numpy as np

from stored import BLOCK, EPSILON, Pick, half, share_error, softmax


class Summaries:
    """Of the candidate blocks of one KV head: [n_blocks, dim] f16 where the docs keep 16 bits."""

    def __init__(self, step, kv_head, blocks):
        rows = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        keys = step.k[rows, kv_head].reshape(len(blocks), BLOCK, -1)
        self.mean, self.min, self.max = half(keys.mean(1)), half(keys.min(1)), half(keys.max(1))
        self.var = keys.var(1)
        self.value = half(step.v[rows, kv_head].reshape(len(blocks), BLOCK, -1).mean(1))

    def group_var(self, n_groups):
        """[n_blocks, n_groups] f16: the mean variance of each run of channels."""
        return half(self.var.reshape(len(self.var), n_groups, -1).mean(2))


def product(q, m, scale):
    """scale q·m and its bound: FP32, and one channel of the summary rounded to f16 the other way. [n_blocks]"""
    terms = np.abs(scale * q * m)
    return scale * m @ q, (len(q) / 2 + 4) * EPSILON * terms.sum(-1) + 2**-10 * terms.max(-1)


def score_mean(keys, summaries, step, q):
    return product(q, summaries.mean, step.scale)


def score_quest(keys, summaries, step, q):
    best = np.maximum(q * summaries.min, q * summaries.max)
    return step.scale * best.sum(-1), (len(q) / 2 + 4) * EPSILON * step.scale * np.abs(best).sum(-1)


def score_unique(keys, summaries, step, q):
    mean, bound = product(q, summaries.mean, step.scale)
    if keys.get("form", "rms") == "abs":
        std = half(np.sqrt(summaries.var))
        offset, more = product(np.abs(q), std, step.scale)
    else:
        rms = np.sqrt(summaries.group_var(1)[:, 0])
        offset = step.scale * float(keys.get("lambda", 0.5)) * np.linalg.norm(q) * rms
        more = offset * 2**-11
    return mean + offset, bound + more


def logit_variance(summaries, step, q, groups):
    """v and its bound. [n_blocks]"""
    n_groups = len(q) if groups == "d" else int(groups)
    squares = step.scale**2 * (q * q).reshape(n_groups, -1).sum(1)
    terms = squares * summaries.group_var(n_groups)
    return terms.sum(1), 2**-10 * terms.max(1) + 1e-6 * terms.sum(1)


def score_mass(keys, summaries, step, q, n_rows):
    """n_rows: those that choosing the block adds. [n_blocks]"""
    mean, bound = product(q, summaries.mean, step.scale)
    v, more = logit_variance(summaries, step, q, keys.get("groups", "4"))
    return np.log(n_rows) + mean + v / 2, bound + more / 2


LINEAR = {"mean": score_mean, "layered": score_mean}
BOUNDS = {"quest": score_quest, "unique": score_unique}
MASSES = ("mass", "compkv", "oracle")
RANDOM = ("random", "bigbird")


class Frame:
    """One step's candidates, and the scores of one policy on them."""

    def __init__(self, name, keys, step):
        self.name, self.keys, self.step = name, keys, step
        n = step.n
        self.always = step.ends(self.number("anchor", {"compkv": 16, "bigbird": 32}.get(name, 1)), self.window())
        whole = np.arange(n // BLOCK)
        self.blocks = np.array([b for b in whole if not self.always[b * BLOCK:(b + 1) * BLOCK].all()], int)
        self.item = np.full(n, Pick.ALWAYS)
        for i, b in enumerate(self.blocks):
            rows = np.arange(b * BLOCK, (b + 1) * BLOCK)
            self.item[rows[~self.always[rows]]] = i
        self.n_rows = np.bincount(self.item[self.item >= 0], minlength=len(self.blocks))
        made = step.layer.summaries.setdefault((n, self.blocks.tobytes()), [])
        if not made:
            made.extend(Summaries(step, g, self.blocks) for g in range(step.layer.n_kv_heads))
        self.summaries = made

    def number(self, key, default):
        """A key's value in this layer: window@0-7=… goes before window=…."""
        for name, value in self.keys.items():
            if name.startswith(key + "@"):
                first, _, last = name.split("@")[1].partition("-")
                last = first if "-" not in name else last or "1000000"
                if int(first) <= self.step.layer.number <= int(last):
                    return int(value)
        return int(self.keys.get(key, default))

    def window(self):
        if self.name == "layered" and "early" not in self.keys and self.step.layer.number <= 3:
            return self.number("early_window", 1024)
        return self.number("window", 32 if self.name == "compkv" else 64)

    def n_blocks(self):
        """The budget in blocks; None: in bytes."""
        layer = [name for name in self.keys if name.startswith("blocks@")]
        if "tokens" in self.keys and not layer:
            anchor = self.number("anchor", {"compkv": 16, "bigbird": 32}.get(self.name, 1))
            return (int(self.keys["tokens"]) - anchor - self.number("window", 32 if self.name == "compkv" else 64)) // BLOCK
        if "budget" in self.keys:
            return None
        return self.number("blocks", 8)

    def per_item(self, values):
        """Sums over the rows that choosing a block adds. values: [heads, n] -> [heads, n_items]"""
        free = self.item >= 0
        out = np.zeros((len(values), len(self.blocks)))
        for h, row in enumerate(values):
            out[h] = np.bincount(self.item[free], weights=row[free], minlength=len(self.blocks))
        return out

    def head_masses(self, kv_head):
        """What the group's heads give each candidate, and bounds: [group, n_items]"""
        step, summaries = self.step, self.summaries[kv_head]
        if self.name == "oracle":
            shares, error = step.shares(kv_head), share_error(step.shares(kv_head), step.logit_error(kv_head))
            if self.keys.get("by") == "value":
                values = step.v[:, kv_head]
                away = np.linalg.norm(values[None] - (shares @ values)[:, None], axis=2)
                shares, error = shares * away, error * away + shares * 1e-4 * np.linalg.norm(values, axis=1)
            return self.per_item(shares), self.per_item(error)
        scores, bounds, spreads, more = [], [], [], []
        for q in step.heads(kv_head):
            score, bound = score_mass(self.keys, summaries, step, q, self.n_rows)
            v, v_bound = logit_variance(summaries, step, q, self.keys.get("groups", "4"))
            scores.append(score), bounds.append(bound), spreads.append(v), more.append(v_bound)
        shares, error = softmax(np.array(scores)), None
        error = share_error(shares, np.array(bounds))
        if self.name == "compkv":
            error = error * np.array(spreads) + shares * np.array(more)
            shares = shares * np.array(spreads)
        return shares, error

    def scores(self):
        """By sharing: sets of (scores, bounds), one a KV head or query head."""
        share, n_kv = self.keys.get("share", "kv_group"), self.step.layer.n_kv_heads
        if self.name in MASSES:
            by_head = [self.head_masses(g) for g in range(n_kv)]
            if share == "per_head":
                return [(s, b) for shares, bounds in by_head for s, b in zip(shares, bounds)]
            if share == "shared":
                return [(sum(s.sum(0) for s, _ in by_head), sum(b.sum(0) for _, b in by_head))] * n_kv
            if share == "head_union":
                return [(s.max(0), b.max(0)) for s, b in by_head]
            return [(s.sum(0), b.sum(0)) for s, b in by_head]
        scorer = LINEAR.get(self.name) or BOUNDS[self.name]

        def score(kv_head, q):
            return scorer(self.keys, self.summaries[kv_head], self.step, q)

        def heads(kv_head):
            found = [score(kv_head, q) for q in self.step.heads(kv_head)]
            return np.array([s for s, _ in found]), np.array([b for _, b in found])

        by_head = [heads(g) for g in range(n_kv)]
        if share == "per_head":
            return [(s, b) for scores, bounds in by_head for s, b in zip(scores, bounds)]
        if share == "head_union" or (self.name in BOUNDS and share in ("kv_group", "rerank")):
            return [(s.max(0), b.max(0)) for s, b in by_head]
        if share == "shared" and self.name in BOUNDS:
            return [(np.max([s.max(0) for s, _ in by_head], 0), np.max([b.max(0) for _, b in by_head], 0))] * n_kv
        if share == "shared":
            found = [score(g, self.step.q.mean(0)) for g in range(n_kv)]
            return [(np.mean([s for s, _ in found], 0), np.mean([b for _, b in found], 0) * 1.01)] * n_kv
        found = [score(g, self.step.heads(g).mean(0)) for g in range(n_kv)]
        return [(s, 1.01 * b) for s, b in found]

    def exact_mass(self, kv_head, short):
        """Of the short-listed candidates, each head normalised over them. [n_items], 0 for the others."""
        masses = self.per_item(np.exp(self.step.logits(kv_head) - self.step.logits(kv_head).max(1, keepdims=True)))
        masses[:, ~short] = 0
        masses /= masses.sum(1, keepdims=True)
        error = np.expm1(2 * self.step.logit_error(kv_head).max(1, keepdims=True)) + 1e-5
        return masses.sum(0), (masses * error).sum(0)

    def bytes_read(self, rows):
        """K and V of one KV head's set."""
        return 2 * self.step.layer.row_bytes * len(rows)

    def tail(self, kv_head, rows):
        """The state of what is not read, per head of the group: max + log sum, and the mean value [group, dim]."""
        unread = np.setdiff1d(np.arange(self.step.n), rows)
        n_left = np.bincount(self.item[unread], minlength=len(self.blocks))
        left = np.flatnonzero(n_left)
        summaries, logits, values = self.summaries[kv_head], [], []
        for q in self.step.heads(kv_head):
            logit = np.log(n_left[left]) + self.step.scale * summaries.mean[left] @ q
            if self.keys.get("tail") == "var":
                logit += logit_variance(summaries, self.step, q, "4")[0][left] / 2
            logits.append(logit)
            values.append(softmax(logit) @ summaries.value[left])
        return np.array([np.log(np.exp(z - z.max()).sum()) + z.max() for z in logits]), np.array(values)
