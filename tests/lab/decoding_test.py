#!/usr/bin/env python3
"""The experiments `exact` and `guard`: drafts whose text is dense decoding's, guards calibrated on other text; the same for the
same spec, at 1 and 2 threads, after a kill; every line as docs/records.schema.json says."""

import json

from lab_case import LabTest, OF_TIME, host
from records_test import DOCS, wrong

TIMES = OF_TIME | {"draft_seconds", "verify_seconds", "undrafted_seconds", "set_up_seconds", "exact_tokens_per_second"}
EXACT = """experiment = "exact"
texts = ["words.txt"]
code_texts = ["code.txt"]
made = ["repetition", "question"]
passage_tokens = 50
form = "plain"
offsets = [100]
contexts = [300]
tokens = 24
drafts = ["lookup", "mean:blocks=4,window=32", "lookup+random:blocks=4,window=32"]
draft_tokens = ["3", "6"]
speed_pairs = 1
"""
N_EXACT = 4 * (1 + 3 * 2)  # kinds × (dense, sources × lengths)
GUARD = """experiment = "guard"
calibrate_texts = ["words.txt"]
calibrate_offsets = [0, 320]
texts = ["words.txt", "code.txt"]
offsets = [640]
contexts = [300]
tokens = 20
policies = ["mean:blocks=4,window=32"]
risks = [0.2, 0.4]
on = "both"
refresh = [4]
speed_pairs = 0
"""
N_GUARD = 2 + 2 * (2 + 1 + 2 + 1)  # calibrations; texts × (dense, control, the policy, guards, refreshed)


class DecodingTest(LabTest):
    def setUp(self):
        super().setUp()
        code = "".join(f"int f{i}(int a, int b) {{ return a * {i % 7} + b - {i % 5}; }}\n" for i in range(60))
        (self.folder / "code.txt").write_text(code)

    def untimed_cells(self, out):
        return {cell: [{key: value for key, value in line.items() if key not in TIMES} for line in lines]
                for cell, lines in self.cells(out).items()}

    def run_whole(self, text, n_cells):
        """Runs the spec twice and at one thread; lines of the first, by kind."""
        spec = self.write_spec("decoding.toml", text)
        done = self.run_lab(spec, out="a")
        first = self.untimed_cells("a")
        self.assertEqual(len(first), n_cells)
        self.run_lab(spec, out="b", threads=1)
        self.assertEqual(self.untimed_cells("b"), first, "the same, at one thread too")
        kinds = json.loads((DOCS / "records.schema.json").read_text())["$defs"]
        by_kind = {}
        for number, line in enumerate(self.lines("a"), 1):
            self.assertEqual(wrong(line, kinds[line["record"]]), [], f"line {number}")
            by_kind.setdefault(line["record"], []).append(line)
        return by_kind, done.stdout


class Exact(DecodingTest):
    def test_records(self):
        by_kind, out = self.run_whole(EXACT, N_EXACT)
        lines = by_kind["exact"]
        self.assertEqual(len(lines), N_EXACT)
        self.assertEqual(len(by_kind["prompt"]), 4)
        for line in lines:
            self.assertTrue(line["identical"] and line["first_difference"] is None, line["cell"])
            self.assertEqual(line["drafted"], sum(line["drafted_at"]))
            self.assertEqual(line["accepted"], sum(line["accepted_at"]))
            self.assertEqual(line["drafted"], sum(source["drafted"] for source in line["sources"]))
            self.assertEqual(line["accepted_at"], sorted(line["accepted_at"], reverse=True), "none without those before it")
            if line["policy"] != "dense":
                # All tokens but the first: one of each call, with a draft or without, and what was confirmed.
                self.assertEqual(line["n_tokens"] - 1, line["verifications"] + line["undrafted"] + line["accepted"])
        self.assertTrue(any(line["accepted"] > 0 for line in lines))
        self.assertIn("exact: ", out)
        self.assertIn("confirmed by place in the draft", out)

    def test_the_default_model(self):
        spec = self.write_spec("one.toml", EXACT.replace('["repetition", "question"]', '["question"]')
                               .replace('code_texts = ["code.txt"]\n', "").replace('["3", "6"]', '["4", "auto"]')
                               .replace('"plain"', '"chat"').replace("tokens = 24", "tokens = 16"))
        self.run_lab(spec, model=host.default_model())
        lines = [line for line in self.lines() if line["record"] == "exact"]
        self.assertEqual(len(lines), 2 * (1 + 3 * 2))
        self.assertTrue(all(line["identical"] for line in lines))

    def test_what_cannot_work_is_said_before_anything_runs(self):
        for old, new, words in (('"lookup", "mean', '"lookup+", "mean', "names no policy"),
                                ('"lookup", "mean', '"dense", "mean', "drafts nothing"),
                                ('"lookup", "mean', '"lookup+maen", "mean', "mean"),
                                ("contexts = [300]", "contexts = [4080]", "4096")):
            done = self.run_lab(self.write_spec("bad.toml", EXACT.replace(old, new)), expect=2)
            self.assertIn(words, done.stderr)
            self.assertFalse((self.folder / "out/records-0.jsonl").exists())


