#!/usr/bin/env python3
"""What the `condense` policy does to a model's distribution, beside `oracle`, `mean` and `quest` at the same bytes.

Two models, three pinned prefixes of long texts; each (model, prefix) is one `condense compare`: one dense prefill, then
127 decisions of every policy, taught by dense's own greedy continuation and by the text's. KL is the mean over decisions of
KL(dense || policy) in nats; a figure is its geometric mean over the three prefixes, greedy teacher. Records of finished
policies are kept by the plug-in's hash, and are not run again.

usage: scripts/fidelity.py RECORDS_DIR…     the table of docs/CONDENSE_POLICY.md, from the records there
scripts/bench.py runs the comparisons and writes the figures.
"""
import argparse
import hashlib
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import fetch

ROOT = Path(__file__).resolve().parent.parent
N_GENERATE = 128  # the first from the prefill, the rest decisions
SOURCES = ("WikiText-2 raw, test split; Project Gutenberg 2701 and 2600 as GITenberg has them")


class NotMeasured(Exception):
    """Why figures are missing; no fault of the policy."""


class Prefix(NamedTuple):
    name: str
    file: str
    sha256: str
    offset: int  # tokens of the text before it


class Subject(NamedTuple):
    name: str
    model: fetch.Model
    step: str  # of scripts/fetch.py
    n_prompt: int  # tokens


PREFIXES = (
    Prefix("wikitext", "wikitext-2-raw-test.txt", "4f3e427e4aff23acff917a8a51aeae21bf12832256e26914c8fc250dcef4103c", 20000),
    Prefix("moby-dick", "moby-dick.txt", "baf9b04fcf6e0008f30eaaa6697277751448c1070b20175e0082f28cbb161fd3", 60000),
    Prefix("war-and-peace", "war-and-peace.txt", "6cbcc5ca5e590fb9ace161a5b93e4ecf280d7118104be0d63b686c004cfa70ae", 200000),
)
SUBJECTS = (Subject("smollm2", fetch.MODEL, "model", 7904), Subject("qwen", fetch.QWEN, "qwen", 8192))

FIGURE_BUDGETS = (5, 8)  # percent, of codes_kl_*
ORACLE_BUDGETS = (5, 8, 12)  # of codes_vs_oracle_blocks
NEEDED = tuple(f"{name}:budget={p}%" for p in (5, 8, 12) for name in ("condense", "oracle"))
UPPER_LINES = ("oracle", "topk")  # of blocks and of rows
BESIDE = ("mean:budget=8%", "mean:budget=5%", "quest:budget=12%", "quest:budget=8%", "mean:budget=12%", "condense:budget=3%",
          "oracle:budget=3%")


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def check_texts(folder):
    """{prefix: path}, or why not."""
    wanted = ", ".join(prefix.file for prefix in PREFIXES)
    if folder is None:
        raise NotMeasured(f"no texts: give --texts DIR with {wanted} ({SOURCES}; SHA-256 in scripts/fidelity.py)")
    paths = {}
    for prefix in PREFIXES:
        path = folder / prefix.file
        if not path.is_file():
            raise NotMeasured(f"--texts: there is no {path}; wanted: {wanted} ({SOURCES})")
        found = fetch.sha256_of(path)
        if found != prefix.sha256:
            raise NotMeasured(f"--texts: {path} is another text than the figures are defined on (sha256 {found}, not "
                              f"{prefix.sha256})")
        paths[prefix] = path
    return paths


def find_model(subject):
    path = ROOT / "build/models" / subject.model.file
    if not path.exists():
        done = subprocess.run([sys.executable, str(ROOT / "scripts/fetch.py"), subject.step], capture_output=True, text=True)
        if done.returncode != 0:
            raise NotMeasured(done.stderr.strip() or f"scripts/fetch.py {subject.step} failed")
    return path


