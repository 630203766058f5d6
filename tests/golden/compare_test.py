#!/usr/bin/env python3
"""`condense compare --records`: on the tiny F32-weight model against the committed tiny.json (tokens, T_div and counts
exactly, other figures but for rounding), at 1 and 2 threads alike; on the default model within bounds that hold on any
processor, since llama.cpp's quantised matmuls differ between them.

    CONDENSE_UPDATE_GOLDEN=1 ctest -R golden.TinyModel     writes tiny.json anew
"""

import json
import math
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import host

GOLDEN = pathlib.Path(__file__).parent / "tiny.json"
UPDATE = os.environ.get("CONDENSE_UPDATE_GOLDEN") == "1"
POLICIES = ("dense", "mean:blocks=24,window=64", "mean:blocks=34,window=64", "mean:blocks=24,window=64,share=per_head",
            "quest:blocks=34,window=64", "sink:window=500", "window:window=650", "oracle:blocks=24,window=32",
            "random:blocks=36,window=64", "mean:blocks=24,window=64,reuse=4,dense_layers=0-0")
# Integers, texts and lists are compared exactly. Two processors sum llama.cpp's FP32 matmuls in different orders: seen
# between AVX-512 and AVX2, 4e-6 for a margin (a difference of two logits) and less than 2e-6 for everything else.
RELATIVE, ABSOLUTE, ABSOLUTE_OF_MARGINS = 1e-6, 5e-6, 3e-5
MARGINS = {"largest_margin_at_difference"}
# Of the machine, the build or the clock.
VOLATILE = {"version", "commit", "llama_cpp_commit", "ggml_version", "compiler", "instruction_set", "cpu", "time_utc", "argv",
            "threads", "text_source", "prefill_seconds", "prefill_tokens_per_second", "sparse_tokens_per_second",
            "dense_tokens_per_second", "speed_pairs", "select_share", "speed_ratio_median", "speed_ratio_low", "speed_ratio_high", "model",
            # Of pieces of text: the tokens are there.
            "dense_text", "autonomous_text", "first_token_text",
            # Ranks and differences between nearly equal figures.
            "kl_stderr"}
RECORDS = ("run", "prompt", "policy", "layer")


