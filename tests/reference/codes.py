"""`condense` in NumPy (docs/POLICIES.md, docs/CONDENSE_POLICY.md). Which entries a codebook has is k-means, which leaves
room: the program hands over centroids, codebook and codes. That centroids are the rounded means, weights those of the
prompt's queries, and codes the nearest entries is checked here; so are estimates, shortlist, and whose values are read.

Bound on an estimate: the program's tables hold products in 8 bits, each off by half a step; two nibbles of a byte fill 255
steps at most. Its exponentials come from a float's exponent bits: off by 3.1 % at most."""

import numpy as np

from stored import Pick, percent, rows_pick, share_error, softmax

SEGMENT = 64
EXPONENTIAL = 0.032


class Codes:
    """One KV head's: segments' centroids, every coded row's nibbles, the codebook."""

    def __init__(self, said, layer, kv_head):
        book = said["book"]
        self.centroids = np.array(said["centroids"], float) * np.array(said["scales"])[:, None]
        self.scales, self.nibbles, self.first = np.array(said["scales"]), np.array(said["nibbles"]), book["first"]
        self.entries = np.array(book["entries"]).reshape(-1, 16)
        self.channel, self.weight, dim = np.array(book["channel"], int), np.array(book["weight"]), layer.dim
        if book["to_code"]:
            self.to_code = np.array(book["to_code"]).reshape(-1, dim)
            self.to_query = np.array(book["to_query"]).reshape(-1, dim)
        else:
            self.to_code = np.eye(dim)[self.channel] * self.weight[:, None]
            self.to_query = np.eye(dim)[self.channel] / self.weight[:, None]
        self.n_segments, self.layer, self.kv_head = len(self.centroids), layer, kv_head

    def parts(self):
        return [slice(a, b) for a, b in zip(self.first, self.first[1:])]

    def logits(self, q, scale, n_segments):
        """Estimates of the rows of the first segments, and their bound. q: [dim]"""
        n, pair, step = n_segments * SEGMENT, [], 0.0
        found = np.repeat(scale * self.centroids[:n_segments] @ q, SEGMENT)
        for i, part in enumerate(self.parts()):
            products = scale * (self.to_query[part] @ q) @ self.entries[part]
            found = found + products[self.nibbles[:n, i]]
            pair.append(np.ptp(products) if products.size else 0.0)
        step = max(a + b for a, b in zip(pair[::2], pair[1::2])) / 250
        return found, len(pair) * step / 2 + 1e-4

    def wrongs(self):
        """What does not follow from the stored keys and queries."""
        layer, wrongs = self.layer, []
        keys = layer.k[:self.n_segments * SEGMENT, self.kv_head].reshape(self.n_segments, SEGMENT, -1)
        off = np.abs(keys.mean(1) - self.centroids).max(1)
        if np.any(off > 0.51 * self.scales) or np.any(127.6 * self.scales < np.abs(keys.mean(1)).max(1)):
            wrongs.append("a centroid is not its segment's mean, rounded")
        y = ((keys - self.centroids[:, None]).reshape(-1, layer.dim)) @ self.to_code.T
        for i, part in enumerate(self.parts()):
            away = ((y[:, part, None] - self.entries[None, part]) ** 2).sum(1)
            taken = away[np.arange(len(y)), self.nibbles[:, i]]
            if np.any(taken > away.min(1) + 1e-4 * (away.max() + 1e-30)):
                wrongs.append(f"nibble {i}: {(taken > away.min(1) * 1.001).sum()} rows do not have their nearest entry")
        if np.allclose(self.weight, 1):
            return wrongs
        group = slice(self.kv_head * layer.group, (self.kv_head + 1) * layer.group)
        moment = (layer.q[layer.n_prompt - 240:layer.n_prompt, group] ** 2).sum((0, 1))
        ratio = self.weight / np.sqrt(moment + 0.003 * moment.mean())[self.channel]
        if np.ptp(ratio) > 1e-3 * ratio.max():
            wrongs.append("channel weights are not those of the prompt's last 240 rows")
        return wrongs


def budget_wrong(keys, step, said):
    """All bytes read, against the budget; a row more for each KV head would exceed it."""
    layer = step.layer
    read = sum(layer.row_bytes * (len(k) + len(v)) for k, v in zip(said["k"], said["v"])) + said["summary_bytes"]
    allowed = percent(keys.get("budget", "8%")) * step.dense_bytes * layer.n_kv_heads
    if read > allowed:
        return f"{read} bytes are read of {allowed:.0f}"
    if "mass" not in keys and read + 4 * layer.row_bytes * layer.n_kv_heads < allowed:
        return f"only {read} bytes are read of {allowed:.0f}"
    return ""


