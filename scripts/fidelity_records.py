"""What the figures of fidelity are defined on (models, prefixes of texts, policies), and their records.

A cell is one (model, prefix, policy), taught by dense's own continuation and by the text's. KL is the mean over decisions
of KL(dense || policy) in nats.
"""
import json
import math
import re
import statistics
import sys
from typing import NamedTuple

import fetch

N_GENERATE = 128  # the first from the prefill, the rest decisions


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
    # What a run takes on 2 cores, to say before it starts: the prefill, each policy.
    prefill_seconds: int
    policy_seconds: int


WIKITEXT = ("wikitext-2-raw-test.txt", "4f3e427e4aff23acff917a8a51aeae21bf12832256e26914c8fc250dcef4103c")
MOBY_DICK = ("moby-dick.txt", "baf9b04fcf6e0008f30eaaa6697277751448c1070b20175e0082f28cbb161fd3")
WAR_AND_PEACE = ("war-and-peace.txt", "6cbcc5ca5e590fb9ace161a5b93e4ecf280d7118104be0d63b686c004cfa70ae")
# The figures' own.
PREFIXES = (Prefix("wikitext", *WIKITEXT, 20000), Prefix("moby-dick", *MOBY_DICK, 60000),
            Prefix("war-and-peace", *WAR_AND_PEACE, 200000))
# Of no figure, and looked at for no choice of the policy's: do the figures hold elsewhere?
HELD_OUT = (Prefix("held-out-wikitext", *WIKITEXT, 120000), Prefix("held-out-war-and-peace", *WAR_AND_PEACE, 400000))
EVERY_PREFIX = PREFIXES + HELD_OUT
SUBJECTS = (Subject("smollm2", fetch.MODEL, "model", 7904, 15, 35), Subject("qwen", fetch.QWEN, "qwen", 8192, 70, 40))

FIGURE_BUDGETS = (5, 8)  # percent, of codes_kl_*
ORACLE_BUDGETS = (5, 8, 12)  # of codes_vs_oracle_blocks
NEEDED = tuple(f"{name}:budget={p}%" for p in ORACLE_BUDGETS for name in ("condense", "oracle"))
# Where summaries alone take more than the budget (means 3.1 %, bounds 6.25 %) a policy reads anchor and window alone; at
# 3 % with all its codes `condense` has most steps dense (its rows read always are 2 %, its codes too).
CHOOSES_NOTHING = ("mean:budget=3%", "quest:budget=3%", "quest:budget=5%", "condense:budget=3%")
# On all prefixes. The most telling first: a run may be interrupted.
BESIDE = NEEDED + tuple(
    policy for policy in (f"{name}:budget={p}%" for p in (8, 5, 12, 3) for name in ("condense", "oracle", "topk", "mean",
                                                                                    "quest"))
    if policy not in NEEDED + CHOOSES_NOTHING) + ("condense:budget=3%,scan=50%",) + tuple(
        f"condense:budget={p}%,rotation=on" for p in FIGURE_BUDGETS)
# `condense` with one key changed: no half of values, longer codes, codes along axes, fewer of them, 8-bit rows, other rows
# read always.
CHANGES = ("split=1", "bits=64", "rotation=on", "scan=50%", "copies=q8_0", "anchor=0", "window=128")
ABLATIONS = tuple(f"condense:budget={p}%{change}" for p in FIGURE_BUDGETS for change in ("", *(f",{c}" for c in CHANGES)))
# They read every key to choose, which no selector would: their rows alone count as bytes.
UPPER_LINES = ("oracle", "topk")


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def name_of(policy):
    return policy.partition(":")[0]


def percent_of(policy):
    """The byte budget; 0 without one."""
    found = re.search(r"[:,]budget=([0-9.]+)%", policy)
    return float(found[1]) if found else 0.0


def lines_of(path):
    """The records of a file whose last line may be cut short."""
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def plugin_of(run, path):
    """What tells plug-ins apart: the commit, and the hash that scripts/bench.py names its folder by."""
    commit, folder = run.get("commit", "commit unknown"), path.parent.name
    return f"{commit} ({folder})" if re.fullmatch("[0-9a-f]{12}", folder) else commit


def read_file(path):
    """(run, {policy: {teacher: record}}), each record with its `plugin`; run is None in a file of other records."""
    run, found = None, {}
    for record in lines_of(path):
        if record.get("record") == "run":
            run = record
        elif record.get("record") == "policy" and run is not None:
            found.setdefault(record["policy"], {})[record["teacher"]] = record | {"plugin": plugin_of(run, path)}
    return run, found


def read_cells(*folders):
    """{(subject's name, prefix's name): {policy: {teacher: record}}} of all records under the folders that are of a pinned
    model, text, place and length. A policy is there once both of its teachers are; of several records of one the newest
    run's holds (of runs in the same second, the last by the file's name)."""
    cells = {(subject.name, prefix.name): {} for subject in SUBJECTS for prefix in EVERY_PREFIX}
    known = {(subject.model.sha256, subject.n_prompt, prefix.sha256, prefix.offset, N_GENERATE, "f16", "f16"):
             cells[subject.name, prefix.name] for subject in SUBJECTS for prefix in EVERY_PREFIX}
    files = []
    for path in {path.resolve() for folder in folders for path in folder.rglob("*.jsonl")}:
        run, found = read_file(path)
        if run is not None:
            files.append((run.get("time_utc", ""), path.name, str(path), run, found))
    for _, _, _, run, found in sorted(files, key=lambda file: file[:3]):
        cell = known.get(tuple(run.get(key) for key in ("model_sha256", "n_prompt", "text_sha256", "offset", "n_generate",
                                                        "kv_type_k", "kv_type_v")))
        if cell is not None:
            cell |= {policy: teachers for policy, teachers in found.items() if len(teachers) == 2}
    return cells


def not_sparse(record):
    """Why a sparse policy's record is no measurement of it, or None: what fell back to dense measures dense."""
    if record["policy"] not in ("dense", "control") and (record["sparse_steps"] == 0 or record["fallbacks"]):
        return f"{record['policy']}: {record['sparse_steps']} sparse layer-steps, fallbacks {record['fallbacks']}"
    return None


def check_ran(record):
    why = not_sparse(record)
    if why:
        sys.exit(f"{why}: not a measurement of the policy")


def read_share(record):
    """Bytes read of dense's."""
    counted = record["k_bytes"] + record["v_bytes"]
    if name_of(record["policy"]) not in UPPER_LINES:
        counted += record["summary_bytes"]
    return counted / record["dense_bytes"]
