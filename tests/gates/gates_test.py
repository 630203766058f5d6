#!/usr/bin/env python3
"""`seer` and `nsa` on made gates, through the plug-in's own reader of GGUF files, against NumPy: the same blocks, wherever
scores are further apart than FP32 can err; and what files are refused for."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import host
import made_gguf
import reference

LAYERS, KV, HEADS, DIM, GATE, LAYER = 2, 2, 6, 64, 32, 1
SCALE = 0.125  # as select_rows has it
GAP = 1e-4  # of scores of a few units: what 10,000 FP32 operations may err


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.random = np.random.default_rng(7)

    def normal(self, *shape, size=1.0):
        return (size * self.random.standard_normal(shape)).astype(np.float32)

    def values(self, kind, rope, **more):
        values = {"general.architecture": kind, f"{kind}.block_count": LAYERS, f"{kind}.attention.head_count": HEADS,
                  f"{kind}.attention.head_count_kv": KV, f"{kind}.attention.key_length": DIM,
                  f"{kind}.rope.type": rope["type"]}
        if rope["type"] != "none":
            values |= {f"{kind}.rope.dimension_count": rope["n_dims"], f"{kind}.rope.freq_base": rope["freq_base"]}
        return values | {f"{kind}.{name}": value for name, value in more.items()}

    def seer(self, rope, norm=True, kinds="f32", block=64):
        """Writes gates; those of LAYER as the reference takes them."""
        dim = len(rope["factors"]) * 2 if "factors" in rope else GATE
        tensors = {}
        for layer in range(LAYERS):
            tensors[f"blk.{layer}.seer_q.weight"] = self.normal(KV, HEADS // KV, DIM, dim, size=0.1)
            tensors[f"blk.{layer}.seer_k.weight"] = self.normal(KV, 3 * DIM, dim, size=0.1)
            if norm:
                tensors[f"blk.{layer}.seer_q_norm.weight"] = self.normal(dim)
                tensors[f"blk.{layer}.seer_k_norm.weight"] = self.normal(dim)
        if kinds != "f32":  # so that nothing is lost on the way
            tensors = {name: self.rounded(array, kinds) for name, array in tensors.items()}
        gate = {name: tensors[f"blk.{LAYER}.seer_{name}.weight"] for name in ("q", "k")}
        if norm:
            gate |= {name: tensors[f"blk.{LAYER}.seer_{name}.weight"] for name in ("q_norm", "k_norm")}
        types = {name: kinds for name in tensors}
        if "factors" in rope:
            tensors["rope_freqs.weight"] = np.array(rope["factors"], np.float32)
        made_gguf.write(self.folder / "gates.gguf", self.values("seer", rope, gate_length=dim, block_size=block), tensors,
                        types)
        return gate | {"rope": rope, "block": block}

    @staticmethod
    def rounded(array, kind):
        if kind == "f16":
            return array.astype(np.float16).astype(np.float32)
        return (array.view(np.uint32) & 0xFFFF0000).view(np.float32)

    def nsa(self, rope, kernel=32, stride=16, block=64):
        tensors = {}
        for layer in range(LAYERS):
            tensors[f"blk.{layer}.nsa_k_compress.weight"] = self.normal(KV, kernel * DIM, DIM, size=0.1)
            tensors[f"blk.{layer}.nsa_k_position.weight"] = self.normal(KV, kernel, DIM)
        made_gguf.write(self.folder / "gates.gguf",
                        self.values("nsa", rope, kernel_size=kernel, kernel_stride=stride, block_size=block), tensors)
        return {"w": tensors[f"blk.{LAYER}.nsa_k_compress.weight"], "position": tensors[f"blk.{LAYER}.nsa_k_position.weight"],
                "rope": rope, "kernel": kernel, "stride": stride, "block": block}

    def cache(self, rope, cells, n_rows=1200):
        """Keys that drift along the text, rotated by their positions and stored. The stored keys of `cells`, the query."""
        n = len(cells)
        before = self.normal(n, KV, DIM) + 2 * np.cumsum(self.normal(n, KV, DIM, size=0.1), 0)
        stored = self.normal(n_rows, KV, DIM, size=30).astype(np.float16)
        stored[cells] = reference.rotate(rope, before, np.arange(n)).astype(np.float16)
        q = reference.rotate(rope, self.normal(1, HEADS, DIM), [n - 1])[0].astype(np.float32)
        header = np.array([n_rows, KV, HEADS, DIM, LAYER, n, *cells], np.int32)
        (self.folder / "cache").write_bytes(header.tobytes() + stored.tobytes() + q.tobytes())
        return stored[cells], q

    def select(self, spec):
        program = host.need(host.BUILD / "tests" / "bin" / "select_rows", "build the target select_rows")
        kind, _, keys = spec.partition(":")
        spec = f"{kind}:gates={self.folder / 'gates.gguf'},{keys}".rstrip(",")
        done = subprocess.run([str(program), spec, str(self.folder / "cache")], capture_output=True, text=True, timeout=60)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return done.returncode, done.stdout

    def rows(self, spec):
        code, text = self.select(spec)
        self.assertEqual(code, 0, text)
        self.assertFalse(text.startswith("dense"), text)
        *heads, n_bytes = text.splitlines()
        return [[int(row) for row in line.split()] for line in heads], int(n_bytes)

    def assert_reads(self, spec, scores, cells, size, **budget):
        """As the reference reads; of cuts too close to tell there are hardly any."""
        got, _ = self.rows(spec)
        close = 0
        for head, read in enumerate(got):
            positions, gap = reference.read_rows(scores[head], len(cells), size, **budget)
            if gap < GAP:
                close += 1
            else:
                self.assertEqual(read, [cells[p] for p in positions], f"KV head {head}, gap {gap}")
        return len(got) - close


NEOX = {"type": "neox", "n_dims": DIM, "freq_base": 10000.0}
NORM = {"type": "norm", "n_dims": DIM, "freq_base": 500000.0}
PART = {"type": "neox", "n_dims": DIM // 2, "freq_base": 10000.0}
NONE = {"type": "none"}


def layouts(random):
    """Cells of 1,000 rows or so: from the start, from amid a block, scattered, of whole blocks."""
    return [list(range(1000)), list(range(37, 1001)), sorted(random.choice(1200, 1000, replace=False).tolist()),
            list(range(1024))]


class Seer(Case):
    def test_same_blocks_as_numpy(self):
        told = 0
        for rope in (NEOX, NORM, PART, NONE):
            for cells in layouts(self.random):
                gate = self.seer(rope)
                keys, q = self.cache(rope, cells)
                scores = reference.seer_scores(gate, keys, q)
                for tokens in (193, 400):
                    told += self.assert_reads(f"seer:tokens={tokens}", scores, cells, 64, anchor=0, window=64, tokens=tokens)
        self.assertGreater(told, 56)  # of 64

    def test_types_norms_and_blocks(self):
        cells = list(range(1000))
        for norm, kinds, block in ((False, "f32", 64), (True, "f16", 32), (True, "bf16", 128), (False, "bf16", 16)):
            gate = self.seer(NEOX, norm, kinds, block)
            keys, q = self.cache(NEOX, cells)
            scores = reference.seer_scores(gate, keys, q)
            told = self.assert_reads("seer:tokens=400,anchor=5,window=20", scores, cells, block, anchor=5, window=20,
                                     tokens=400)
            self.assertGreater(told, 0)

    def test_frequency_factors(self):
        rope = dict(NEOX, factors=np.linspace(1, 8, DIM // 2))
        gate = self.seer(rope)
        keys, q = self.cache(rope, list(range(1000)))
        scores = reference.seer_scores(gate, keys, q)
        self.assertEqual(self.assert_reads("seer:tokens=300", scores, list(range(1000)), 64, anchor=0, window=64,
                                           tokens=300), KV)

    def test_threshold(self):
        for cells in layouts(self.random):
            gate = self.seer(NEOX)
            keys, q = self.cache(NEOX, cells)
            logits = reference.seer_scores(gate, keys, q)
            share = reference.shares(logits, len(cells), 64)
            for threshold in (0.05, 0.12):
                got, _ = self.rows(f"seer:threshold={threshold}")
                for head, read in enumerate(got):
                    self.assertGreater(np.abs(share[head] - threshold).min(), 1e-6)
                    chosen = set(np.flatnonzero(share[head] > threshold))
                    positions, _ = reference.read_rows(logits[head], len(cells), 64, 0, 64, chosen=chosen)
                    self.assertEqual(read, [cells[p] for p in positions])

    def test_bytes_read_to_choose(self):
        self.seer(NEOX)
        self.cache(NEOX, list(range(1000)))
        _, n_bytes = self.rows("seer:tokens=193")
        self.assertEqual(n_bytes, 15 * KV * GATE * 4)  # 15 whole blocks


class Nsa(Case):
    def test_same_blocks_as_numpy(self):
        told = 0
        for rope in (NEOX, NORM, NONE):
            for cells in layouts(self.random):
                gate = self.nsa(rope)
                keys, q = self.cache(rope, cells)
                scores = reference.nsa_scores(gate, keys, q, SCALE)
                for tokens in (300, 500):
                    told += self.assert_reads(f"nsa:tokens={tokens},anchor=64,window=64", scores, cells, 64, anchor=64,
                                              window=64, tokens=tokens)
        self.assertGreater(told, 36)  # of 48

    def test_other_sizes(self):
        for kernel, stride, block in ((16, 16, 64), (32, 8, 32), (64, 16, 32)):
            gate = self.nsa(NEOX, kernel, stride, block)
            keys, q = self.cache(NEOX, list(range(1000)))
            scores = reference.nsa_scores(gate, keys, q, SCALE)
            told = self.assert_reads("nsa:tokens=300,anchor=0,window=64", scores, list(range(1000)), block, anchor=0,
                                     window=64, tokens=300)
            self.assertGreater(told, 0)


class Files(Case):
    def refused(self, spec="seer"):
        code, text = self.select(spec)
        self.assertEqual(code, 1, text)
        return text

    def test_missing_and_foreign_files(self):
        path = self.folder / "gates.gguf"
        self.assertIn("cannot be opened", self.refused())
        path.write_bytes(b"no GGUF at all")
        self.assertIn("is no GGUF file, or a damaged one", self.refused())
        path.write_bytes(b"")
        self.assertIn("is no GGUF file, or a damaged one", self.refused())
        made_gguf.write(path, {"general.architecture": "llama"}, {})
        self.assertIn("general.architecture is 'llama', wanted 'seer'", self.refused())

    def test_files_cut_anywhere(self):
        path = self.folder / "gates.gguf"
        self.seer(NEOX)
        whole = path.read_bytes()
        for n in (5, 40, 200, 900, len(whole) // 2, len(whole) - 40):
            path.write_bytes(whole[:n])
            self.assertIn(str(path), self.refused(), n)

    def test_tensors_of_other_shape_or_type(self):
        path, name = self.folder / "gates.gguf", "blk.1.seer_k.weight"
        values = self.values("seer", NEOX, gate_length=GATE)
        tensors = {}
        for layer in range(LAYERS):
            tensors[f"blk.{layer}.seer_q.weight"] = self.normal(KV, HEADS // KV, DIM, GATE)
            tensors[f"blk.{layer}.seer_k.weight"] = self.normal(KV, 3 * DIM, GATE)
        made_gguf.write(path, values, {k: v for k, v in tensors.items() if k != name})
        self.assertIn(f"tensor '{name}' is missing, wanted [2, 192, 32]", self.refused())
        made_gguf.write(path, values, dict(tensors, **{name: self.normal(KV, 2 * DIM, GATE)}))
        self.assertIn(f"tensor '{name}' is [2, 128, 32], wanted [2, 192, 32]", self.refused())
        made_gguf.write(path, values, tensors, {name: "q8_0"})
        self.assertIn(f"tensor '{name}' is of type q8_0, wanted f32, f16 or bf16", self.refused())


if __name__ == "__main__":
    unittest.main()
