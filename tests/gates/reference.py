"""`seer` and `nsa` in NumPy, in double, from the papers' formulas: what each block is worth, and what is read."""

import numpy as np


def angles(rule, positions):
    """[positions, n_dims / 2], each frequency by repeated products in FP32, as the host has them."""
    half = rule["n_dims"] // 2
    step = np.float32(np.float32(rule["freq_base"]) ** np.float32(-2.0 / rule["n_dims"]))
    theta = np.array(positions, np.float32)
    columns = []
    for i in range(half):
        columns.append(rule.get("scale", 1.0) * np.float64(theta) / rule.get("factors", np.ones(half))[i])
        theta = theta * step
    return np.stack(columns, -1)


def rotate(rule, x, positions, back=False):
    """x: [positions, …, channels]"""
    if rule["type"] == "none":
        return x
    n, half = rule["n_dims"], rule["n_dims"] // 2
    angle = angles(rule, positions).reshape(len(positions), *[1] * (x.ndim - 2), half)
    cos, sin = np.cos(angle), np.sin(angle) * (-1 if back else 1)
    first, second = (slice(0, half), slice(half, n)) if rule["type"] == "neox" else (slice(0, n, 2), slice(1, n, 2))
    out = np.array(x, np.float64)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def seer_scores(gate, keys, q):
    """keys: [n, KV heads, d], q: [heads, d], as the host stores and hands them. Logits [KV heads, whole blocks]."""
    n, n_kv, d = keys.shape
    size, rule, dim = gate["block"], gate["rope"], gate["q"].shape[-1]
    own = dict(rule, type="none" if rule["type"] == "none" else "neox", n_dims=dim)
    k = rotate(rule, keys.astype(np.float64), np.arange(n), back=True)[:n // size * size]
    k = k.reshape(-1, size, n_kv, d)
    pooled = np.concatenate([k.max(1), k.min(1), k.mean(1)], -1)
    gk = np.einsum("bhi,hio->bho", pooled, gate["k"].astype(np.float64))
    before = rotate(rule, q.astype(np.float64)[None], [n - 1], back=True)[0]
    gq = np.einsum("hgi,hgio->ho", before.reshape(n_kv, -1, d), gate["q"].astype(np.float64))
    if "q_norm" in gate:
        gq, gk = rms_norm(gq, gate["q_norm"]), rms_norm(gk, gate["k_norm"])
    gq = rotate(own, gq[None], [n - 1])[0]
    gk = rotate(own, gk, np.arange(len(gk)) * size)
    return np.einsum("ho,bho->hb", gq, gk) / np.sqrt(dim)


def nsa_scores(gate, keys, q, scale):
    """The same for nsa: sums of shares."""
    n, n_kv, d = keys.shape
    kernel, stride, size, rule = gate["kernel"], gate["stride"], gate["block"], gate["rope"]
    k = rotate(rule, keys.astype(np.float64), np.arange(n), back=True)
    starts = np.arange(0, n - kernel + 1, stride)
    runs = np.stack([k[s:s + kernel] for s in starts])  # [runs, kernel, KV heads, d]
    runs = runs + gate["position"].astype(np.float64).transpose(1, 0, 2)
    w = gate["w"].astype(np.float64).reshape(n_kv, kernel, d, d)
    compressed = rotate(rule, np.einsum("rkhd,hkde->rhe", runs, w), starts)
    logits = scale * np.einsum("hgd,rhd->hgr", q.astype(np.float64).reshape(n_kv, -1, d), compressed)
    share = np.exp(logits - logits.max(-1, keepdims=True))
    share = (share / share.sum(-1, keepdims=True)).sum(1)  # [KV heads, runs]
    scores = np.zeros((n_kv, n // size))
    for b in range(n // size):
        for r, start in enumerate(starts):  # rows in both, in pieces of `stride`
            common = min(start + kernel, (b + 1) * size) - max(start, b * size)
            scores[:, b] += share[:, r] * max(0, common // stride)
    return scores


def shares(logits, n, size):
    """Softmax over blocks, a last one that is not whole with the logit 0."""
    all_logits = np.concatenate([logits, np.zeros((len(logits), 1 if n % size else 0))], 1)
    share = np.exp(all_logits - all_logits.max(1, keepdims=True))
    return (share / share.sum(1, keepdims=True))[:, :logits.shape[1]]


def read_rows(scores, n, size, anchor, window, tokens=None, chosen=None):
    """Positions read by one KV head; and the gap between the last block taken and the first not taken. `chosen`: those
    blocks instead of the best that `tokens` rows hold."""
    read = set(range(anchor)) | set(range(n - window, n))
    last = (n - 1) // size
    order = [last] + sorted((b for b in range(n // size) if b != last), key=lambda b: (-scores[b], b))
    if chosen is not None:
        order = [b for b in order if b == last or b in chosen]
    taken = 0
    for block in order:
        rows = set(range(block * size, min(n, (block + 1) * size)))
        if tokens is not None and len(read | rows) > tokens:
            break
        read |= rows
        taken += 1
    gap = np.inf
    if tokens is not None:
        if 1 < taken < len(order):
            gap = scores[order[taken - 1]] - scores[order[taken]]
        for row in reversed(range(n)):
            if len(read) < tokens:
                read.add(row)
    return sorted(read), gap
