#!/usr/bin/env python3
"""What scripts/fidelity.py makes of records: geometric means over the pinned prefixes, `oracle` at equal bytes, only records
of a pinned model and text, only finished policies; and what it says where texts are missing or are others."""

import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import fidelity

SMOL, QWEN = fidelity.SUBJECTS


def run_line(subject, prefix, **changes):
    return {"record": "run", "model_sha256": subject.model.sha256, "n_prompt": subject.n_prompt, "text_sha256": prefix.sha256,
            "offset": prefix.offset, "n_generate": 128, "kv_type_k": "f16", "kv_type_v": "f16", **changes}


def policy_lines(policy, kl, **changes):
    share = float(policy.partition("budget=")[2].rstrip("%") or 100) / 100
    # As the counters have it: an oracle's choice reads all other keys, condense's its codes.
    rows_alone = policy.startswith(("oracle", "topk"))
    k, v, summary = (share * 50, share * 50, 50 - share * 50) if rows_alone else (share * 40, share * 40, share * 20)
    for teacher, factor in (("greedy", 1), ("text", 2)):
        yield {"record": "policy", "policy": policy, "teacher": teacher, "kl_mean": kl * factor, "tf_match": 0.9,
               "k_bytes": k, "v_bytes": v, "summary_bytes": summary, "dense_bytes": 100, "sparse_steps": 0 if policy in (
                   "dense", "control") else 7, "fallbacks": {}, **changes}


