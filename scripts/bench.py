#!/usr/bin/env python3
"""Benchmarks: whole programs with llama-bench, the attention operator with `condense bench`, kernels with Google
Benchmark, instructions with callgrind.

Writes build/bench.jsonl, one object a figure: figure, value, unit, n, spread, how. Every whole-program
figure is a ratio of medians of runs that take turns (llama.cpp without flash attention, with it, the
plug-in dense, the plug-in sparse), so that a machine whose speed drifts moves both sides. Nothing is
asserted about times; that the sparse path ran is. Sections: instructions, kernels, operators, deep, q8, shallow,
prefill, fidelity (no times: what the policy does to decisions; needs --texts, see fidelity.py).

usage: scripts/bench.py BUILD_DIR [--rounds N] [--depth N] [--prompt N] [--only SECTION]
       [--texts DIR] [--beside] [--ablations] [--subject MODEL]… [--prefix NAME]…     of the section fidelity
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, Optional

import fidelity
import instructions
from fidelity_records import EVERY_PREFIX, SUBJECTS, NotMeasured
from fidelity_run import Request

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
SPARSE = "mean:blocks=8"  # S = 1 + 64 + 16 * 8 = 193
CODES = "condense:budget=8%"


def say(text):
    print(text, file=sys.stderr, flush=True)


class Arm(NamedTuple):
    flash: int
    policy: Optional[str] = None  # of the plug-in; None: llama.cpp alone
    kv_type: str = "f16"


ARMS = {"llama fa off": Arm(0), "llama fa on": Arm(1), "plug-in dense": Arm(1, "dense"),
        "plug-in sparse": Arm(1, SPARSE), "plug-in codes": Arm(1, CODES), "llama fa on, q8_0": Arm(1, None, "q8_0"),
        "plug-in dense, q8_0": Arm(1, "dense", "q8_0")}
LLAMA = ["llama fa off", "llama fa on"]


class Programs:
    """llama-bench, with an arm's environment and flags."""

    def __init__(self, build, llama_bench, threads):
        self.build, self.llama_bench, self.threads = build, llama_bench, threads

    def run(self, name, depth, n_prompt, n_generate, repetitions):
        """tokens a second of each repetition. A prompt's first pass is what users wait for: no warm-up there."""
        arm = ARMS[name]
        env = {k: v for k, v in os.environ.items() if not k.startswith("CONDENSE_")}
        env.pop("GGML_BACKEND_PATH", None)
        with tempfile.TemporaryDirectory() as folder:
            stats = Path(folder) / "stats.jsonl"
            if arm.policy:
                env |= {"GGML_BACKEND_PATH": str(self.build / "lib/libggml-condense.so"),
                        "CONDENSE_POLICY": arm.policy, "CONDENSE_STATS": str(stats)}
            command = [self.llama_bench, "-m", MODEL, "-t", self.threads, "-fa", arm.flash, "-d", depth, "-p", n_prompt,
                       "-n", n_generate, "-r", repetitions, "-ctk", arm.kv_type, "-ctv", arm.kv_type,
                       "-o", "jsonl"] + (["--no-warmup"] if n_prompt else [])
            done = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"llama-bench failed ({name}):\n{done.stderr[-2000:]}")
            if arm.policy:
                seen = [json.loads(line) for line in stats.read_text().splitlines()] if stats.exists() else []
                ran = sum(s["sparse_steps"] for s in seen)
                nodes = sum(s["nodes"] for s in seen)
                if nodes == 0:
                    sys.exit(f"the plug-in saw no attention in {name}")
                if arm.policy != "dense" and n_generate and depth >= 512 and ran == 0:
                    sys.exit(f"no sparse step ran in {name}")
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return [sample for row in rows for sample in row["samples_ts"]]


def quartiles(values):
    if len(values) < 2:
        return [values[0], values[0]]
    cut = statistics.quantiles(values, n=4, method="inclusive")
    return [cut[0], cut[2]]


def interleave(programs, runs, rounds, what):
    """runs: label -> (arm, llama-bench's shape). tokens a second by label: one list of medians, one entry a round."""
    speeds = {label: [] for label in runs}
    labels = list(runs)
    start = time.monotonic()
    for r in range(rounds):
        for i, label in enumerate(labels if r % 2 == 0 else labels[::-1]):
            arm, shape = runs[label]
            speeds[label].append(statistics.median(programs.run(arm, **shape)))
            done = r * len(labels) + i + 1
            left = (time.monotonic() - start) / done * (rounds * len(labels) - done)
            say(f"  {what}, round {r + 1} of {rounds}: {label} {speeds[label][-1]:.1f} tokens/s; about {left:.0f} s left")
    return speeds


