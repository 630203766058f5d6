"""Policies that live on what earlier queries attended to, in NumPy: h2o, snapkv, tova, pillar, infllm (docs/POLICIES.md). A step
goes on from the rows that the program kept, so that one near-tie does not count again at every later step."""

import numpy as np

from stored import Pick, percent, rows_pick, share_error, softmax


def prompt_shares(layer, kv_head, queries):
    """[n queries, group, n_prompt]: causal softmax of the prompt's queries."""
    k = layer.k[:layer.n_prompt, kv_head]
    q = layer.q[queries, kv_head * layer.group:(kv_head + 1) * layer.group]
    logits = layer.scale * (q.reshape(-1, layer.dim) @ k.T).reshape(len(queries), layer.group, -1)
    logits[np.arange(layer.n_prompt)[None, None] > np.asarray(queries)[:, None, None] + np.zeros((1, layer.group, 1))] = -np.inf
    return softmax(logits)


def total_rows(keys, default, step):
    if "budget" in keys:
        return int(percent(keys["budget"]) * step.n)
    return int(keys.get("tokens", default))


def fill(values, n):
    out = np.zeros(n)
    out[:len(values)] = values
    return out


def judge_kept(pick, rows, i, s):
    wrong = pick.wrong(rows)
    return [f"step {i}, set {s}: {wrong}"] if wrong else []


# Sums of up to 1,500 FP32 multiply-adds of shares, each of them off by some 1e-5 of itself.
SUM_ERROR = 2e-4


def check_h2o(name, keys, layer, steps):
    del name
    per_head = keys.get("share", "per_head") == "per_head" and "budget" not in keys
    sums = []
    for g in range(layer.n_kv_heads):
        of_head = np.zeros((layer.group, layer.n_prompt))
        for at in range(0, layer.n_prompt, 256):
            of_head += prompt_shares(layer, g, np.arange(at, min(at + 256, layer.n_prompt))).sum(0)
        sums += list(of_head) if per_head else [of_head.sum(0)]
    alive = [np.ones(layer.n_prompt, bool) for _ in sums]
    wrongs = []
    for i, said in enumerate(steps):
        step = layer.step(i)
        if said["dense"]:
            return [f"step {i}: dense, for reason {said['reason']}"]
        for s, rows in enumerate(said["k"]):
            total = len(rows) if "budget" in keys else total_rows(keys, 97, step)
            recent = int(np.ceil(percent(keys.get("recent", "50%")) * total))
            always = np.arange(step.n) >= step.n - max(recent, 1)
            scores, living = fill(sums[s], step.n), np.append(alive[s], True)
            always &= living
            pick = rows_pick(always, scores, SUM_ERROR * scores + 1e-6, total - always.sum(), living)
            wrongs += judge_kept(pick, rows, i, s)
            kept = np.zeros(step.n, bool)
            kept[rows] = True
            alive[s] = kept
            g = s // layer.group if per_head else s
            logits = step.logits(g)[:, kept]
            shares = np.zeros((layer.group, step.n))
            shares[:, kept] = softmax(logits)
            sums[s] = scores + (shares[s % layer.group] if per_head else shares.sum(0))
    return wrongs


def pool_around(votes, pool, average):
    """As the original's max_pool1d and avg_pool1d (kernel `pool`, stride 1, padding pool // 2): a mean counts its padding."""
    reach = pool // 2
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(votes, reach), pool)
    return windows.sum(1) / pool if average else windows.max(1)  # votes are not negative


def check_snapkv(name, keys, layer, steps):
    """One vote at the first step; what follows the prompt stays."""
    del name
    observe, pool = int(keys.get("observe", 32)), int(keys.get("pool", 7))
    wrongs = []
    for s in range(layer.n_kv_heads):
        queries = np.arange(layer.n_prompt - observe, layer.n_prompt)
        votes = prompt_shares(layer, s, queries).sum((0, 1))
        # The observing rows are kept in any case; the others are pooled.
        n_old = layer.n_prompt - observe
        pooled = pool_around(votes[:n_old], pool, average=keys.get("pooling", "max") == "average")
        first = None
        for i, said in enumerate(steps):
            step = layer.step(i)
            if said["dense"]:
                return [f"step {i}: dense, for reason {said['reason']}"]
            rows = np.asarray(said["k"][s], int)
            if first is None:
                total = total_rows(keys, 193, step) if "budget" not in keys else len(rows)
                always = np.arange(step.n) >= n_old
                scores = fill(pooled, step.n)
                wrongs += judge_kept(rows_pick(always, scores, SUM_ERROR * scores + 1e-7, total - always.sum()), rows, i, s)
                first = rows
            elif not np.array_equal(rows, np.append(first, np.arange(layer.n_prompt + 1, step.n))):
                wrongs.append(f"step {i}, set {s}: not the rows of the first step and all that follow")
    return wrongs


