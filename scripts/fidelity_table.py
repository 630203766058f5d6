"""Tables in Markdown from cells of records (fidelity_records.py): KL of every policy, ratios of the ablations, and where the
records come from."""
import collections
import math
import statistics

from fidelity_records import (ABLATIONS, BESIDE, CHANGES, FIGURE_BUDGETS, HELD_OUT, N_GENERATE, PREFIXES, SUBJECTS,
                              geometric_mean, name_of, not_sparse, percent_of, read_share)


def number(value):
    """Two digits that count."""
    value = float(f"{value:.1e}")
    digits = max(0, 1 - math.floor(math.log10(value))) if value > 0 else 1
    return f"{value:.{digits}f}".replace("0.", ".", 1) if value < 1 else f"{value:.{digits}f}"


def sparse_only(cells):
    """(the cells without what fell back to dense, a line for each that did)."""
    kept, fell_back = {}, []
    for place, cell in cells.items():
        kept[place] = {}
        for policy, teachers in cell.items():
            why = next(filter(None, map(not_sparse, teachers.values())), None)
            if why:
                fell_back.append(f"not a measurement, left out: {', '.join(place)}: {why}")
            else:
                kept[place][policy] = teachers
    return kept, fell_back


def kls(mine, policy, teacher):
    """One a prefix; None where it has no record."""
    return [cell[policy][teacher]["kl_mean"] if policy in cell else None for cell in mine]


def mean_of(values):
    """A mean is that of all prefixes, or is not given."""
    return "–" if None in values else number(geometric_mean(values))


def with_each(values):
    return f"{mean_of(values)} ({', '.join('–' if value is None else number(value) for value in values)})"


def order(policy):
    return (policy != "control", name_of(policy) != "condense", name_of(policy), "," in policy, percent_of(policy), policy)


def row(subject, policy, pinned, held_out):
    greedy = [cell[policy]["greedy"] for cell in pinned if policy in cell]
    share, same = (f"{100 * statistics.fmean(values):.1f} %" if values else "–" for values in (
        [read_share(record) for record in greedy], [record["tf_match"] for record in greedy]))
    words = [subject.name, f"`{policy}`", share, with_each(kls(pinned, policy, "greedy")),
             mean_of(kls(pinned, policy, "text")), same]
    n = f"{len(greedy)}"
    if held_out:
        words += [with_each(kls(held_out, policy, "greedy")), mean_of(kls(held_out, policy, "text"))]
        n += f" + {sum(policy in cell for cell in held_out)}"
    return f"| {' | '.join(words)} | {n} × {N_GENERATE - 1} |"


def main_table(cells):
    """A line a policy and model; columns for the held-out prefixes where any has records. Bytes and decisions are the
    figures' prefixes'."""
    anywhere = any(cells[subject.name, prefix.name] for subject in SUBJECTS for prefix in HELD_OUT)
    heads = ["model", "policy", "bytes read", "KL, dense's continuation: mean (prefixes)", "KL, the text", "same decision"]
    heads += ["held-out: KL, dense's continuation", "held-out: KL, the text"] if anywhere else []
    yield f"| {' | '.join(heads)} | n |"
    yield "| --- " * (len(heads) + 1) + "|"
    for subject in SUBJECTS:
        pinned, held_out = ([cells[subject.name, prefix.name] for prefix in prefixes] for prefixes in (PREFIXES, HELD_OUT))
        there = {policy for cell in pinned + held_out for policy in cell} - {"dense"} - (set(ABLATIONS) - set(BESIDE))
        for policy in sorted(there, key=order):
            yield row(subject, policy, pinned, held_out if anywhere else [])


def ratio(mine, percent, change, teacher):
    """KL with the change over KL without it at the same budget: geometric mean (least to greatest)."""
    plain = f"condense:budget={percent}%"
    pairs = list(zip(kls(mine, f"{plain},{change}", teacher), kls(mine, plain, teacher)))
    if any(None in pair for pair in pairs):
        return "–"
    ratios = [changed / without for changed, without in pairs]
    return f"{geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def ablation_table(cells):
    """A line a model and change; nothing without records of any."""
    lines = []
    for subject in SUBJECTS:
        mine = [cells[subject.name, prefix.name] for prefix in PREFIXES]
        for change in CHANGES:
            words = [ratio(mine, percent, change, teacher) for percent in FIGURE_BUDGETS for teacher in ("greedy", "text")]
            if set(words) != {"–"}:
                lines.append(f"| {subject.name} | `{change}` | {' | '.join(words)} |")
    if not lines:
        return
    heads = [f"{percent} %: {teacher}" for percent in FIGURE_BUDGETS for teacher in ("dense's continuation", "the text")]
    yield (f"KL of `condense` with one key changed over its KL without: geometric mean of {len(PREFIXES)} prefixes (least to "
           "greatest)")
    yield ""
    yield f"| model | changed | {' | '.join(heads)} |"
    yield "| --- " * (len(heads) + 2) + "|"
    yield from lines


def provenance(cells):
    """How many records come from which plug-in."""
    by_plugin = collections.Counter(teachers["greedy"]["plugin"] for cell in cells.values()
                                    for policy, teachers in cell.items() if policy != "dense")
    n = len(by_plugin)
    each = ", ".join(f"{plugin}: {count}" for plugin, count in sorted(by_plugin.items()))
    return (f"{sum(by_plugin.values())} records (model, prefix, policy) of {n} plug-in{'s' * (n != 1)}"
            + (f" ({each})" if each else ""))


def report(cells):
    """The tables, and below them what was left out and where the records come from."""
    cells, fell_back = sparse_only(cells)
    yield from main_table(cells)
    yield ""
    ablations = list(ablation_table(cells))
    if ablations:
        yield from ablations
        yield ""
    yield from fell_back
    yield provenance(cells)