def ratio_figure(name, speeds, label, how, against=None):
    """The label's speed over the best of `against`, by default llama.cpp without and with flash attention."""
    best = max(against or LLAMA, key=lambda a: statistics.median(speeds[a]))
    ratios = [a / b for a, b in zip(speeds[label], speeds[best])]
    return {"figure": name, "value": statistics.median(ratios), "unit": "ratio", "n": len(ratios),
            "spread": quartiles(ratios), "how": f"{how}; {label} over {best}, rounds that take turns",
            "tokens_per_second": {a: statistics.median(v) for a, v in speeds.items()},
            "rounds": speeds}


EVERY = ["llama fa off", "llama fa on", "plug-in dense", "plug-in sparse"]


def decode_shape(depth):
    return {"depth": depth, "n_prompt": 0, "n_generate": 64, "repetitions": 5}


def deep_figures(programs, options):
    runs = {arm: (arm, decode_shape(options.depth)) for arm in EVERY}
    runs["plug-in codes"] = ("plug-in codes", decode_shape(options.depth))
    runs["plug-in sparse at depth 0"] = ("plug-in sparse", decode_shape(0))
    deep = interleave(programs, runs, options.rounds, f"decode at depth {options.depth}")
    how = f"llama-bench -d {options.depth} -n 64 -r 5, SmolLM2-135M Q4_1, f16 KV, {programs.threads} threads"
    yield ratio_figure("dense_vs_llama", deep, "plug-in dense", how)
    yield ratio_figure("mean193_vs_llama", deep, "plug-in sparse", how + f", {SPARSE}")
    yield ratio_figure("mean193_vs_depth0", deep, "plug-in sparse", how + f", {SPARSE}",
                       against=["plug-in sparse at depth 0"])
    yield ratio_figure("codes8_vs_llama", deep, "plug-in codes", how + f", {CODES}")
    yield ratio_figure("codes8_vs_dense", deep, "plug-in codes", how + f", {CODES}", against=["plug-in dense"])


def q8_figures(programs, options):
    names = ["llama fa on, q8_0", "plug-in dense, q8_0"]
    deep = interleave(programs, {arm: (arm, decode_shape(options.depth)) for arm in names}, options.rounds,
                      f"decode at depth {options.depth}, q8_0")
    yield ratio_figure("dense_q8_vs_llama", deep, names[1],
                       f"llama-bench -d {options.depth} -n 64 -r 5 -ctk q8_0 -ctv q8_0, {programs.threads} threads",
                       against=names[:1])


def shallow_figures(programs, options):
    shape = {"depth": 0, "n_prompt": 0, "n_generate": 256, "repetitions": 3}
    shallow = interleave(programs, {arm: (arm, shape) for arm in EVERY}, max(options.rounds, 5),
                         "decode at depth 0 to 256")
    how = f"llama-bench -d 0 -n 256 -r 3, {programs.threads} threads"
    slower = min(("plug-in dense", "plug-in sparse"), key=lambda a: statistics.median(shallow[a]))
    yield ratio_figure("depth0_vs_llama", shallow, slower, how + ", the slower of dense and sparse")


def prefill_figures(programs, options):
    shape = {"depth": 0, "n_prompt": options.prompt, "n_generate": 0, "repetitions": 1}
    prefill = interleave(programs, {arm: (arm, shape) for arm in EVERY[:3]}, options.rounds,
                         f"prefill of {options.prompt}")
    yield ratio_figure("ttft_vs_llama", prefill, "plug-in dense",
                       f"seconds to the first token: llama-bench -p {options.prompt} -r 1, {programs.threads} threads"
                       ) | {"seconds": {a: options.prompt / statistics.median(v) for a, v in prefill.items()}}


def condense_bench(build, threads, *words):
    """The records of one `condense bench`, which must succeed: it asserts that the sparse path ran."""
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.jsonl"
        command = [build / "bin/condense", "bench", *words, "-t", threads, "--json", records]
        say("  " + " ".join(str(c) for c in command[1:-2]))
        done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"condense bench {' '.join(str(w) for w in words)} failed:\n{done.stderr[-2000:]}")
        return [json.loads(line) for line in records.read_text().splitlines()]


