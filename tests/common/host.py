"""What the tests of whole programs share: where things lie, unmodified llama.cpp programs with the plug-in loaded, the
plug-in's counters, and a session with tests/hosts/host_probe (libllama, one command at a time).

What is missing fails the test that needs it. Environment, set by CTest: CONDENSE_BUILD (build tree), CONDENSE_LLAMA
(where llama.cpp was built), CONDENSE_LLAMA_SOURCE, CONDENSE_GGML_API.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CONDENSE_BUILD", ROOT / "build" / "release"))
LLAMA = pathlib.Path(os.environ.get("CONDENSE_LLAMA", ROOT / "build" / "llama"))
LLAMA_SOURCE = pathlib.Path(os.environ.get("CONDENSE_LLAMA_SOURCE", ROOT / "build" / "llama.cpp"))
GGML_API = os.environ.get("CONDENSE_GGML_API", "2")
PLUGIN = BUILD / "lib" / "libggml-condense.so"
DEFAULT_MODEL = ROOT / "build" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TINY_MODEL = BUILD / "tests" / "tiny.gguf"
GPL = pathlib.Path("/usr/share/common-licenses/GPL-3")
N_THREADS = 2


class Missing(AssertionError):
    """Something that the test needs is not there: a failure."""


def need(path, how):
    if not pathlib.Path(path).exists():
        raise Missing(f"{path} is missing: {how}")
    return pathlib.Path(path)


def program(name):
    return need(LLAMA / "bin" / name, f"build llama.cpp's target {name} (make test does)")


def plugin():
    return need(PLUGIN, "build the target ggml-condense")


def default_model():
    return need(DEFAULT_MODEL, "scripts/fetch.py model fetches it")


def tiny_model():
    return need(TINY_MODEL, "the CTest fixture tiny_model writes it with scripts/make_tiny_model.py")


def gpl_text(n_bytes=None):
    """The licence text that every Debian system has; else words of the same kind, made here."""
    if GPL.exists():
        text = GPL.read_text()
    else:
        words = "the program is free software you can change it under terms of this licence without any warranty".split()
        state, out = 1, []
        while sum(map(len, out)) < 40000:
            state = state * 1103515245 % 2**31 + 12345
            out.append(words[state // 65536 % len(words)] + (".\n" if state % 11 == 0 else " "))
        text = "".join(out)
    return text[:n_bytes]


def environment(policy=None, stats=None, with_plugin=True, **more):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("CONDENSE_POLICY", "CONDENSE_STATS",
                                                                                  "GGML_BACKEND_PATH", "LLAMA_ARG_"))}
    # Waiting threads that sleep: the tests stay quick on a machine that does other work besides. No result depends on it.
    env.setdefault("OMP_WAIT_POLICY", "passive")
    if with_plugin:
        env["GGML_BACKEND_PATH"] = str(plugin())
        # A llama.cpp with its CPU backend linked in looks for others only when an option asks for devices: this one does,
        # and matches no tensor.
        env["LLAMA_ARG_OVERRIDE_TENSOR"] = "^$=CPU"
        if policy is not None:
            env["CONDENSE_POLICY"] = policy
        if stats is not None:
            env["CONDENSE_STATS"] = str(stats)
    env.update(more)
    return env


class Stats:
    """A file that CONDENSE_STATS names; one JSON line a freed context. The counters are the process's, and grow."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def lines(self):
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def last(self):
        lines = self.lines()
        if not lines:
            raise AssertionError("the plug-in wrote no counters: it was not loaded, or no context was freed")
        return lines[-1]


