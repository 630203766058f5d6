#!/usr/bin/env python3
"""What scripts/fidelity.py makes of records: geometric means over the pinned prefixes, `oracle` at equal bytes, only records
of a pinned model and text, only finished policies, the newest of several; held-out prefixes are in no figure."""

import hashlib
import json
import unittest
import unittest.mock

from made_records import QWEN, SMOL, RecordsCase, policy_lines, run_line  # finds scripts/ too
import fidelity
import fidelity_records
import fidelity_run

PREFIXES, HELD_OUT = fidelity_records.PREFIXES, fidelity_records.HELD_OUT


class Figures(RecordsCase):
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
        self.write(run_line(QWEN, PREFIXES[0]), *policy_lines("oracle:budget=5%", 1e-9))  # the later file's holds
        self.assertEqual(fidelity.oracle_figure(self.cells())["value"], 17)

    def test_held_out_prefixes_are_in_no_figure(self):
        self.write_all()
        before = [fidelity.kl_figure(SMOL, self.cells(), 5), fidelity.oracle_figure(self.cells())]
        for prefix in HELD_OUT:
            self.write(run_line(SMOL, prefix), *policy_lines("control", 1), *policy_lines("condense:budget=5%", 9),
                       *policy_lines("oracle:budget=5%", 1))
        self.assertTrue(self.cells()["smollm2", "held-out-wikitext"])
        self.assertEqual(before, [fidelity.kl_figure(SMOL, self.cells(), 5), fidelity.oracle_figure(self.cells())])

    def test_missing_cells_are_no_figure(self):
        self.write_all([SMOL])
        with self.assertRaisesRegex(fidelity_records.NotMeasured, "9 of 18 cells"):
            fidelity.oracle_figure(self.cells())
        with self.assertRaisesRegex(fidelity_records.NotMeasured,
                                    "codes_kl_5_qwen: no records of condense:budget=5% on wikitext, moby-dick, war-and-peace"):
            fidelity.kl_figure(QWEN, self.cells(), 5)

    def test_figures_come_from_the_plug_ins_own_folder(self):
        build = self.folder / "build"
        (build / "lib").mkdir(parents=True)
        (build / "lib/libggml-condense.so").write_bytes(b"plug-in")
        said, asked = [], []

        def run_missing(request, build, texts, threads, folder, say):
            asked.append(folder.name)
            self.folder = folder
            self.write_all([SMOL])
            yield SMOL

        with unittest.mock.patch.object(fidelity_run, "run_missing", run_missing):
            request = fidelity_run.Request(subjects=("smollm2",))
            found = list(fidelity.figures(build, None, self.folder / "records", 2, request, said.append))
        self.assertEqual([figure["figure"] for figure in found], ["codes_kl_5_smollm2", "codes_kl_8_smollm2"])
        self.assertEqual(asked, [hashlib.sha256(b"plug-in").hexdigest()[:12]])
        self.assertIn("fidelity: not measured: codes_vs_oracle_blocks: 9 of 18 cells are there", said)


class Records(RecordsCase):
    def test_upper_lines_pay_for_rows_alone(self):
        for name in ("oracle", "topk", "condense"):
            record, _ = policy_lines(f"{name}:budget=8%", 1)
            self.assertAlmostEqual(fidelity_records.read_share(record), 0.08, msg=name)

    def test_others_records_do_not_count(self):
        policy = list(policy_lines("condense:budget=8%", 1))
        for changes in ({"model_sha256": "0"}, {"n_prompt": 100}, {"kv_type_k": "q8_0"}, {"offset": 0}):
            self.write(run_line(SMOL, PREFIXES[0], **changes), *policy)
        self.assertFalse(any(self.cells().values()))

    def test_a_policy_is_there_once_both_teachers_are(self):
        first, second = policy_lines("condense:budget=8%", 1)
        self.write(run_line(SMOL, PREFIXES[0]), first, tail=json.dumps(second)[:20])
        self.assertFalse(any(self.cells().values()))

    def test_what_an_interrupted_run_finished_stays(self):
        first, second = policy_lines("oracle:budget=8%", 1)
        self.write(run_line(SMOL, PREFIXES[0]), *policy_lines("condense:budget=8%", 1), first, tail=json.dumps(second)[:20])
        self.assertEqual(set(self.cells()["smollm2", "wikitext"]), {"condense:budget=8%"})

    def test_a_policy_that_fell_back_is_refused(self):
        record, _ = policy_lines("condense:budget=8%", 1, fallbacks={"short": 3})
        with self.assertRaisesRegex(SystemExit, "not a measurement"):
            fidelity_records.check_ran(record)

    def kl_of_mean(self, *folders):
        return self.cells(*folders)["smollm2", "wikitext"]["mean:budget=8%"]["greedy"]["kl_mean"]

    def test_the_newest_run_of_all_folders_holds(self):
        for name, kl, time in (("a/x-1.jsonl", 1, "2026-01-02T00:00:00Z"), ("b/x-0.jsonl", 2, "2026-01-03T00:00:00Z"),
                               ("b/x-9.jsonl", 3, "2026-01-01T00:00:00Z")):
            self.write(run_line(SMOL, PREFIXES[0], time_utc=time), *policy_lines("mean:budget=8%", kl), name=name)
        self.assertEqual(self.kl_of_mean(self.folder / "a", self.folder / "b"), 2)
        self.assertEqual(self.kl_of_mean(self.folder / "b", self.folder / "a"), 2)
        self.assertEqual(self.kl_of_mean(self.folder / "a"), 1)

    def test_of_one_second_the_last_file_name_holds(self):
        for name, kl in (("b/x-1.jsonl", 1), ("a/x-2.jsonl", 2)):
            self.write(run_line(SMOL, PREFIXES[0], time_utc="2026-01-02T00:00:00Z"), *policy_lines("mean:budget=8%", kl),
                       name=name)
        self.assertEqual(self.kl_of_mean(), 2)


if __name__ == "__main__":
    unittest.main()