def operator_figure(name, record, key, how):
    """One key of a record: its median over rounds, with the bytes, operations and shares beside."""
    shape = record.get("shape")
    if shape:
        how += (f"; {shape['query_heads']}/{shape['kv_heads']} heads of {shape['head_dim']}, {shape['k_type']}, "
                f"{shape['rows']} rows, from {record['source']}, {record['threads']} threads")
    extra = {k: record[k] for k in ("median_ns", "quartiles_ns", "bytes", "flops", "stream_share", "peak_share",
                                    "ratio_to_host", "select_share", "upkeep_share", "memory_share", "equal_bits", "note",
                                    "published", "yardstick") if record.get(k) is not None}
    return {"figure": name, "value": record[key], "unit": "share" if key.endswith("share") else "ratio",
            "n": record["n"], "spread": record.get(key + "_quartiles") or [record[key]] * 2, "how": how} | extra


REFRESH_STEPS = 4096  # between two trainings of the codebook, the default


def codes_upkeep(record):
    """A step's share of coding segments as they close and of training and coding everything once in REFRESH_STEPS."""
    closing = record["upkeep_share"]
    training = record["setup_ns"] / REFRESH_STEPS / record["median_ns"]
    return {"figure": "codes_upkeep_share", "value": closing + training, "unit": "share", "n": record["n"],
            "spread": [closing + training] * 2, "closing_share": closing, "training_share": training,
            "setup_ns": record["setup_ns"],
            "how": f"{CODES}: coding segments as they close, over 256 steps, and training the codebook and coding everything "
                   f"once in {REFRESH_STEPS} steps (as the first step did), share of the operator's time; of a whole "
                   "token it is a third of that or less"}


# Shapes of each group size: GPT-2's, SmolLM2-135M's, Llama-3-8B's, Qwen2.5-0.5B's, a 70B model's.
GROUPS = {1: (12, 12, 64), 3: (9, 3, 64), 4: (32, 8, 128), 7: (14, 2, 64), 8: (64, 8, 128)}


def operator_figures(programs, _):
    def bench(*words):
        return condense_bench(programs.build, programs.threads, *words)

    def arm(records, name, preset=None):
        return next(r for r in records if r["arm"] == name and r.get("preset") == preset)

    for record in bench("machine"):
        reads = record["bytes"] > 0
        rate = record["bytes_per_second" if reads else "flops_per_second"]
        work = 1e9 * (record["bytes"] or record["flops"])
        yield {"figure": f"machine:{record['arm']}:{record['threads']}", "value": rate / 1e9,
               "unit": "GB/s" if reads else "GFLOP/s", "n": record["n"],
               "spread": sorted(work / ns / 1e9 for ns in record["quartiles_ns"]),
               "how": "condense bench machine", "trustworthy": record["trustworthy"]}
    for group, (query_heads, kv_heads, dim) in GROUPS.items():
        records = bench("decode", "--rows", 32768, "--query-heads", query_heads, "--kv-heads", kv_heads, "--head-dim",
                        dim, "--policy", "dense", "--no-host", "--rounds", 15)
        yield operator_figure(f"dense_operator_share_g{group}", arm(records, "dense"), "stream_share",
                              "dense decode operator, share of the stream bandwidth measured beside it")
    mean = arm(bench("select", "--policy", SPARSE), SPARSE)
    yield operator_figure("select193_share", mean, "select_share", f"{SPARSE}: selection's share of the operator's time")
    yield operator_figure("upkeep193_share", mean, "upkeep_share",
                          f"{SPARSE}: marking written rows and summarising blocks, share of a step")
    # 256 steps: the end of a segment four times.
    codes = arm(bench("select", "--policy", CODES, "--rounds", 256), CODES)
    yield operator_figure("codes_scan_share", codes, "select_share",
                          f"{CODES}: scan, ranking and choice of values, share of the operator's time; keys' logits, which "
                          "attention takes, are not in it")
    yield operator_figure("codes_memory_share", codes, "codes_memory_share",
                          f"{CODES}: codes, centroids and codebooks in memory over the K and V bytes of the cache; beside "
                          "it memory_share: everything that is kept")
    yield codes_upkeep(codes)
    yield operator_figure("verify8_speedup", bench("verify", "--rows", 8192, "--query-rows", 8)[0], "speedup",
                          "8 rows at once over 8 single rows, seconds")
    yield operator_figure("prefill_operator_share", bench("prefill", "--rows", 8012, "--query-rows", 512)[0],
                          "peak_share", "512 rows at depth 7,500, visible pairs alone, share of the FMA peak")
    yield operator_figure("candidate131k_vs_dense", arm(bench("candidate", "--rows", 131072), "candidate"),
                          "ratio_to_dense", "96 given rows a query over our dense, a whole sequence")
    single = bench("single")
    for preset, reuse in (("gpt2", 4), ("gqa", 16)):
        for name, spec in (("fresh", "mean:blocks=2"), ("reuse", f"mean:blocks=2,reuse={reuse}")):
            yield operator_figure(f"single131k_{preset}_{name}_vs_dense", arm(single, spec, preset), "ratio_to_dense",
                                  f"{spec} over our dense, rolling loop")