class HostTest(unittest.TestCase):
    """A test with a scratch folder and programs run under the plug-in."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="condense-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.n_stats = 0

    def stats_file(self):
        self.n_stats += 1
        return Stats(self.folder / f"stats{self.n_stats}.jsonl")

    def run_host(self, name, *arguments, policy="dense", with_plugin=True, expect=0, timeout=300, stats="file", **more):
        """Runs an unmodified program of llama.cpp. Returns the finished process and its Stats."""
        counters = self.stats_file()
        wanted = counters.path if stats == "file" else stats
        done = subprocess.run([str(program(name)), *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL,
                              env=environment(policy, wanted, with_plugin, **more), capture_output=True, timeout=timeout,
                              check=False)
        done.stdout = done.stdout.decode("utf-8", "replace")
        done.stderr = done.stderr.decode("utf-8", "replace")
        if expect is not None and done.returncode != expect:
            self.fail(f"{name} {' '.join(map(str, arguments))}: exit status {done.returncode}\n"
                      f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return done, counters

    def assert_attended(self, stats, **at_least):
        """Attention nodes came to the plug-in; each named counter is at least the figure."""
        self.assertGreater(stats["nodes"], 0, stats)
        for name, figure in at_least.items():
            self.assertGreaterEqual(stats[name], figure, f"{name} in {stats}")


class Probe:
    """A running host_probe: libllama by commands, in a process of its own, dense until `policy` says otherwise. Close it,
    or use it as a context manager."""

    def __init__(self, with_plugin=True, **env):
        path = need(BUILD / "tests" / "bin" / "host_probe", "build the target host_probe")
        if with_plugin:
            plugin()
        self.process = subprocess.Popen([str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=environment(with_plugin=False, **{"CONDENSE_POLICY": "dense", **env}))
        self.n_vocab = 0
        if with_plugin:
            self.load_plugin()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.process.poll() is None:
            try:
                self.process.stdin.close()
                self.process.wait(timeout=60)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def ask(self, op, **arguments):
        """Sends one command; returns its answer, with `values` as float rows where the command gives any."""
        try:
            self.process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
            head = self.process.stdout.read(8)
        except BrokenPipeError:
            head = b""
        if len(head) < 8:
            self.process.kill()
            words = self.process.stderr.read().decode("utf-8", "replace")
            raise AssertionError(f"host_probe ended during {op} {str(arguments)[:200]}\n{words[-3000:]}")
        n_text, n_floats = struct.unpack("<II", head)
        answer = json.loads(self.process.stdout.read(n_text))
        if n_floats:
            answer["values"] = np.frombuffer(self.process.stdout.read(4 * n_floats), np.float32).reshape(-1, self.n_vocab)
        if "error" in answer:
            raise AssertionError(f"host_probe: {op}: {answer['error']}")
        return answer

    def load_plugin(self):
        self.ask("plugin", path=str(plugin()))

    def load_model(self, path):
        shape = self.ask("model", path=str(path))
        self.n_vocab = shape["n_vocab"]
        return shape

    def policy(self, spec):
        return self.ask("policy", spec=spec)["spec"]

    def counters(self, reset=True):
        return self.ask("counters", reset=reset)

    def log(self):
        """What the host and the plug-in logged since the last call, warnings and errors."""
        return self.ask("log")["lines"]

    def context(self, name="a", **options):
        self.ask("context", name=name, **{"n_threads": N_THREADS, **options})

    def free(self, name="a"):
        self.ask("free", name=name)

    def tokens(self, text, offset=0, n=None):
        found = self.ask("tokenise", text=text)["tokens"]
        return found[offset:None if n is None else offset + n]

    def decode(self, tokens, pos, name="a", seq=0, outputs="last"):
        """Decodes `tokens` from position `pos` on as one batch; logits of the last token, or of all. `seq`: one sequence,
        or a list with one for each token; then `pos` is such a list too."""
        n = len(tokens)
        positions = pos if isinstance(pos, list) else list(range(pos, pos + n))
        sequences = seq if isinstance(seq, list) else [seq] * n
        answer = self.ask("decode", name=name, tokens=tokens, pos=positions, seq=sequences, outputs=outputs)
        return answer.get("values")

    def steps(self, tokens, pos, name="a", seq=0):
        """Decodes `tokens` one at a time; their logits, one row a token."""
        return np.concatenate([self.decode([token], pos + i, name, seq) for i, token in enumerate(tokens)])

    def greedy(self, token, pos, n, name="a", seq=0):
        """n greedy tokens after `token`; lowest id among equals."""
        out = []
        for i in range(n):
            token = int(np.argmax(self.decode([token], pos + i, name, seq)[-1]))
            out.append(token)
        return out

    def memory(self, what, name="a", **arguments):
        return self.ask("memory", name=name, what=what, **arguments)


def nmse(a, b):
    """Normalised mean squared error of b against a."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.sum((a - b) ** 2) / np.sum(a**2))


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
