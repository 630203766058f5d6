#!/usr/bin/env python3
"""What the `condense` policy does to a model's distribution, beside `oracle`, `topk`, `mean` and `quest` at the same bytes.

Two models, three pinned prefixes of long texts and two held-out ones; each (model, prefix) is one `condense compare`: one
dense prefill, then 127 decisions of every policy, taught by dense's own greedy continuation and by the text's. KL is the
mean over decisions of KL(dense || policy) in nats; a figure is its geometric mean over the three prefixes, greedy teacher.
Records of finished policies are kept by the plug-in's hash, and are not run again.

usage: scripts/fidelity.py RECORDS_DIR…     the tables of docs/CONDENSE_POLICY.md, from the records in all the folders
scripts/bench.py runs the comparisons (fidelity_run.py) and writes the figures.
"""
import argparse
import hashlib
import sys
from pathlib import Path

import fidelity_run
from fidelity_records import (FIGURE_BUDGETS, N_GENERATE, ORACLE_BUDGETS, PREFIXES, SUBJECTS, NotMeasured, check_ran,
                              geometric_mean, read_cells, read_share)
from fidelity_table import ablation_table, report, sparse_only


def kl_figure(subject, cells, percent):
    figure, policy = f"codes_kl_{percent}_{subject.name}", f"condense:budget={percent}%"
    by_prefix = {prefix.name: cells[subject.name, prefix.name] for prefix in PREFIXES}
    without = [prefix for prefix, cell in by_prefix.items() if policy not in cell or "control" not in cell]
    if without:
        raise NotMeasured(f"{figure}: no records of {policy} on {', '.join(without)}")
    for cell in by_prefix.values():
        check_ran(cell[policy]["greedy"])

    def kl(name, teacher):
        return {prefix: cell[name][teacher]["kl_mean"] for prefix, cell in by_prefix.items()}

    greedy = kl(policy, "greedy")
    return {"figure": figure, "value": geometric_mean(greedy.values()), "unit": "nats",
            "n": len(greedy), "spread": [min(greedy.values()), max(greedy.values())],
            "how": f"condense compare, {subject.model.file}, {subject.n_prompt} tokens, {policy}, f16 KV: mean KL to dense "
                   f"over {N_GENERATE - 1} decisions taught by dense, geometric mean of prefixes, spread: least and greatest",
            "by_prefix": greedy, "text_teacher": geometric_mean(kl(policy, "text").values()),
            "control": geometric_mean(kl("control", "greedy").values()),
            "read_share": {prefix: read_share(cell[policy]["greedy"]) for prefix, cell in by_prefix.items()}}


def oracle_cells(cells):
    """Every (model, pinned prefix, budget) with both policies' KL and bytes."""
    for subject, prefix in ((subject.name, prefix.name) for subject in SUBJECTS for prefix in PREFIXES):
        cell = cells[subject, prefix]
        for percent in ORACLE_BUDGETS:
            codes, oracle = (cell.get(f"{name}:budget={percent}%", {}).get("greedy") for name in ("condense", "oracle"))
            if codes and oracle:
                check_ran(codes)
                check_ran(oracle)
                yield {"model": subject, "prefix": prefix, "percent": percent, "kl": codes["kl_mean"],
                       "oracle_kl": oracle["kl_mean"], "read_share": read_share(codes),
                       "oracle_read_share": read_share(oracle)}


def oracle_figure(cells):
    compared = list(oracle_cells(cells))
    wanted = len(SUBJECTS) * len(PREFIXES) * len(ORACLE_BUDGETS)
    if len(compared) < wanted:
        raise NotMeasured(f"codes_vs_oracle_blocks: {len(compared)} of {wanted} cells are there")
    ratios = [cell["oracle_kl"] / cell["kl"] for cell in compared]
    return {"figure": "codes_vs_oracle_blocks", "value": sum(ratio > 1 for ratio in ratios), "unit": f"of {wanted}",
            "n": wanted, "spread": [min(ratios), max(ratios)],
            "how": "cells (model, prefix, 5, 8, 12 % of dense's bytes) in which condense's KL is below that of the truly "
                   "heaviest 16-row blocks, whose rows alone count as bytes (at most a block less); dense's continuation; "
                   "spread: least and greatest oracle's KL over condense's", "cells": compared}


def measured(say, figure, *arguments):
    try:
        yield figure(*arguments)
    except NotMeasured as reason:
        say(f"fidelity: not measured: {reason}")


def figures(build, texts, folder, threads, request, say):
    """Runs what is missing (request: fidelity_run.Request); figures as they become known. What is not measured is said."""
    plugin = build / "lib/libggml-condense.so"
    folder = folder / hashlib.sha256(plugin.read_bytes()).hexdigest()[:12]
    for subject in fidelity_run.run_missing(request, build, texts, threads, folder, say):
        cells = read_cells(folder)
        for percent in FIGURE_BUDGETS:
            yield from measured(say, kl_figure, subject, cells, percent)
    cells = read_cells(folder)
    yield from measured(say, oracle_figure, cells)
    if request.ablations:
        for line in ablation_table(sparse_only(cells)[0]):
            say(line)
    say(f"fidelity: scripts/fidelity.py {folder} prints the tables")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("records", type=Path, nargs="+", help="folders with records of `condense compare`")
    options = parser.parse_args()
    for folder in options.records:
        if not folder.is_dir():
            sys.exit(f"there is no folder {folder}: scripts/bench.py --only fidelity makes one in build/fidelity")
    cells = read_cells(*options.records)
    print("\n".join(report(cells)))
    compared = list(oracle_cells(sparse_only(cells)[0]))
    won = sum(cell["kl"] < cell["oracle_kl"] for cell in compared)
    print(f"\ncondense below oracle in {won} of {len(compared)} cells")
    for cell in compared:
        print("  {model} {prefix} {percent} %: {kl:.4f} at {read_share:.4f}; oracle {oracle_kl:.4f} at "
              "{oracle_read_share:.4f}".format(**cell))


if __name__ == "__main__":
    main()
