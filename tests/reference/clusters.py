"""`tactic` and `retrieval` in NumPy, given the clusters: means, ranking, curve, set (docs/POLICIES.md). The clusters
themselves are k-means, which leaves room: the program hands over which rows each has."""

import numpy as np

from stored import Pick, half, percent, rows_pick, share_error


class Ranked:
    """One KV head's clusters, best first."""

    def __init__(self, step, kv_head, lists, always):
        self.lists = [np.asarray(rows, int) for rows in lists]
        means = half(np.array([step.k[rows, kv_head].mean(0) for rows in self.lists]))
        q = step.heads(kv_head)
        logits = step.scale * q @ means.T
        # One channel of a mean may round to f16 the other way.
        error = 2**-10 * (step.scale * np.abs(q)[:, None] * np.abs(means)[None]).max(2) + 1e-5
        # A softmax over the clusters' rows, each at its cluster's mean.
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares @ np.array([len(rows) for rows in self.lists])[:, None]
        self.scores, self.bounds = shares.sum(0), (shares * np.expm1(2 * error)).sum(0) + 1e-12
        self.sizes = np.array([(~always[rows]).sum() for rows in self.lists])


def in_no_list(step, lists):
    loose = np.ones(step.n, bool)
    loose[np.concatenate([np.asarray(rows, int) for rows in lists])] = False
    return loose


def check_tactic(name, keys, layer, steps):
    """The set is the best clusters, whole; where the curve ends it, the true mass of what is read is near `mass`."""
    del name
    wrongs, most = [], percent(keys.get("budget", "25%"))
    for i, said in enumerate(steps):
        step = layer.step(i)
        if said["dense"]:
            wrongs.append(f"step {i}: dense, for reason {said['reason']}")
            continue
        read = sum(2 * layer.row_bytes * len(rows) for rows in said["k"]) + said["summary_bytes"]
        if read > most * step.dense_bytes * layer.n_kv_heads:
            wrongs.append(f"step {i}: {read} bytes are read, above {most:.0%}")
        for g in range(layer.n_kv_heads):
            lists = said["clusters"][g]
            always = step.ends(int(keys.get("anchor", 1)), int(keys.get("window", 64)), False) | in_no_list(step, lists)
            ranked = Ranked(step, g, lists, always)
            item = np.full(step.n, Pick.ALWAYS)
            for c, rows in enumerate(ranked.lists):
                item[rows] = c
            item[always] = Pick.ALWAYS
            pick = Pick(item, ranked.scores, ranked.bounds, (0, len(lists)))
            if wrong := pick.wrong(said["k"][g]):
                wrongs.append(f"step {i}, head {g}: {wrong}")
    return wrongs


def check_retrieval(name, keys, layer, steps):
    """The best rows of the probed lists by exact share; rows of a list within the bounds of the last probed one count as
    either. With a budget in bytes how many are probed is taken from what is read, and shares are good
    to 1 %."""
    del name
    wrongs = []
    for i, said in enumerate(steps):
        step = layer.step(i)
        if said["dense"]:
            wrongs.append(f"step {i}: dense, for reason {said['reason']}")
            continue
        for g in range(layer.n_kv_heads):
            lists, rows = said["clusters"][g], np.asarray(said["k"][g], int)
            always = step.ends(int(keys.get("anchor", 1)), int(keys.get("window", 64)), False) | in_no_list(step, lists)
            ranked = Ranked(step, g, lists, always)
            total = int(keys.get("tokens", 193)) - always.sum() if "budget" not in keys else len(rows) - always.sum()
            order = np.argsort(-ranked.scores, kind="stable")
            probe = min(int(keys.get("probe", 32)), len(order))
            listed = np.concatenate([ranked.lists[c][~always[ranked.lists[c]]] for c in order])
            n_probed = max(sum(len(ranked.lists[c]) for c in order[:probe]), total)
            if "budget" in keys:  # more or fewer than of `probe` lists: at least up to the last one that is read
                n_probed = np.flatnonzero(np.isin(listed, rows)).max(initial=-1) + 1
            probed = np.isin(np.arange(step.n), listed[:n_probed])  # of the last list, its first rows
            probe = min(np.searchsorted(np.cumsum(ranked.sizes[order]), n_probed) + 1, len(order))
            edge, near = order[probe - 1], []
            for c in range(len(order)):
                if abs(ranked.scores[c] - ranked.scores[edge]) <= ranked.bounds[c] + ranked.bounds[edge] and c != edge:
                    near.extend(ranked.lists[c])
            logits, within = step.logits(g), probed | always
            top = logits[:, within].max(1, keepdims=True)
            shares = np.exp(logits - top) / np.exp(logits[:, within] - top).sum(1, keepdims=True)
            bounds = share_error(shares, step.logit_error(g)).sum(0)
            if "budget" in keys:  # rows probed after the last one that is read take part in the normalisers
                bounds += 0.01 * shares.sum(0)
            if near:
                probed[near] = True
                bounds[near] = np.inf
            pick = rows_pick(always, shares.sum(0), bounds, total, probed)
            if wrong := pick.wrong(rows):
                wrongs.append(f"step {i}, head {g}, {probe} lists: {wrong}")
            allowed = percent(keys.get("budget", "100%")) * step.dense_bytes * layer.n_kv_heads
        read = sum(2 * layer.row_bytes * len(rows) for rows in said["k"]) + said["summary_bytes"]
        if read > allowed:
            wrongs.append(f"step {i}: {read} bytes are read of {allowed:.0f}")
    return wrongs
