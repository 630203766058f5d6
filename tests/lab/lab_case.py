"""What the tests of `condense lab` share: a text made here, a small spec, the command, a folder's records."""

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import host

# What a run measures of the clock, and what the clock itself says: all that may differ between two runs.
OF_TIME = {"time_utc", "argv", "seconds", "prefill_seconds", "prefill_tokens_per_second", "select_share", "sparse_tokens_per_second",
           "dense_tokens_per_second", "speed_ratio_median", "speed_ratio_low", "speed_ratio_high", "tokens_per_second", "drafted", "accepted"}
SPEC = """experiment = "survival"
texts = ["words.txt"]
offsets = [0, 300]
contexts = [300, 400]
tokens = 17
policies = ["mean:blocks=4,window=32", "quest:blocks=4,window=32"]
"""
N_CELLS = 16  # 2 contexts × 2 offsets × (dense, control, 2 policies)


def made_text(n_words=900):
    """English-looking words in an order of no meaning, the same everywhere."""
    words = ("the program is free software and you may change it under the terms of this licence or any later one without "
             "warranty of any kind even for a particular purpose see what follows").split()
    state, out = 2026, []
    for i in range(n_words):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(words[state // 65536 % len(words)] + ("." if i % 13 == 12 else ""))
    return " ".join(out)


def untimed(line):
    return {key: value for key, value in line.items() if key not in OF_TIME}


class LabTest(host.HostTest):
    def setUp(self):
        super().setUp()
        (self.folder / "words.txt").write_text(made_text())
        self.spec = self.write_spec("small.toml", SPEC)

    def write_spec(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def command(self, *arguments):
        return [str(word) for word in (host.need(host.BUILD / "bin" / "condense", "build the target condense"), "lab", *arguments)]

    def run_words(self, *arguments, out="out", model=None, threads=2):
        return self.command("run", *(arguments or (self.spec,)), "--out", self.folder / out, "-m", model or host.tiny_model(), "-t",
                            threads)

    def environment(self):
        return {**host.environment(with_plugin=False), "CONDENSE_PLUGIN": str(host.plugin())}

    def call(self, words, expect=0, **more):
        done = subprocess.run(words, env=self.environment(), cwd=self.folder, capture_output=True, text=True, timeout=280,
                              check=False, **more)
        self.assertEqual(done.returncode, expect, done.stdout[-2000:] + done.stderr[-3000:])
        return done

    def run_lab(self, *arguments, expect=0, **more):
        return self.call(self.run_words(*arguments, **more), expect)

    def start(self, words):
        return subprocess.Popen(words, env=self.environment(), cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)

    def lines(self, out="out"):
        """Every line of a folder's records, in order."""
        return [json.loads(line) for path in sorted((self.folder / out).glob("records-*.jsonl"))
                for line in path.read_text().splitlines()]

    def cells(self, out="out"):
        """{cell: its lines without times}; each cell must be there once, whole."""
        cells, lines = {}, []
        for line in self.lines(out):
            if "cell" not in line:
                continue
            lines.append(untimed(line))
            if line["record"] == "cell":
                self.assertEqual({one["cell"] for one in lines}, {line["cell"]}, "lines of one cell stand together")
                self.assertNotIn(line["cell"], cells, "done once")
                cells[line["cell"]], lines = lines, []
        self.assertEqual(lines, [], "no lines without their cell")
        return cells