def lines_of(path):
    """The records of a file whose last line may be cut short."""
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def read_cells(folder):
    """{(subject's name, prefix's name): {policy: {teacher: record}}} of all records under the folder that are of a pinned
    model, text, place and length; a policy is there once both of its teachers are."""
    cells = {(subject.name, prefix.name): {} for subject in SUBJECTS for prefix in PREFIXES}
    known = {(subject.model.sha256, subject.n_prompt, prefix.sha256, prefix.offset, N_GENERATE, "f16", "f16"):
             cells[subject.name, prefix.name] for subject in SUBJECTS for prefix in PREFIXES}
    for path in sorted(folder.rglob("*.jsonl")):
        cell, found = None, {}
        for record in lines_of(path):
            if record.get("record") == "run":
                cell = known.get(tuple(record[key] for key in ("model_sha256", "n_prompt", "text_sha256", "offset",
                                                               "n_generate", "kv_type_k", "kv_type_v")))
            elif record.get("record") == "policy" and cell is not None:
                found.setdefault(record["policy"], {})[record["teacher"]] = record
        if cell is not None:
            cell |= {policy: teachers for policy, teachers in found.items() if len(teachers) == 2}
    return cells


def check_ran(record):
    """A sparse policy's record that fell back to dense measures dense."""
    if record["policy"] not in ("dense", "control") and (record["sparse_steps"] == 0 or record["fallbacks"]):
        sys.exit(f"{record['policy']}: {record['sparse_steps']} sparse layer-steps, fallbacks {record['fallbacks']}: not "
                 "a measurement of the policy")


def read_share(record):
    """Bytes read of dense's. Oracles read every key to choose, which no selector would: their rows alone count."""
    counted = record["k_bytes"] + record["v_bytes"]
    if record["policy"].partition(":")[0] not in UPPER_LINES:
        counted += record["summary_bytes"]
    return counted / record["dense_bytes"]


def run_missing(build, subject, prefix, text, threads, policies, folder, say):
    """Runs `condense compare` for the policies without records."""
    have = read_cells(folder)[subject.name, prefix.name]
    missing = [policy for policy in policies if policy not in have]
    if not missing:
        return
    model = find_model(subject)
    folder.mkdir(parents=True, exist_ok=True)
    taken = len(list(folder.glob(f"{subject.name}-{prefix.name}-*.jsonl")))
    records = folder / f"{subject.name}-{prefix.name}-{taken}.jsonl"
    command = [build / "bin/condense", "compare", "-m", model, "-f", text, "--offset", prefix.offset, "--prompt-tokens",
               subject.n_prompt, "-n", N_GENERATE, "-t", threads, "--speed-pairs", 0, "--records", records]
    for policy in missing:
        command += ["--policy", policy]
    say(f"  {subject.name}, {prefix.name}: {', '.join(missing)}")
    done = subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"condense compare failed on {subject.name}, {prefix.name}; finished policies are kept in {records}")


def kl_figure(subject, cells, percent):
    policy = f"condense:budget={percent}%"
    by_prefix = {prefix.name: cells[subject.name, prefix.name] for prefix in PREFIXES}
    for cell in by_prefix.values():
        check_ran(cell[policy]["greedy"])

    def kl(name, teacher):
        return {prefix: cell[name][teacher]["kl_mean"] for prefix, cell in by_prefix.items()}

    greedy = kl(policy, "greedy")
    return {"figure": f"codes_kl_{percent}_{subject.name}", "value": geometric_mean(greedy.values()), "unit": "nats",
            "n": len(greedy), "spread": [min(greedy.values()), max(greedy.values())],
            "how": f"condense compare, {subject.model.file}, {subject.n_prompt} tokens, {policy}, f16 KV: mean KL to dense "
                   f"over {N_GENERATE - 1} decisions taught by dense, geometric mean of prefixes, spread: least and greatest",
            "by_prefix": greedy, "text_teacher": geometric_mean(kl(policy, "text").values()),
            "control": geometric_mean(kl("control", "greedy").values()),
            "read_share": {prefix: read_share(cell[policy]["greedy"]) for prefix, cell in by_prefix.items()}}