def made_text():
    """English-looking words in an order of no meaning, the same everywhere."""
    words = ("the program is free software and you may change it under the terms of this licence or any later one without "
             "warranty of any kind even for a particular purpose see what follows").split()
    state, out = 2026, []
    for i in range(900):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(words[state // 65536 % len(words)] + ("." if i % 13 == 12 else ""))
    return " ".join(out)


class Compare(host.HostTest):
    def compare(self, *arguments, text=None):
        """The records of one run: [objects]."""
        records = self.folder / "records.jsonl"
        records.unlink(missing_ok=True)  # what is there is not run again
        command = [host.need(host.BUILD / "bin" / "condense", "build the target condense"), "compare", "--records", records]
        if text is not None:
            (self.folder / "text.txt").write_text(text)
            command += ["-f", self.folder / "text.txt"]
        env = host.environment(with_plugin=False)
        env["CONDENSE_PLUGIN"] = str(host.plugin())
        done = subprocess.run([str(word) for word in [*command, *arguments]], env=env, capture_output=True, text=True,
                              timeout=280, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-3000:])
        print(done.stdout)
        return [json.loads(line) for line in records.read_text().splitlines()]


class TinyModel(Compare):
    def run_tiny(self, n_threads=2, **more):
        policies = [word for policy in POLICIES for word in ("--policy", policy)]
        lines = self.compare("-m", host.tiny_model(), "--offset", 40, "--prompt-tokens", 700, "-n", 48, "-ctk", "f32", "-ctv",
                             "f32", "-t", n_threads, "--speed-pairs", 0, *policies, text=made_text())
        return [{key: value for key, value in line.items() if key not in VOLATILE} for line in lines
                if line["record"] in RECORDS]

    def assert_same(self, wanted, seen, where):
        if isinstance(wanted, float) or isinstance(seen, float):
            self.assertIsNotNone(wanted, where)
            self.assertIsNotNone(seen, where)
            absolute = ABSOLUTE_OF_MARGINS if where.split(".")[-1] in MARGINS else ABSOLUTE
            self.assertTrue(math.isclose(wanted, seen, rel_tol=RELATIVE, abs_tol=absolute), f"{where}: {wanted} became {seen}")
        elif isinstance(wanted, dict):
            self.assertEqual(wanted.keys(), seen.keys(), where)
            for key, value in wanted.items():
                self.assert_same(value, seen[key], f"{where}.{key}")
        else:
            self.assertEqual(wanted, seen, where)

    def test_records_are_the_committed_ones(self):
        seen = self.run_tiny()
        if UPDATE:
            GOLDEN.write_text("[\n" + ",\n".join(json.dumps(line) for line in seen) + "\n]\n")
        wanted = json.loads(host.need(GOLDEN, "CONDENSE_UPDATE_GOLDEN=1 writes it").read_text())

        def names(lines):
            return [(line["record"], line.get("policy"), line.get("teacher"), line.get("layer")) for line in lines]

        self.assertEqual(names(wanted), names(seen))
        for a, b in zip(wanted, seen):
            with self.subTest(record=a["record"], policy=a.get("policy"), teacher=a.get("teacher"), layer=a.get("layer")):
                # Keys that were added since are no difference; what is gone is.
                self.assert_same(a, {key: value for key, value in b.items() if key in a}, "")
        self.check_sense(seen)

    def check_sense(self, lines):
        """The golden run is worth its name: policies part from dense, at various places, and the records agree."""
        dense = next(line for line in lines if line["record"] == "prompt")["dense_tokens"]
        places = set()
        for line in lines:
            if line["record"] != "policy":
                continue
            own, t_div = line["autonomous_tokens"], line["t_div"]
            same = next((i for i, (a, b) in enumerate(zip(dense[1:], own)) if a != b), None)
            self.assertEqual(t_div, None if same is None else same + 1, line["policy"])
            places.add(t_div)
            if line["policy"] in ("dense", "control"):
                self.assertEqual(line["sparse_steps"], 0)
                self.assertLess(line["kl_max"], 1e-9)
            else:
                self.assertGreater(line["sparse_steps"], 0)
                self.assertGreater(line["kl_mean"], 1e-4)
                self.assertLess(line["kv_read_share"], 1)
        self.assertGreaterEqual(len(places), 3)

    def test_one_thread_writes_the_same_records(self):
        one, two = self.run_tiny(n_threads=1), self.run_tiny(n_threads=2)
        self.assertEqual(one, two)


class DefaultModel(Compare):
    def test_bounds(self):
        policies = ("mean:blocks=2", "mean:blocks=8", "mean:blocks=32", "quest:blocks=8", "oracle:blocks=8", "random:blocks=8")
        lines = self.compare("--prompt-tokens", 1500, "-n", 33, "-t", host.N_THREADS, "--speed-pairs", 0,
                             *[word for policy in policies for word in ("--policy", policy)], text=host.gpl_text())
        rows = {(line["policy"], line["teacher"]): line for line in lines if line["record"] == "policy"}
        text = {policy: row for (policy, teacher), row in rows.items() if teacher == "text"}
        self.assertEqual(len(text), len(policies) + 2, list(text))
        spec = {policy: next(name for name in text if name.startswith(policy.split(":")[0] + ":")
                             and policy.split(":")[1].split(",")[0] in name.split(":")[1].split(",")) for policy in policies}
        mean2, mean8, mean32, quest8, oracle8, random8 = (text[spec[policy]] for policy in policies)
        # The noise floor: another order of summation, through int8 activations.
        self.assertEqual(text["dense"]["kl_max"], 0)
        self.assertLess(text["control"]["kl_mean"], 0.02)
        for row in (mean2, mean8, mean32, quest8, oracle8, random8):
            with self.subTest(policy=row["policy"]):
                self.assertEqual(row["sparse_steps"], 32 * 30)
                self.assertEqual(row["fallbacks"], {})
                self.assertEqual(row["rebuilds"], 0)
                self.assertGreater(row["kl_mean"], text["control"]["kl_mean"])
                self.assertLess(row["kl_mean"], 1.5)
                self.assertGreater(row["same_top"], 0.5)
                self.assertTrue(0.6 < row["ppl_ratio"] < 2, row["ppl_ratio"])
        # What is read, of about 1,516 rows: anchor, window and blocks, and a summary of 1/32 (1/16) of the K and V bytes.
        for row, n_blocks, summaries in ((mean2, 2, 1 / 32), (mean8, 8, 1 / 32), (mean32, 32, 1 / 32), (quest8, 8, 1 / 16)):
            support = (65 + 16 * n_blocks) / row["visible_rows"]
            self.assertAlmostEqual(row["kv_read_share"], support + summaries, delta=0.02, msg=row["policy"])
        # More blocks are better; the true mass is better than its estimate, and that finds more of it than chance does.
        self.assertLess(mean8["kl_mean"], mean2["kl_mean"])
        self.assertLess(mean32["kl_mean"], mean8["kl_mean"])
        self.assertLess(oracle8["kl_mean"], mean8["kl_mean"])
        self.assertLess(oracle8["omitted_mass_mean"], mean8["omitted_mass_mean"])
        self.assertLess(mean8["omitted_mass_mean"], random8["omitted_mass_mean"])


if __name__ == "__main__":
    host.main()
