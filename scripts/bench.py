#!/usr/bin/env python3
"""Benchmarks: whole programs with llama-bench, kernels with Google Benchmark, instructions with callgrind.

Writes build/bench.jsonl, one object a figure: figure, value, unit, n, spread, how. Every whole-program
figure is a ratio of medians of runs that take turns (llama.cpp without flash attention, with it, the
plug-in dense, the plug-in sparse), so that a machine whose speed drifts moves both sides. Nothing is
asserted about times; that the sparse path ran is. Sections: instructions, kernels, deep, shallow, prefill.

usage: scripts/bench.py BUILD_DIR [--rounds N] [--depth N] [--prompt N] [--only SECTION]
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

import instructions

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
SPARSE = "mean:blocks=8"  # S = 1 + 64 + 16 * 8 = 193


def say(text):
    print(text, file=sys.stderr, flush=True)


class Arms:
    """The programs that are compared; each is a llama-bench with its own environment and flags."""

    def __init__(self, build, llama_bench, threads):
        self.build, self.llama_bench, self.threads = build, llama_bench, threads

    def run(self, arm, depth, n_prompt, n_generate, repetitions):
        """tokens a second of each repetition. A prompt's first pass is what users wait for: no warm-up there."""
        flash, policy = {"llama fa off": (0, None), "llama fa on": (1, None), "plug-in dense": (1, "dense"),
                         "plug-in sparse": (1, SPARSE)}[arm]
        env = {k: v for k, v in os.environ.items() if not k.startswith("CONDENSE_")}
        env.pop("GGML_BACKEND_PATH", None)
        with tempfile.TemporaryDirectory() as folder:
            stats = Path(folder) / "stats.jsonl"
            if policy:
                env |= {"GGML_BACKEND_PATH": str(self.build / "lib/libggml-condense.so"),
                        "CONDENSE_POLICY": policy, "CONDENSE_STATS": str(stats)}
            command = [self.llama_bench, "-m", MODEL, "-t", self.threads, "-fa", flash, "-d", depth, "-p", n_prompt,
                       "-n", n_generate, "-r", repetitions, "-o", "jsonl"] + (["--no-warmup"] if n_prompt else [])
            done = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"llama-bench failed ({arm}):\n{done.stderr[-2000:]}")
            if policy:
                seen = [json.loads(line) for line in stats.read_text().splitlines()] if stats.exists() else []
                ran = sum(s["sparse_steps"] for s in seen)
                nodes = sum(s["nodes"] for s in seen)
                if nodes == 0:
                    sys.exit(f"the plug-in saw no attention in {arm}")
                if policy != "dense" and n_generate and depth >= 512 and ran == 0:
                    sys.exit(f"no sparse step ran in {arm}")
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return [sample for row in rows for sample in row["samples_ts"]]


def quartiles(values):
    if len(values) < 2:
        return [values[0], values[0]]
    cut = statistics.quantiles(values, n=4, method="inclusive")
    return [cut[0], cut[2]]


def interleave(arms, names, rounds, what, **shape):
    """tokens a second by arm: one list of medians, one entry a round."""
    speeds = {name: [] for name in names}
    start = time.monotonic()
    for r in range(rounds):
        for i, name in enumerate(names if r % 2 == 0 else names[::-1]):
            speeds[name].append(statistics.median(arms.run(name, **shape)))
            done = r * len(names) + i + 1
            left = (time.monotonic() - start) / done * (rounds * len(names) - done)
            say(f"  {what}, round {r + 1} of {rounds}: {name} {speeds[name][-1]:.1f} tokens/s; about {left:.0f} s left")
    return speeds


def ratio_figure(name, speeds, arm, how):
    best = max(("llama fa off", "llama fa on"), key=lambda a: statistics.median(speeds[a]))
    ratios = [a / b for a, b in zip(speeds[arm], speeds[best])]
    return {"figure": name, "value": statistics.median(ratios), "unit": "ratio", "n": len(ratios),
            "spread": quartiles(ratios), "how": f"{how}; {arm} over {best}, rounds that take turns",
            "tokens_per_second": {a: statistics.median(v) for a, v in speeds.items()},
            "rounds": speeds}


EVERY = ["llama fa off", "llama fa on", "plug-in dense", "plug-in sparse"]


def deep_figures(arms, options):
    deep = interleave(arms, EVERY, options.rounds, f"decode at depth {options.depth}", depth=options.depth,
                      n_prompt=0, n_generate=64, repetitions=5)
    how = f"llama-bench -d {options.depth} -n 64 -r 5, SmolLM2-135M Q4_1, f16 KV, {arms.threads} threads"
    yield ratio_figure("dense_vs_llama", deep, "plug-in dense", how)
    yield ratio_figure("mean193_vs_llama", deep, "plug-in sparse", how + f", {SPARSE}")


def shallow_figures(arms, options):
    shallow = interleave(arms, EVERY, max(options.rounds, 5), "decode at depth 0 to 256", depth=0, n_prompt=0,
                         n_generate=256, repetitions=3)
    how = f"llama-bench -d 0 -n 256 -r 3, {arms.threads} threads"
    slower = min(("plug-in dense", "plug-in sparse"), key=lambda a: statistics.median(shallow[a]))
    yield ratio_figure("depth0_vs_llama", shallow, slower, how + ", the slower of dense and sparse")


def prefill_figures(arms, options):
    prefill = interleave(arms, EVERY[:3], options.rounds, f"prefill of {options.prompt}", depth=0,
                         n_prompt=options.prompt, n_generate=0, repetitions=1)
    yield ratio_figure("prefill_vs_llama", prefill, "plug-in dense",
                       f"llama-bench -p {options.prompt} -r 1, {arms.threads} threads")


def kernel_figures(build):
    program = build / "bin/condense_kernels_bench"
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=7500)
    parser.add_argument("--prompt", type=int, default=7600)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["instructions", "kernels", "deep", "shallow", "prefill"])
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
        if options.only in (None, "instructions"):
            try:
                for figure in instructions.figures(options.build):
                    write(figure)
            except instructions.NotMeasured as reason:
                say(f"instructions: not measured: {reason}")
        if options.only in (None, "kernels"):
            for figure in kernel_figures(options.build):
                write(figure)
        arms = Arms(options.build, options.llama_bench, options.threads)
        for name, figures in (("deep", deep_figures), ("shallow", shallow_figures), ("prefill", prefill_figures)):
            if options.only in (None, name):
                for figure in figures(arms, options):
                    write(figure)
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