def oracle_cells(cells):
    """Every (model, prefix, budget) with both policies' KL and bytes."""
    for (subject, prefix), cell in cells.items():
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
    wanted = len(cells) * len(ORACLE_BUDGETS)
    if len(compared) < wanted:
        raise NotMeasured(f"codes_vs_oracle_blocks: {len(compared)} of {wanted} cells are there")
    ratios = [cell["oracle_kl"] / cell["kl"] for cell in compared]
    return {"figure": "codes_vs_oracle_blocks", "value": sum(ratio > 1 for ratio in ratios), "unit": f"of {wanted}",
            "n": wanted, "spread": [min(ratios), max(ratios)],
            "how": "cells (model, prefix, 5, 8, 12 % of dense's bytes) in which condense's KL is below that of the truly "
                   "heaviest 16-row blocks, whose rows alone count as bytes (at most a block less); dense's continuation; "
                   "spread: least and greatest oracle's KL over condense's", "cells": compared}


def figures(build, texts, folder, threads, beside, say):
    """Figures as they become known; what is not measured is said."""
    paths = check_texts(texts)
    plugin = build / "lib/libggml-condense.so"
    folder = folder / hashlib.sha256(plugin.read_bytes()).hexdigest()[:12]
    for subject in SUBJECTS:
        try:
            for prefix in PREFIXES:
                run_missing(build, subject, prefix, paths[prefix], threads, NEEDED + (BESIDE if beside else ()), folder, say)
        except NotMeasured as reason:
            say(f"fidelity: codes_kl_*_{subject.name}: not measured: {reason}")
            continue
        for percent in FIGURE_BUDGETS:
            yield kl_figure(subject, read_cells(folder), percent)
    try:
        yield oracle_figure(read_cells(folder))
    except NotMeasured as reason:
        say(f"fidelity: not measured: {reason}")


def table(cells):
    """Markdown: a line a policy and model. A mean is that of all prefixes, or is not given."""
    yield "| model | policy | bytes read | KL, dense's continuation: mean (prefixes) | KL, the text | same decision | n |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for subject in SUBJECTS:
        mine = [cells[subject.name, prefix.name] for prefix in PREFIXES]
        names = sorted({policy for cell in mine for policy in cell} - {"dense"},
                       key=lambda name: (name != "control", "condense" not in name, name.split(":")[0],
                                         float(name.partition("budget=")[2].rstrip("%") or 0)))
        for name in names:
            there = [cell[name] for cell in mine if name in cell]
            greedy = [teachers["greedy"] for teachers in there]
            for record in greedy:
                check_ran(record)
            each = ", ".join(number(cell[name]["greedy"]["kl_mean"]) if name in cell else "–" for cell in mine)
            complete = len(there) == len(mine)
            share = 100 * statistics.fmean(read_share(record) for record in greedy)
            yield (f"| {subject.name} | `{name}` | {share:.1f} % | "
                   f"{mean_of(greedy) if complete else '–'} ({each}) | "
                   f"{mean_of([t['text'] for t in there]) if complete else '–'} | "
                   f"{100 * statistics.fmean(r['tf_match'] for r in greedy):.1f} % | {len(there)} × {N_GENERATE - 1} |")


def mean_of(records):
    return number(geometric_mean([record["kl_mean"] for record in records]))


def number(value):
    """Two digits that count."""
    digits = max(0, 1 - math.floor(math.log10(value))) if value > 0 else 1
    return f"{value:.{digits}f}".replace("0.", ".", 1) if value < 1 else f"{value:.{digits}f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("records", type=Path, help="folder with records of `condense compare`")
    options = parser.parse_args()
    if not options.records.is_dir():
        sys.exit(f"there is no folder {options.records}: scripts/bench.py --only fidelity makes one in build/fidelity")
    cells = read_cells(options.records)
    print("\n".join(table(cells)))
    compared = list(oracle_cells(cells))
    won = sum(cell["kl"] < cell["oracle_kl"] for cell in compared)
    print(f"\ncondense below oracle in {won} of {len(compared)} cells")
    for cell in compared:
        print("  {model} {prefix} {percent} %: {kl:.4f} at {read_share:.4f}; oracle {oracle_kl:.4f} at "
              "{oracle_read_share:.4f}".format(**cell))


if __name__ == "__main__":
    main()
