#!/usr/bin/env python3
"""Whether exact decoding gives dense decoding's text: `condense run --mode exact --verify-exact` over prompts, draft
sources, draft lengths, threads and samplers, each compared token by token with dense decoding afterwards.

Prompts are cut from the GPL-3 and from this repository's documents and code. A model whose file is not there is counted
as skipped. Ctrl-C ends it; what was compared is counted all the same.

usage: scripts/check_exact.py BUILD_DIR [--prompts N]
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ["/usr/share/common-licenses/GPL-3", "README.md", "docs/POLICIES.md", "src/attention/layer_attention.cc",
         "docs/METRICS.md", "src/decode/session.cc", "docs/CONDENSE_POLICY.md", "scripts/bench.py"]
# Whole texts by the sources that people use; drafts that seldom agree are checked on a quarter.
DRAFTS = [("condense:budget=8%", 1), ("lookup", 1), ("lookup+condense:budget=8%", 1), ("mean:blocks=2", 4),
          ("pillar:budget=8%", 4), ("quest:blocks=4", 4), ("h2o:tokens=97", 4), ("window:window=16", 4), ("random:blocks=1", 4)]
# model file, prompts, tokens
MODELS = [("SmolLM2-135M-Instruct.Q4_1.gguf", 20, 256), ("Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", 5, 128)]
STOPPED = []  # the run at which Ctrl-C came
LEAST_BYTES, MORE_BYTES = 1500, 350  # of prompts, which grow


def prompts(n):
    texts = [(ROOT / name).read_bytes() for name in TEXTS]
    for i in range(n):
        text, size = texts[i % len(texts)], LEAST_BYTES + MORE_BYTES * (i % 10)
        begin = i // len(texts) * 2000 % max(1, len(text) - size)
        yield text[begin:begin + size]


def plan(n_prompts, n_tokens):
    """(prompt, draft, tokens, length, threads, sampler's arguments) of every run: lengths 1 to 16 and auto, both thread
    counts and both samplers come by turns."""
    for i, prompt in enumerate(prompts(n_prompts)):
        for j, (draft, part) in enumerate(DRAFTS):
            turn = i * len(DRAFTS) + j
            length = (turn * 5 + i) % 17
            sampler = ["--temp", "0"] if (i + j) % 2 else ["--temp", "0.9", "--seed", str(100 + i)]
            yield prompt, draft, n_tokens // part, str(length) if length else "auto", 1 + (i + j // 2) % 2, sampler


def check(build, model, runs):
    """(equal, failures) of the runs."""
    equal, failures, start = 0, [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "prompt.txt"
        for i, (prompt, draft, n_tokens, length, threads, sampler) in enumerate(runs):
            path.write_bytes(prompt)
            command = [build / "bin/condense", "run", "-m", model, "-f", path, "--raw", "-n", n_tokens, "-t", threads,
                       "--mode", "exact", "--draft", draft, "--draft-tokens", length, "--verify-exact", *sampler]
            try:
                done = subprocess.run([str(word) for word in command], capture_output=True)
            except KeyboardInterrupt:
                STOPPED.append(i)
                break
            said = done.stderr.decode(errors="replace")
            if done.returncode == 0 and "are those of dense decoding" in said:
                equal += 1
            else:
                what = " ".join(str(word) for word in command[4:])
                failures.append(f"{what}: {said.strip().splitlines()[-1] if said.strip() else done.returncode}")
                print(f"FAILED {failures[-1]}", flush=True)
            left = (time.monotonic() - start) / (i + 1) * (len(runs) - i - 1)
            print(f"  {i + 1} of {len(runs)}: {draft}, drafts of {length}, {threads} threads; about {left / 60:.0f} min left",
                  file=sys.stderr, flush=True)
    return equal, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--prompts", type=int, help="of each model; default: 20, and 5 of the second")
    options = parser.parse_args()
    status = 0
    for name, n_prompts, n_tokens in MODELS:
        model = ROOT / "build/models" / name
        if not model.exists():
            print(f"{name}: skipped, it was not downloaded")
            continue
        n_prompts = options.prompts or n_prompts
        equal, failures = check(options.build, model, list(plan(n_prompts, n_tokens)))
        print(f"{name}: {equal} texts of {n_prompts} prompts equal dense decoding's, {len(failures)} do not")
        status |= bool(failures)
        if STOPPED:
            sys.exit(f"stopped at run {STOPPED[0] + 1}")
    return status


if __name__ == "__main__":
    sys.exit(main())