def best_segments(keys, step, kv_head, codes, n_segments):
    """[n_segments] bool: whose codes are read; None where a near-tie leaves it open."""
    n = int(np.ceil(percent(keys["scan"]) * n_segments - 1e-9))
    scores = sum(softmax(step.scale * codes.centroids[:n_segments] @ q) for q in step.heads(kv_head))
    order = np.argsort(-scores, kind="stable")
    if n < n_segments and scores[order[n - 1]] - scores[order[n]] < 1e-4 * scores[order[n]]:
        return None
    return np.isin(np.arange(n_segments), order[:n])


def head_wrongs(keys, step, said, kv_head, codes):
    anchor, window = int(keys.get("anchor", 1)), int(keys.get("window", 64))
    ends = step.ends(anchor, window, partial=False)
    n_segments = (step.n - window) // SEGMENT
    n_coded = n_segments * SEGMENT
    loose = ~ends & (np.arange(step.n) >= n_coded)
    exact, error = step.logits(kv_head), step.logit_error(kv_head)
    scanned = np.ones(n_segments, bool)
    if "scan" in keys:
        scanned = best_segments(keys, step, kv_head, codes, n_segments)
        if scanned is None:
            return []
    coded = ~ends & (np.arange(step.n) < n_coded)
    coded[:n_coded] &= np.repeat(scanned, SEGMENT)
    always = ends | loose
    mixed, bound = exact.copy(), np.zeros_like(exact)
    for h, q in enumerate(step.heads(kv_head)):
        found, off = codes.logits(q, step.scale, n_segments)
        mixed[h, :n_coded] = np.where(ends[:n_coded], exact[h, :n_coded], found)
        bound[h, :n_coded] = off
    within = always | coded
    # The normaliser is common to a head's rows: only its part in the sum over heads can be off.
    shares = np.exp(mixed - mixed[:, within].max(1, keepdims=True))
    shares /= shares[:, within].sum(1, keepdims=True)
    worst = shares * (np.expm1(bound) + EXPONENTIAL + 1e-3)
    rows, v_rows = np.asarray(said["k"][kv_head], int), np.asarray(said["v"][kv_head], int)
    n_a = len(rows) - always.sum()
    wrongs = []
    if wrong := rows_pick(always, shares.sum(0), worst.sum(0), n_a, coded).wrong(rows):
        wrongs.append(f"shortlist: {wrong}")
    read = np.isin(np.arange(step.n), rows)
    true = np.zeros_like(exact)
    true[:, read] = softmax(exact[:, read])
    n_b = len(v_rows) - ends.sum()
    wanted = float(keys.get("split", 0.5)) * (n_a + loose.sum())
    if abs(n_b - wanted) > 1:
        wrongs.append(f"values of {n_b} rows are read, not of {wanted}")
    if wrong := rows_pick(ends, true.sum(0), share_error(true, error).sum(0), n_b, read).wrong(v_rows):
        wrongs.append(f"values: {wrong}")
    rest = np.array(said["rest"]).reshape(step.layer.n_heads, -1)[kv_head * step.group]
    mean = step.v[:n_coded - SEGMENT, kv_head].mean(0)
    if np.abs(rest - mean).max() > 1e-3 * np.abs(step.v[:n_coded, kv_head]).max():
        wrongs.append("the value of the others is not the mean over all closed segments but the newest")
    return wrongs


def check_condense(name, keys, layer, steps):
    del name
    if any(said["dense"] for said in steps):
        return ["dense, for reason " + ", ".join(str(said.get("reason")) for said in steps)]
    codes = [Codes(said, layer, g) for g, said in enumerate(steps[-1]["codes"])]
    wrongs = [f"KV head {g}: {wrong}" for g, of_head in enumerate(codes) for wrong in of_head.wrongs()]
    for i, said in enumerate(steps):
        step = layer.step(i)
        wrongs += [f"step {i}: {wrong}"] if (wrong := budget_wrong(keys, step, said)) else []
        for g in range(layer.n_kv_heads):
            wrongs += [f"step {i}, KV head {g}: {wrong}" for wrong in head_wrongs(keys, step, said, g, codes[g])]
    return wrongs
