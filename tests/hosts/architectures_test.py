#!/usr/bin/env python3
"""Every architecture of which llama.cpp's test-llama-archs writes a tiny model: logits with the plug-in, dense, against
llama.cpp's own attention; and which of them run sparse steps. docs/HOSTS.md's table is made of what was seen; the test
fails where the two differ.

    CONDENSE_UPDATE_HOSTS=1 ctest -R hosts.Architectures     writes the table anew
"""

import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import os

import host
import numpy as np

N_PROMPT, N_STEPS = 160, 16
SPARSE = "mean:blocks=1,window=16,anchor=1"
NMSE_LIMIT = 1e-5
PAGE = host.ROOT / "docs" / "HOSTS.md"
BEGIN, END = "<!-- table: written by tests/hosts/architectures_test.py -->", "<!-- end of table -->"
# By enum condense_fallback.
FALLBACKS = ["short windows in some layers", "NaN scores", "a mask with an additive bias", "dense_layers", "budget",
             "layers whose cache is written without a SET_ROWS that reaches the plug-in"]
UPDATE = os.environ.get("CONDENSE_UPDATE_HOSTS") == "1"


def pseudo_random_tokens(n_vocab):
    state, out = 12345, []
    for _ in range(N_PROMPT + N_STEPS):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(state // 65536 % n_vocab)
    return out


def run(probe, tokens, has_memory):
    """Logits of the prompt in one batch, then of single steps where the model keeps a cache."""
    probe.context(n_ctx=256, n_batch=256, n_ubatch=256)
    rows = [probe.decode(tokens[:N_PROMPT], 0, outputs="all")]
    if has_memory:
        rows.append(probe.steps(tokens[N_PROMPT:], N_PROMPT))
    probe.free()
    return np.concatenate(rows)


def look_at(path):
    """What one model does, in a process of its own: {kind, nmse, reasons, …}."""
    with host.Probe(with_plugin=False) as probe:
        shape = probe.load_model(path)
        tokens = pseudo_random_tokens(shape["n_vocab"])
        has_memory = probe.ask("context", name="a", n_ctx=256, n_threads=host.N_THREADS)["has_memory"]
        probe.free()
        theirs = run(probe, tokens, has_memory)
        repeat = run(probe, tokens, has_memory)
        probe.load_plugin()
        probe.log()
        probe.policy("dense")
        probe.counters()
        dense = run(probe, tokens, has_memory)
        dense_counters = probe.counters()
        log = probe.log()
        probe.policy(SPARSE)
        sparse = run(probe, tokens, has_memory)
        sparse_counters = probe.counters()
    reasons = sorted({re.sub(r"\[\d[\d,]*\]", "", line.split("left to the host: ")[1]) for line in log
                      if "left to the host: " in line})
    return {"name": path.stem, "nmse": host.nmse(theirs, dense), "repeats": bool(np.array_equal(theirs, repeat)),
            "finite": bool(np.isfinite(sparse).all()), "has_memory": has_memory, "reasons": reasons,
            "dense": dense_counters, "sparse": sparse_counters, "recurrent": shape["recurrent"], "hybrid": shape["hybrid"]}


def kind_of(seen):
    """(what computes its attention, why it is not all sparse)."""
    remarks = list(seen["reasons"])
    remarks += [FALLBACKS[reason] for reason, n in enumerate(seen["sparse"]["fallbacks"]) if n]
    if seen["dense"]["nodes"] == 0:
        if not remarks:
            remarks = ["no attention" if seen["recurrent"] else "llama.cpp builds its graph without flash attention"]
        return "host", "; ".join(remarks)
    if not seen["has_memory"]:
        remarks.append("no KV cache: every step is a whole prompt")
    if seen["sparse"]["sparse_steps"] > 0:
        return ("sparse and host" if seen["reasons"] else "sparse"), "; ".join(remarks)
    return "dense by plug-in", "; ".join(remarks)


class Architectures(host.HostTest):
    def test_every_architecture(self):
        models = self.folder / "models"
        models.mkdir()
        done = subprocess.run([str(host.program("test-llama-archs")), "-s", "1", "-o", str(models)],
                              env=host.environment(with_plugin=False), capture_output=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:].decode("utf-8", "replace"))
        paths = sorted(models.glob("*.gguf"))
        self.assertGreater(len(paths), 100)
        rows, wrong = [], []
        for path in paths:
            try:
                seen = look_at(path)
            except AssertionError as error:
                wrong.append(f"{path.stem}: {str(error)[-1500:]}")
                continue
            finally:
                path.unlink()
            kind, why = kind_of(seen)
            print(f"{seen['name']}: {kind}, NMSE {seen['nmse']:.1e}, {seen['dense']['nodes']} nodes, "
                  f"{seen['sparse']['sparse_steps']} sparse steps, fallbacks {seen['sparse']['fallbacks']}. {why}", flush=True)
            if not seen["nmse"] <= NMSE_LIMIT:  # a NaN is wrong too
                wrong.append(f"{seen['name']}: NMSE {seen['nmse']:.2e} against llama.cpp's own attention ({kind}; "
                             f"llama.cpp alone gives {'the same bits' if seen['repeats'] else 'other bits'} twice)")
            if not seen["finite"]:
                wrong.append(f"{seen['name']}: a sparse logit is no number")
            if seen["dense"]["sparse_steps"]:
                wrong.append(f"{seen['name']}: sparse steps under the policy dense")
            rows.append((seen["name"], kind, why))
        self.assertEqual(wrong, [])
        if host.LLAMA_SOURCE.resolve() == (host.ROOT / "build" / "llama.cpp").resolve():
            self.check_page(rows)
        else:
            print("docs/HOSTS.md tells of the pinned llama.cpp; this is another, and the page is not compared")

    def check_page(self, rows):
        count = {}
        for _, kind, _ in rows:
            count[kind] = count.get(kind, 0) + 1
        table = [", ".join(f"{n} {kind}" for kind, n in sorted(count.items(), key=lambda item: (-item[1], item[0]))) + ".",
                 "", "| model of `test-llama-archs` | attention | remark |", "| --- | --- | --- |"]
        table += [f"| {name} | {kind} | {why} |" for name, kind, why in rows]
        made = "\n".join([BEGIN, *table, END])
        page = PAGE.read_text() if PAGE.exists() else ""
        if not (BEGIN in page and END in page):
            self.fail(f"{PAGE} lacks the lines '{BEGIN}' and '{END}'")
        old = page[page.index(BEGIN):page.index(END) + len(END)]
        if old == made:
            return
        if UPDATE:
            PAGE.write_text(page.replace(old, made))
            return
        gone = [line for line in old.splitlines() if line not in made.splitlines()]
        new = [line for line in made.splitlines() if line not in old.splitlines()]
        self.fail("docs/HOSTS.md is not what was seen; CONDENSE_UPDATE_HOSTS=1 writes it anew.\n"
                  + "\n".join(["- " + line for line in gone] + ["+ " + line for line in new]))


if __name__ == "__main__":
    host.main()