class Guard(DecodingTest):
    def test_records(self):
        by_kind, out = self.run_whole(GUARD, N_GUARD)
        trials, guards = by_kind["guard_trial"], by_kind["guard"]
        self.assertEqual(len(guards), 2 * 2 * 2, "texts, risks, teachers")
        for line in guards:
            chosen = [t for t in trials if t["chosen"] and t["risk"] == line["risk"]]
            self.assertEqual({t["teacher"] for t in chosen}, {"greedy", "text"})
            self.assertEqual({(t["threshold"], t["certified"]) for t in chosen}, {(line["threshold"], line["certified"])})
            self.assertEqual(line["bound"], max(t["bound"] for t in chosen))
            self.assertEqual((line["n_decisions"], line["autonomous_steps"]), (19, 19))
            self.assertLessEqual(line["n_differ"] + line["n_fallbacks"], 19)
        for trial in trials:
            self.assertEqual(trial["n_decisions"], 19, "one prefix is held out")
            self.assertTrue(not (trial["chosen"] and trial["certified"]) or trial["bound"] <= trial["risk"])
        policies = {line["policy"]: line for line in by_kind["policy"]}
        self.assertEqual(len(policies), 6)
        self.assertEqual(policies["dense"]["tf_match"], 1)
        for line in by_kind["policy"]:
            self.assertIsNone(line["omitted_mass_mean"])
            self.assertTrue(line["policy"] != "dense" or line["kv_read_share"] == 1)
            self.assertEqual(line["sparse_steps"] > 0, line["policy"] not in ("dense", "control"), line["policy"])
        # A refreshed run of 19 decisions: every fourth step dense.
        plain, refreshed = policies["mean:blocks=4,window=32"], policies["refresh 4 of mean:blocks=4,window=32"]
        self.assertEqual(plain["sparse_steps"] * 15, refreshed["sparse_steps"] * 19)
        self.assertGreater(refreshed["kv_read_share"], plain["kv_read_share"])
        self.assertIn("what was certified", out)
        self.assertIn("risk on texts beside what was promised", out)
        self.assertIn("ways of decoding", out)

    def test_goes_on_with_the_calibration_of_an_earlier_run(self):
        spec = self.write_spec("decoding.toml", GUARD)
        self.run_lab(spec, out="whole")
        path = self.folder / "out/records-0.jsonl"
        path.parent.mkdir()
        lines = (self.folder / "whole/records-0.jsonl").read_bytes().splitlines(keepends=True)
        n_calibrated = [i for i, line in enumerate(lines) if b'"record":"cell"' in line][1] + 1
        path.write_bytes(b"".join(lines[:n_calibrated]))
        done = self.run_lab(spec)
        self.assertIn(f"{N_GUARD} cells, 2 of them done before", done.stdout)
        self.assertEqual(self.untimed_cells("out"), self.untimed_cells("whole"))

    def test_what_was_calibrated_on_is_not_decoded(self):
        done = self.run_lab(self.write_spec("bad.toml", GUARD.replace("offsets = [640]", "offsets = [600]")), expect=2)
        self.assertIn("shares tokens with what is calibrated on, from 320 to 640", done.stderr)
        done = self.run_lab(self.write_spec("twice.toml", GUARD.replace("[0, 320]", "[0, 300]")), expect=2)
        self.assertIn("from token 0 to 320 and 'words.txt' from 300 to 620 share tokens", done.stderr)

    def test_what_reads_every_row_is_not_certified(self):
        spec = GUARD.replace("blocks=4,window=32", "blocks=40").replace('on = "both"', 'on = "text"')
        done = self.run_lab(self.write_spec("whole.toml", spec), expect=1)
        self.assertIn("there is nothing to guard", done.stderr)
        self.assertNotIn("guard_trial", (self.folder / "out/records-0.jsonl").read_text())


if __name__ == "__main__":
    host.main()
