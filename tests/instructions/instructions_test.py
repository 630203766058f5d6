#!/usr/bin/env python3
"""What scripts/instructions.py makes of counts: more than 5 % more instructions by the record's own compiler fail,
differences over 2 % are named, another compiler's counts are reported and not judged."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import instructions

MADE_BY = {"target": "AVX2", "compiler": "GNU 12.2.0", "flags": "-O3", "highway": "1.0.3"}
RECORD = {**MADE_BY, "made": "2000-01-01", "instructions": {"decode": 1000, "select": 2000}}


def compare(decode, select, made_by=MADE_BY, record=RECORD):
    return instructions.Comparison(made_by, {"decode": decode, "select": select}, record)


class Judgement(unittest.TestCase):
    def test_small_differences_pass_and_are_not_named(self):
        found = compare(1020, 1961)
        self.assertEqual(found.failures(), [])
        self.assertFalse([line for line in found.lines() if "REGRESSION" in line or "improvement" in line])

    def test_differences_over_two_percent_are_named(self):
        found = compare(1021, 1958)
        self.assertEqual(found.failures(), [])
        lines = list(found.lines())
        self.assertRegex(lines[0], r"^decode .* \+2\.1 %  REGRESSION$")
        self.assertRegex(lines[1], r"^select .* -2\.1 %  improvement$")

    def test_more_than_five_percent_fails(self):
        self.assertEqual(compare(1050, 2000).failures(), [])
        self.assertEqual(compare(1051, 2000).failures(),
                         ["decode takes 5.1 % more instructions than the record's 1,000"])
        self.assertEqual(compare(1, 1).failures(), [])

    def test_another_compiler_is_reported_only(self):
        found = compare(9000, 2000, made_by={**MADE_BY, "compiler": "Clang 14.0.6"})
        self.assertEqual(found.failures(), [])
        lines = list(found.lines())
        self.assertIn("+800.0 %", lines[0])
        self.assertNotIn("REGRESSION", lines[0])
        self.assertEqual(lines[-1], "only reported, not judged: compiler Clang 14.0.6, the record's GNU 12.2.0")

    def test_the_record_must_hold_the_same_kernels(self):
        record = {**RECORD, "instructions": {"decode": 1000, "verify": 1}}
        self.assertEqual(compare(1000, 2000, record=record).failures(), ["the record has other kernels"])
        self.assertEqual(compare(1000, 2000, record={}).failures(), ["there is no record"])

    def test_without_valgrind_nothing_is_measured(self):
        with tempfile.TemporaryDirectory() as empty:
            done = subprocess.run([sys.executable, str(SCRIPTS / "instructions.py"), empty, "--test"], capture_output=True,
                                  text=True, env={**os.environ, "PATH": empty}, check=False)
        self.assertEqual(done.returncode, 0)
        self.assertIn("... skipped: not measured: there is no valgrind here", done.stdout)


if __name__ == "__main__":
    unittest.main()