class Records(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.n_files = 0

    def write(self, *lines, tail=""):
        self.n_files += 1
        path = self.folder / f"{self.n_files}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)

    def write_all(self, subjects=fidelity.SUBJECTS):
        for subject in subjects:
            for i, prefix in enumerate(fidelity.PREFIXES):
                lines = [run_line(subject, prefix), *policy_lines("control", 1e-4)]
                for percent in (5, 8, 12):
                    kl = 0.08 / percent * 2 ** i
                    lines += policy_lines(f"condense:budget={percent}%", kl)
                    lines += policy_lines(f"oracle:budget={percent}%", 3 * kl)
                self.write(*lines)

    def cells(self):
        return fidelity.read_cells(self.folder)

    def test_figure_is_the_geometric_mean(self):
        self.write_all()
        figure = fidelity.kl_figure(SMOL, self.cells(), 8)
        self.assertEqual(figure["figure"], "codes_kl_8_smollm2")
        self.assertAlmostEqual(figure["value"], 0.02)
        self.assertAlmostEqual(figure["spread"][1], 0.04)
        self.assertAlmostEqual(figure["text_teacher"], 0.04)
        self.assertAlmostEqual(figure["control"], 1e-4)
        self.assertEqual(figure["n"], 3)

    def test_oracle_is_beaten_cell_by_cell(self):
        self.write_all()
        figure = fidelity.oracle_figure(self.cells())
        self.assertEqual((figure["value"], figure["n"]), (18, 18))
        self.assertAlmostEqual(figure["spread"][0], 3)
        prefix = fidelity.PREFIXES[0]
        self.write(run_line(QWEN, prefix), *policy_lines("oracle:budget=5%", 1e-9))  # the later file's holds
        self.assertEqual(fidelity.oracle_figure(self.cells())["value"], 17)

    def test_oracles_pay_for_rows_alone(self):
        for name in ("oracle", "topk", "condense"):
            record, _ = policy_lines(f"{name}:budget=8%", 1)
            self.assertAlmostEqual(fidelity.read_share(record), 0.08)
        record, _ = policy_lines("topk:tokens=193", 1)
        self.assertAlmostEqual(fidelity.read_share({**record, "k_bytes": 3, "v_bytes": 4}), 0.07)

    def test_missing_cells_are_no_figure(self):
        self.write_all([SMOL])
        with self.assertRaisesRegex(fidelity.NotMeasured, "9 of 18 cells"):
            fidelity.oracle_figure(self.cells())

    def test_others_records_do_not_count(self):
        prefix = fidelity.PREFIXES[0]
        policy = list(policy_lines("condense:budget=8%", 1))
        self.write(run_line(SMOL, prefix, model_sha256="0"), *policy)
        self.write(run_line(SMOL, prefix, n_prompt=100), *policy)
        self.write(run_line(SMOL, prefix, kv_type_k="q8_0"), *policy)
        self.write(run_line(SMOL, prefix, offset=0), *policy)
        self.assertFalse(any(self.cells().values()))

    def test_a_policy_is_there_once_both_teachers_are(self):
        first, second = policy_lines("condense:budget=8%", 1)
        self.write(run_line(SMOL, fidelity.PREFIXES[0]), first, tail=json.dumps(second)[:20])
        self.assertFalse(any(self.cells().values()))

    def test_a_policy_that_fell_back_is_refused(self):
        record, _ = policy_lines("condense:budget=8%", 1, fallbacks={"short": 3})
        with self.assertRaisesRegex(SystemExit, "not a measurement"):
            fidelity.check_ran(record)

    def test_finished_policies_are_not_run_again(self):
        self.write_all()
        said = []
        fidelity.run_missing(self.folder / "no build", SMOL, fidelity.PREFIXES[0], None, 2, fidelity.NEEDED, self.folder,
                             said.append)
        self.assertEqual(said, [])

    def stub(self, text):
        """A build folder whose `condense` is a shell script."""
        program = self.folder / "build/bin/condense"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        return self.folder / "build"

    def test_one_run_carries_what_is_missing(self):
        prefix, records = fidelity.PREFIXES[1], self.folder / "records"
        made = self.folder / "made"
        lines = [run_line(SMOL, prefix), *policy_lines("mean:budget=8%", 1)]
        made.write_text("".join(json.dumps(line) + "\n" for line in lines))
        build = self.stub(f'echo "$@" >>{self.folder}/argv; while [ "$1" != --records ]; do shift; done; cp {made} "$2"')
        for policies in (["mean:budget=8%"], ["mean:budget=8%", "oracle:budget=8%", "condense:budget=8%"]):
            with unittest.mock.patch.object(fidelity, "find_model", return_value="MODEL"):
                fidelity.run_missing(build, SMOL, prefix, "TEXT", 2, policies, records, lambda text: None)
        first, second = (self.folder / "argv").read_text().splitlines()
        self.assertIn("compare -m MODEL -f TEXT --offset 60000 --prompt-tokens 7904 -n 128 -t 2 --speed-pairs 0", first)
        self.assertTrue(first.endswith("smollm2-moby-dick-0.jsonl --policy mean:budget=8%"))
        self.assertTrue(second.endswith("smollm2-moby-dick-1.jsonl --policy oracle:budget=8% --policy condense:budget=8%"))

    def test_a_failed_run_is_said(self):
        with unittest.mock.patch.object(fidelity, "find_model", return_value="MODEL"):
            with self.assertRaisesRegex(SystemExit, "condense compare failed on qwen, wikitext"):
                fidelity.run_missing(self.stub("exit 1"), QWEN, fidelity.PREFIXES[0], "TEXT", 2, fidelity.NEEDED,
                                     self.folder / "records", lambda text: None)

    def test_table_has_a_line_a_policy(self):
        self.write_all()
        lines = list(fidelity.table(self.cells()))
        self.assertEqual(len(lines), 2 + 2 * 7)
        self.assertIn("| smollm2 | `condense:budget=8%` | 8.0 % | .020 (.010, .020, .040) | .040 | 90.0 % | 3 × 127 |", lines)


class Texts(unittest.TestCase):
    def test_none_given(self):
        with self.assertRaisesRegex(fidelity.NotMeasured, "--texts DIR with wikitext-2-raw-test.txt, moby-dick.txt, war"):
            fidelity.check_texts(None)

    def test_missing_and_another(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            with self.assertRaisesRegex(fidelity.NotMeasured, "there is no .*wikitext-2-raw-test.txt"):
                fidelity.check_texts(folder)
            (folder / "wikitext-2-raw-test.txt").write_text("another\n")
            with self.assertRaisesRegex(fidelity.NotMeasured, "another text .*sha256 [0-9a-f]{64}, not 4f3e427e"):
                fidelity.check_texts(folder)


if __name__ == "__main__":
    unittest.main()