def check_tova(name, keys, layer, steps):
    del name
    query = [layer.n_prompt - 1]
    shares = sum(prompt_shares(layer, g, query)[0].sum(0) for g in range(layer.n_kv_heads))
    alive, wrongs = np.ones(layer.n_prompt, bool), []
    for i, said in enumerate(steps):
        step = layer.step(i)
        if said["dense"]:
            return [f"step {i}: dense, for reason {said['reason']}"]
        if any(rows != said["k"][0] for rows in said["k"]):
            wrongs.append(f"step {i}: KV heads keep different rows")
        rows = said["k"][0]
        total = len(rows) if "budget" in keys else total_rows(keys, 193, step)
        always = np.arange(step.n) == step.n - 1
        scores, living = fill(shares, step.n), np.append(alive, True)
        wrongs += judge_kept(rows_pick(always, scores, SUM_ERROR * scores + 1e-9, total - 1, living), rows, i, 0)
        alive = np.isin(np.arange(step.n), rows)
        shares = np.zeros(step.n)
        for g in range(layer.n_kv_heads):
            shares[alive] += softmax(step.logits(g)[:, alive]).sum(0)
    return wrongs


def check_pillar(name, keys, layer, steps):
    """The rows of most mass by the prompt's last 17 queries; those of the last call that its first one did not see stay."""
    del name
    anchor, window, n_counted = int(keys.get("anchor", 1)), int(keys.get("window", 64)), 17
    worth, n_base = [], layer.n_prompt - n_counted + 1
    for g in range(layer.n_kv_heads):
        worth.append(prompt_shares(layer, g, np.arange(layer.n_prompt - n_counted, layer.n_prompt)).sum((0, 1)))
    wrongs = []
    for i, said in enumerate(steps):
        step = layer.step(i)
        if said["dense"]:
            return [f"step {i}: dense, for reason {said['reason']}"]
        if said["summary_bytes"] != (layer.n_prompt * layer.n_kv_heads * (layer.row_bytes + 4) if i == 0 else 0):
            wrongs.append(f"step {i}: {said['summary_bytes']} bytes are read to choose")
        for s, rows in enumerate(said["k"]):
            always = step.ends(anchor, window, partial=False) | (np.arange(step.n) >= n_base)
            scores = fill(worth[s], step.n)
            bounds = SUM_ERROR * scores + 1e-7
            wrongs += judge_kept(rows_pick(always, scores, bounds, total_rows(keys, 193, step) - always.sum()), rows, i, s)
    return wrongs


def check_infllm(name, keys, layer, steps):
    """128-row blocks of what lies between anchor and window, by 4 representatives each; the rest widens the window."""
    del name
    anchor, window, size = int(keys.get("anchor", 64)), int(keys.get("window", 64)), 128
    local = []  # by KV head: what a row got from the queries that saw it among their last `window`
    for g in range(layer.n_kv_heads):
        k, sums = layer.k[:layer.n_prompt, g], np.zeros(layer.n_prompt)
        for at in range(0, layer.n_prompt, 256):
            queries = np.arange(at, min(at + 256, layer.n_prompt))
            shares = prompt_shares(layer, g, queries).sum(1)
            near = (queries[:, None] - np.arange(len(k))[None] < window) & (np.arange(len(k))[None] <= queries[:, None])
            sums += (shares * near).sum(0)
        local.append(sums)
    wrongs = []
    for i, said in enumerate(steps):
        step = layer.step(i)
        if said["dense"]:
            return [f"step {i}: dense, for reason {said['reason']}"]
        total = total_rows(keys, 385, step) if "budget" not in keys else len(said["k"][0])
        middle = np.arange(anchor, step.n - window)
        blocks = [middle[at:at + size] for at in range(0, len(middle), size)]
        scores, bounds = np.zeros(len(blocks)), np.zeros(len(blocks))
        for g in range(layer.n_kv_heads):
            q = step.heads(g).sum(0)
            sums = fill(local[g], step.n)
            for b, rows in enumerate(blocks):
                order = rows[np.argsort(-sums[rows], kind="stable")]
                products = step.k[order, g] @ q
                scores[b] += products[:4].sum()
                bounds[b] += 1e-5 * (np.abs(step.k[order[:4], g]) @ np.abs(q)).sum()
                # Representatives that nearly tie may change places.
                close = np.flatnonzero(sums[order[4:]] >= sums[order[3]] * (1 - SUM_ERROR) - 1e-7)
                bounds[b] += sum(abs(products[4 + c] - products[3]) for c in close)
        spare = total - anchor - window
        # Whole blocks of 128; the last, shorter one may be among them.
        ends = step.ends(anchor, window, partial=False)
        item = np.full(step.n, Pick.ALWAYS)
        for b, rows in enumerate(blocks):
            item[rows] = b
        item[ends] = Pick.ALWAYS
        for s, rows in enumerate(said["k"]):
            if len(rows) != total:
                wrongs.append(f"step {i}, set {s}: {len(rows)} rows are read, not {total}")
            # What widens the window is no choice: count blocks read whole.
            have = np.isin(np.arange(step.n), rows)
            whole = [b for b, block in enumerate(blocks) if have[block].all()]
            order = np.argsort(-scores, kind="stable")
            n_fit = spare // size
            best = order[:n_fit]
            for b in best:
                rivals = [w for w in whole if scores[w] + bounds[w] >= scores[b] - bounds[b]]
                if b not in whole and len(rivals) < n_fit:
                    wrongs.append(f"step {i}, set {s}: block {b} scores {scores[b]:.6g}, one of the best {n_fit}, and is not "
                                  f"read; {whole} are, {scores[whole]}")
    return wrongs
