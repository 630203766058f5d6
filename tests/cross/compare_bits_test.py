#!/usr/bin/env python3
"""That the comparison of bits sees what it must: a difference, a missing case, a missing target, nothing to compare."""

import pathlib
import subprocess
import sys
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "compare_bits.py"


def compare(*words):
    return subprocess.run([sys.executable, str(SCRIPT), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)


def printing(*lines):
    return ["printf", "%s\n", *("\t".join(line) for line in lines)]


class CompareBits(unittest.TestCase):
    def test_equal_bits_pass(self):
        done = compare("--need", "NEON", *printing(("AVX2", "a", "1"), ("AVX3", "a", "1")), "--and", *printing(("NEON", "a", "1")))
        self.assertEqual((done.returncode, done.stdout), (0, "AVX2, AVX3, NEON: 1 cases, 0 differences\n"))

    def test_other_bits_fail(self):
        done = compare(*printing(("AVX2", "a", "1"), ("AVX2", "b", "2")), "--and", *printing(("NEON", "a", "1"), ("NEON", "b", "3")))
        self.assertEqual(done.returncode, 1)
        self.assertIn("b: AVX2 2, NEON 3", done.stdout)

    def test_a_missing_case_fails(self):
        done = compare(*printing(("AVX2", "a", "1"), ("AVX2", "b", "2")), "--and", *printing(("NEON", "a", "1")))
        self.assertEqual(done.returncode, 1)
        self.assertIn("b: AVX2 2, NEON None", done.stdout)

    def test_the_needed_target_must_have_run(self):
        done = compare("--need", "NEON", *printing(("AVX2", "a", "1"), ("AVX3", "a", "1")))
        self.assertEqual(done.returncode, 1)
        self.assertIn("no run used NEON", done.stderr)

    def test_a_program_that_fails_fails(self):
        done = compare(*printing(("AVX2", "a", "1")), "--and", "false")
        self.assertEqual(done.returncode, 1)
        self.assertIn("false failed with status 1", done.stderr)

    def test_one_target_is_a_skip(self):
        done = compare(*printing(("AVX2", "a", "1")))
        self.assertEqual(done.returncode, 0)
        self.assertIn("... skipped: nothing to compare", done.stdout)


if __name__ == "__main__":
    unittest.main()
