"""Every policy's rule in NumPy, written from docs/POLICIES.md and docs/CONDENSE_POLICY.md, not from the C++.

REFERENCE maps a policy's name to a function (keys, layer, steps) -> wrongs: keys of the spec, a stored.Layer, the steps as
policy_rows printed them; a list of what is wrong. A new policy needs an entry here, and specs in SPECS."""

import numpy as np

from codes import check_condense
from clusters import check_retrieval, check_tactic
from evicting import check_h2o, check_infllm, check_pillar, check_snapkv, check_tova
from frame import BOUNDS, LINEAR, MASSES, RANDOM, Frame
from stored import BLOCK, Pick, exact_pick, half, percent, rows_pick, share_error, softmax

REFERENCE = {}


def reference(*names):
    def note(check):
        for name in names:
            REFERENCE[name] = (lambda name: lambda keys, layer, steps: check(name, keys, layer, steps))(name)
        return check
    return note


def judge(picks, said, i):
    """Each set against its pick."""
    if said["dense"]:
        return [f"step {i}: dense, for reason {said['reason']}"]
    if len(picks) != len(said["k"]):
        return [f"step {i}: {len(said['k'])} sets of rows, not {len(picks)}"]
    return [f"step {i}, set {s}: {wrong}" for s, (pick, rows) in enumerate(zip(picks, said["k"]))
            if (wrong := pick.wrong(rows))]


# -- block policies ---------------------------------------------------------------------------------------------------

def chooses(keys, frame, i, last):
    """Whether blocks are chosen at step i; `last`: the step that chose before."""
    if last is None:
        return True
    if keys.get("reuse_cos", "off") != "off":
        now, then = frame.step.q.ravel(), frame.step.layer.step(last).q.ravel()
        if now @ then / np.linalg.norm(now) / np.linalg.norm(then) < float(keys["reuse_cos"]):
            return True
        return "reuse" in keys and i - last >= int(keys["reuse"])
    return i - last >= int(keys.get("reuse", 1))


def block_picks(name, keys, frame):
    """The sets of one step that chooses; a budget in bytes leaves the count open (budget_wrong looks at it)."""
    r = frame.n_blocks()
    count = (0, len(frame.blocks)) if r is None else (min(r, len(frame.blocks)),) * 2
    if name in RANDOM:
        zero = np.zeros(len(frame.blocks))
        n_sets = frame.step.layer.n_heads if keys.get("share") == "per_head" else frame.step.layer.n_kv_heads
        return [Pick(frame.item, zero, zero, count)] * n_sets
    picks = []
    for g, (scores, bounds) in enumerate(frame.scores()):
        if keys.get("share") == "rerank":
            n_short = r * int(keys.get("shortlist", 4))
            if n_short < len(scores):
                order = np.argsort(-scores, kind="stable")
                short = np.isin(np.arange(len(scores)), order[:n_short])
            else:
                short = np.ones(len(scores), bool)
            scores, bounds = frame.exact_mass(g, short)
        picks.append(Pick(frame.item, scores, bounds, count))
    return picks


def budget_wrong(keys, frame, said):
    """What is read keeps to budget=p%, and one more block for each KV head would not."""
    allowed = percent(keys["budget"]) * frame.step.dense_bytes * frame.step.layer.n_kv_heads
    rows = sum(frame.bytes_read(set_rows) for set_rows in said["k"])
    read = rows + (0 if frame.name == "oracle" else said["summary_bytes"])
    # Blocks are paid as whole ones, also those that the window cuts.
    n_blocks = sum(len(np.unique(frame.item[set_rows])) - 1 for set_rows in said["k"])
    n_free = sum((frame.item[set_rows] >= 0).sum() for set_rows in said["k"])
    paid = read + 2 * frame.step.layer.row_bytes * (BLOCK * n_blocks - n_free)
    block = 2 * BLOCK * frame.step.layer.row_bytes * frame.step.layer.n_kv_heads
    # A tail pays for the mean values of blocks left out.
    slack = 2 * block if frame.name == "compkv" or "tail" in keys else block
    if read > allowed:
        return f"{read} bytes are read of {allowed:.0f}"
    return f"only {read} bytes are read of {allowed:.0f}" if paid + slack <= allowed else ""


def tail_wrongs(frame, said, i):
    if "tail" not in said:
        return [f"step {i}: no tail"]
    wrongs, tail = [], said["tail"]
    per_head, group, dim = said["per_query_head"], frame.step.group, frame.step.layer.dim
    o = np.array(tail["o"]).reshape(-1, dim)
    for g in range(frame.step.layer.n_kv_heads):
        for h in range(group):
            head = g * group + h
            logit, value = (x[h] for x in frame.tail(g, said["k"][head if per_head else g]))
            off = abs(tail["max"][head] + np.log(tail["sum"][head]) - logit)
            away = np.abs(o[head] / tail["sum"][head] - value).max()
            # f16 summaries that round the other way move a logit by at most 2^-10 of its greatest term.
            if off > 2e-3 or away > 2e-3 * np.abs(frame.summaries[g].value).max():
                wrongs.append(f"step {i}, head {head}: the tail's log sum is {off:.2g} off, its value {away:.2g}")
    return wrongs