def kernel_figures(programs, _):
    program = programs.build / "bin/condense_kernels_bench"
    command = [program, "--benchmark_format=json", "--benchmark_repetitions=7",
               "--benchmark_enable_random_interleaving=true", "--benchmark_min_time=0.05"]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program} failed:\n{done.stderr[-2000:]}")
    by_name = {}
    for run in json.loads(done.stdout)["benchmarks"]:
        if run["run_type"] == "iteration":
            by_name.setdefault(run["run_name"], []).append(run)
    for name, runs in by_name.items():
        times = [run["real_time"] for run in runs]
        extra = {k: statistics.median(run[k] for run in runs) for k, v in runs[0].items()
                 if isinstance(v, float) and k not in ("real_time", "cpu_time")}
        yield {"figure": "kernel:" + name, "value": statistics.median(times), "unit": runs[0]["time_unit"],
               "n": len(times), "spread": quartiles(times), "how": "Google Benchmark, median of repetitions"} | extra


def instruction_figures(programs, _):
    try:
        yield from instructions.figures(programs.build)
    except instructions.NotMeasured as reason:
        say(f"instructions: not measured: {reason}")


def fidelity_figures(programs, options):
    try:
        request = Request(options.beside, options.ablations, tuple(options.subject), tuple(options.prefix))
        yield from fidelity.figures(programs.build, options.texts, ROOT / "build/fidelity", programs.threads, request, say)
    except NotMeasured as reason:
        say(f"fidelity: codes_kl_*, codes_vs_oracle_blocks: not measured: {reason}")


SECTIONS = {"instructions": instruction_figures, "kernels": kernel_figures, "operators": operator_figures,
            "deep": deep_figures, "q8": q8_figures, "shallow": shallow_figures, "prefill": prefill_figures,
            "fidelity": fidelity_figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--rounds", type=int, default=2, help="of the whole programs")
    parser.add_argument("--depth", type=int, default=7500)
    parser.add_argument("--prompt", type=int, default=7600)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", type=Path, help="folder with the texts of the section fidelity")
    parser.add_argument("--beside", action="store_true",
                        help="fidelity: also topk, mean, quest, the rotation and 3 %%, on held-out prefixes too")
    parser.add_argument("--ablations", action="store_true", help="fidelity: also condense with one key changed at a time")
    parser.add_argument("--subject", action="append", default=[], choices=[subject.name for subject in SUBJECTS],
                        help="fidelity: this model alone; repeatable")
    parser.add_argument("--prefix", action="append", default=[], choices=[prefix.name for prefix in EVERY_PREFIX],
                        help="fidelity: this prefix of a text alone; repeatable")
    parser.add_argument("--only", choices=list(SECTIONS))
    parser.add_argument("--llama-bench", type=Path, default=ROOT / "build/llama/bin/llama-bench")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench.jsonl")
    options = parser.parse_args()
    for needed in (options.llama_bench, MODEL):
        if not needed.exists():
            sys.exit(f"{needed} is missing: run `make bench`, which makes it")
    with open(options.out, "w") as out:
        def write(figure):
            out.write(json.dumps(figure) + "\n")
            out.flush()
            low, high = figure["spread"]
            print(f"{figure['figure']:44} {figure['value']:10.4g} {figure['unit']:6} "
                  f"[{low:.4g}, {high:.4g}] n={figure['n']}", flush=True)
        programs = Programs(options.build, options.llama_bench, options.threads)
        for name, figures in SECTIONS.items():
            if options.only in (None, name):
                for figure in figures(programs, options):
                    write(figure)
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
