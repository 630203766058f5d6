#!/usr/bin/env python3
"""The tables and charts of scripts/fidelity_table.py and scripts/fidelity_charts.py from made records."""

import unittest

from made_records import QWEN, SMOL, RecordsCase, policy_lines, run_line  # finds scripts/ too
import fidelity_charts
import fidelity_records
import fidelity_table

PREFIXES, HELD_OUT = fidelity_records.PREFIXES, fidelity_records.HELD_OUT


class Tables(RecordsCase):
    def table(self):
        return list(fidelity_table.main_table(self.cells()))

    def report(self):
        return list(fidelity_table.report(self.cells()))

    def test_table_has_a_line_a_policy(self):
        self.write_all()
        lines = self.table()
        self.assertEqual(len(lines), 2 + 2 * 7)
        self.assertIn("| smollm2 | `condense:budget=8%` | 8.0 % | .020 (.010, .020, .040) | .040 | 90.0 % | 3 × 127 |", lines)
        self.assertNotIn("held-out", lines[0])

    def test_held_out_prefixes_have_columns_once_they_have_records(self):
        self.write_all()
        for prefix, kl in zip(HELD_OUT, (0.01, 0.04)):
            self.write(run_line(SMOL, prefix), *policy_lines("condense:budget=8%", kl))
        self.write(run_line(SMOL, HELD_OUT[0]), *policy_lines("topk:budget=3%", 0.05))
        lines = self.table()
        self.assertEqual({line.count("|") for line in lines}, {10})
        self.assertIn("| smollm2 | `condense:budget=8%` | 8.0 % | .020 (.010, .020, .040) | .040 | 90.0 % | .020 (.010, .040) | "
                      ".040 | 3 + 2 × 127 |", lines)
        self.assertIn("| smollm2 | `oracle:budget=8%` | 8.0 % | .060 (.030, .060, .12) | .12 | 90.0 % | – (–, –) | – | "
                      "3 + 0 × 127 |", lines)
        self.assertIn("| smollm2 | `topk:budget=3%` | – | – (–, –, –) | – | – | – (.050, –) | – | 0 + 1 × 127 |", lines)

    def test_rotation_stands_behind_plain_and_ablations_stand_apart(self):
        self.write_all([SMOL])
        for prefix in PREFIXES:
            self.write(run_line(SMOL, prefix), *policy_lines("condense:budget=5%,rotation=on", 0.01),
                       *policy_lines("condense:budget=5%,split=1", 0.01))
        names = [line.split("`")[1] for line in self.table()[2:]]
        self.assertEqual(names, ["control", "condense:budget=5%", "condense:budget=8%", "condense:budget=12%",
                                 "condense:budget=5%,rotation=on", "oracle:budget=5%", "oracle:budget=8%",
                                 "oracle:budget=12%"])

    def test_ablations_are_ratios_at_the_same_budget(self):
        self.write_all([SMOL])
        self.assertEqual(list(fidelity_table.ablation_table(self.cells())), [])
        plain = 0.08 / 5
        for i, (prefix, ratio) in enumerate(zip(PREFIXES, (1, 2, 4))):
            self.write(run_line(SMOL, prefix), *policy_lines("condense:budget=5%,split=1", plain * 2 ** i * ratio))
        self.write(run_line(SMOL, PREFIXES[0]), *policy_lines("condense:budget=8%,bits=64", 1))  # of one prefix: no line
        title, _, head, _, *lines = fidelity_table.ablation_table(self.cells())
        self.assertIn("geometric mean of 3 prefixes (least to greatest)", title)
        self.assertEqual(head.count("|"), 7)
        self.assertEqual(lines, ["| smollm2 | `split=1` | 2.00 (1.00 to 4.00) | 2.00 (1.00 to 4.00) | – | – |"])

    def test_what_fell_back_is_said_and_the_others_stay(self):
        self.write_all([SMOL])
        self.write(run_line(SMOL, PREFIXES[1]),
                   *policy_lines("quest:budget=3%", 1, fallbacks={"budget": 7}, sparse_steps=0))
        lines = self.report()
        self.assertIn("not a measurement, left out: smollm2, moby-dick: quest:budget=3%: 0 sparse layer-steps, fallbacks "
                      "{'budget': 7}", lines)
        self.assertEqual(sum(line.startswith("| smollm2") for line in lines), 7)

    def test_the_foot_counts_plug_ins(self):
        self.write_all([SMOL])
        self.assertEqual(self.report()[-1], "21 records (model, prefix, policy) of 1 plug-in (0123abcde: 21)")
        self.write(run_line(QWEN, PREFIXES[0], commit="fedcba987"), *policy_lines("topk:budget=3%", 1),
                   name="0123456789ab/qwen-wikitext-0.jsonl")
        self.assertEqual(self.report()[-1], "22 records (model, prefix, policy) of 2 plug-ins (0123abcde: 21, fedcba987 "
                         "(0123456789ab): 1)")

    def test_nothing_is_an_empty_table(self):
        self.assertEqual(self.report()[2:], ["", "0 records (model, prefix, policy) of 0 plug-ins"])

    def test_two_digits_count(self):
        for value, text in ((0.0999, ".10"), (0.0123, ".012"), (1.26, "1.3"), (0.00046, ".00046"), (12.3, "12")):
            self.assertEqual(fidelity_table.number(value), text)


class Charts(RecordsCase):
    def test_a_changed_key_is_a_series_of_its_own(self):
        self.write_all([SMOL])
        for prefix in PREFIXES:
            self.write(run_line(SMOL, prefix), *policy_lines("condense:budget=8%,rotation=on", 0.01),
                       *policy_lines("condense:budget=8%,split=1", 0.01), *policy_lines("topk:budget=8%", 0.01))
        chart = fidelity_charts.chart(self.cells(), "greedy", "title")
        drawn = [point["name"] for point in chart["data"]["values"]]
        self.assertEqual(sorted(set(drawn)), ["condense", "condense, rotation=on", "control", "oracle", "topk"])
        self.assertEqual(drawn.count("condense"), 3)
        self.assertEqual(set(fidelity_charts.LABELS), set(fidelity_charts.COLOURS))


if __name__ == "__main__":
    unittest.main()