@reference(*LINEAR, *BOUNDS, *MASSES, *RANDOM)
def check_blocks(name, keys, layer, steps):
    wrongs, last, kept = [], None, None
    for i, said in enumerate(steps):
        frame = Frame(name, keys, layer.step(i))
        if said["dense"]:
            wrongs.append(f"step {i}: dense, for reason {said['reason']}")
            continue
        if chooses(keys, frame, i, last):
            picks = block_picks(name, keys, frame)
            wrongs += judge(picks, said, i)
            last = i
            kept = [frame.blocks[pick.chosen(rows)] for pick, rows in zip(picks, said["k"])]
        else:
            picks = []
            for blocks in kept:
                whole = np.isin(np.arange(frame.step.n) // BLOCK, blocks)
                picks.append(exact_pick(frame.always | whole))
            wrongs += judge(picks, said, i)
        if "budget" in keys:
            wrongs += [f"step {i}: {wrong}"] if (wrong := budget_wrong(keys, frame, said)) else []
        if keys.get("tail", "on" if name == "compkv" else "off") != "off":
            wrongs += tail_wrongs(frame, said, i)
    return wrongs


# -- patterns ---------------------------------------------------------------------------------------------------------

def strided_rows(keys, n):
    distance = n - 1 - np.arange(n)
    if "l" in keys:
        return (distance < int(keys["l"])) | (distance % int(keys["l"]) == 0)
    total = int(percent(keys["budget"]) * n) if "budget" in keys else int(keys.get("tokens", 193))
    stride = next(l for l in range(1, n + 1) if (distance % l == 0).sum() <= total / 2)
    window = max(w for w in range(n + 1) if ((distance < w) | (distance % stride == 0)).sum() <= total)
    return (distance < window) | (distance % stride == 0)


def fixed_rows(keys, n):
    l, at = int(keys.get("l", 128)), np.arange(n)
    own = (n - 1) // l
    if "c" in keys:
        return (at // l == own) | (at % l >= l - int(keys["c"]))
    total = int(percent(keys["budget"]) * n) if "budget" in keys else int(keys.get("tokens", 193))
    left = total - (at // l == own).sum()
    base, more = divmod(left, own)
    last = np.where(np.arange(own + 1) >= own - more, base + 1, base)  # the newer ones have a row more
    return (at // l == own) | (at % l >= l - last[at // l])


@reference("window", "sink", "longformer", "strided", "fixed")
def check_patterns(name, keys, layer, steps):
    wrongs = []
    for i, said in enumerate(steps):
        step = layer.step(i)
        if name in ("strided", "fixed"):
            always = (strided_rows if name == "strided" else fixed_rows)(keys, step.n)
        else:
            first = {"window": "anchor", "sink": "sink", "longformer": "anchor"}[name]
            default = {"window": (0, 64), "sink": (4, 64), "longformer": (1, 256)}[name]
            always = step.ends(int(keys.get(first, default[0])), int(keys.get("window", default[1])))
        wrongs += judge([exact_pick(always)] * layer.n_kv_heads, said, i)
    return wrongs


@reference("duo")
def check_duo(name, keys, layer, steps):
    """Of a profile, the heads from `threshold` on, or all but the `sparsity` with the least numbers, are whole."""
    whole = np.zeros(layer.n_kv_heads, bool)
    if "profile" in keys:
        profile = np.loadtxt(keys["profile"], ndmin=2)
        if "sparsity" in keys:
            n_stream = round(percent(keys["sparsity"]) * profile.size)
            order = np.argsort(profile.ravel(), kind="stable")
            streams = np.isin(np.arange(profile.size), order[:n_stream]).reshape(profile.shape)
            whole = ~streams[layer.number]
        else:
            whole = profile[layer.number] >= float(keys.get("threshold", 0.5))
    wrongs = []
    for i, said in enumerate(steps):
        step = layer.step(i)
        if whole.all():
            wrongs += [] if said["dense"] else [f"step {i}: not dense though every head is whole"]
            continue
        ends = step.ends(int(keys.get("sink", 64)), int(keys.get("window", 256)), partial=False)
        wrongs += judge([exact_pick(ends | is_whole) for is_whole in whole], said, i)
    return wrongs


@reference("dense")
def check_dense(name, keys, layer, steps):
    return [f"step {i}: not dense" for i, said in enumerate(steps) if not said["dense"]]


# -- rows -------------------------------------------------------------------------------------------------------------

@reference("topk")
def check_topk(name, keys, layer, steps):
    wrongs = []
    for i, said in enumerate(steps):
        step = layer.step(i)
        always = step.ends(int(keys.get("anchor", 1)), int(keys.get("window", 64)), partial=False)
        total = int(percent(keys["budget"]) * step.n) if "budget" in keys else int(keys.get("tokens", 193))
        picks = []
        for g in range(layer.n_kv_heads):
            shares = step.shares(g)
            error = share_error(shares, step.logit_error(g))
            picks.append(rows_pick(always, shares.sum(0), error.sum(0), total - always.sum()))
        wrongs += judge(picks, said, i)
    return wrongs


@reference("tokenselect")
def check_tokenselect(name, keys, layer, steps):
    wrongs = []
    total = int(keys.get("tokens", 2688))
    anchor, window = (int(keys[key]) if key in keys else min(most, total * part // 21)
                      for key, most, part in (("anchor", 128, 1), ("window", 512, 4)))
    reach = int(keys.get("pool", 1)) // 2
    for i, said in enumerate(steps):
        step = layer.step(i)
        if step.n <= total:
            wrongs += [] if said["dense"] else [f"step {i}: not dense though {total} rows are all"]
            continue
        always = step.ends(anchor, window, partial=False)
        votes, bounds = np.zeros(step.n), np.zeros(step.n)
        middle = np.flatnonzero(~always)
        for g in range(layer.n_kv_heads):
            shares = softmax(step.logits(g)[:, middle])
            votes[middle] += shares.sum(0)
            bounds[middle] += share_error(shares, step.logit_error(g)[:, middle]).sum(0)
        if reach:
            for x in (votes, bounds):
                x[middle] = [x[max(middle[0], r - reach):min(middle[-1], r + reach) + 1].max() for r in middle]
        wrongs += judge([rows_pick(always, votes, bounds, total - always.sum())] * layer.n_kv_heads, said, i)
    return wrongs


def at_8_bits(keys):
    """[…, dim] as q8_0 keeps them: 32 values with an f16 scale."""
    parts = keys.reshape(*keys.shape[:-1], -1, 32)
    scale = np.abs(parts).max(-1, keepdims=True) / 127
    steps = np.round(parts / np.where(scale > 0, scale, 1))
    return (steps * half(scale)).reshape(keys.shape)


@reference("topp")
def check_topp(name, keys, layer, steps):
    by, mass, most = keys.get("by", "block"), percent(keys.get("mass", "90%")), percent(keys.get("budget", "25%"))
    wrongs = []
    for i, said in enumerate(steps):
        step = layer.step(i)
        frame = Frame("mean", keys, step)
        always = frame.always if by == "block" else step.ends(int(keys.get("anchor", 1)), int(keys.get("window", 64)), False)
        picks = []
        for g in range(layer.n_kv_heads):
            logits, error = step.logits(g), step.logit_error(g)
            ends = np.flatnonzero(always)
            if by == "block":
                n_rows = np.bincount(frame.item[frame.item >= 0], minlength=len(frame.blocks))
                mean = step.heads(g) @ frame.summaries[g].mean.T * step.scale + np.log(n_rows)
                error = np.full((step.group, 1), 2e-3)
                item = frame.item
            else:
                if by == "row_q8":
                    logits = step.scale * step.heads(g) @ at_8_bits(step.k[:, g]).T
                    # One value that rounds the other way, and the scale's f16.
                    error = error + step.scale * np.abs(step.heads(g)).max(1, keepdims=True) * np.abs(step.k[:, g]).max() / 127
                item = np.where(always, -1, np.cumsum(~always) - 1)
                mean = logits[:, ~always]
                n_rows = np.ones(mean.shape[1], int)
            shares = softmax(np.concatenate([step.logits(g)[:, ends], mean], 1))
            worst = share_error(shares, np.broadcast_to(error.max(1, keepdims=True), shares.shape))
            in_ends, scores, bounds = shares[:, :len(ends)].sum(), shares[:, len(ends):].sum(0), worst[:, len(ends):].sum(0)
            order = np.argsort(-scores, kind="stable")
            reached = (in_ends + np.concatenate([[0], np.cumsum(scores[order])])) / step.group
            slack = worst.sum() / step.group / 50 + 1e-6 if by != "block" else 2e-3
            low, high = (int(np.searchsorted(reached, mass + off)) for off in (-slack, slack))
            # The budget may end it before: then another item would exceed it.
            rows = said["k"][g] if not said["dense"] else []
            read = 2 * layer.row_bytes * len(rows) + (said.get("summary_bytes", 0) / layer.n_kv_heads)
            # Blocks are paid as whole ones, also the anchor's and the one that the window cuts.
            spare = 3 * BLOCK if by == "block" else 2
            full = read + 2 * layer.row_bytes * spare > most * step.dense_bytes
            if read > most * step.dense_bytes:
                wrongs.append(f"step {i}, head {g}: {read:.0f} bytes of {most * step.dense_bytes:.0f}")
            picks.append(Pick(item, scores, bounds, (0 if full else min(low, len(scores)), min(high, len(scores)))))
        wrongs += judge(picks, said, i)
    return wrongs


for _name, _check in (("h2o", check_h2o), ("snapkv", check_snapkv), ("tova", check_tova), ("pillar", check_pillar),
                      ("infllm", check_infllm), ("tactic", check_tactic), ("retrieval", check_retrieval),
                      ("condense", check_condense)):
    reference(_name)(_check)
