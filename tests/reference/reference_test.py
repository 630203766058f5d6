#!/usr/bin/env python3
"""Each registered policy against its NumPy form, on q, K and V of the default model: the same rows, or others only where
their scores tie within the stated bound. The fixture is made of the model once a run (kv_capture), a temporary folder."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import host
import numpy as np
from evicting import pool_around
from policies import REFERENCE
from specs import Q8_SPECS, SPECS
from stored import Layer, Pick, rows_pick

# Prompt and steps: the window's start crosses a block's and a segment's border.
N_PROMPT, N_STEPS, LAYERS = 1467, 8, (14, 1, 29)


def tool(name):
    return host.need(host.BUILD / "tests" / "bin" / name, f"build the target {name}")


def capture(folder, kv_type="f16", layers=LAYERS):
    """Stores q, K, V of the default model."""
    done = subprocess.run([tool("kv_capture"), host.default_model(), folder, kv_type, str(N_PROMPT), str(N_STEPS),
                           ",".join(map(str, layers))], input=host.gpl_text().encode(), capture_output=True, timeout=240,
                          check=False, env=host.environment(with_plugin=False))
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode())


def registered():
    done = subprocess.run([tool("policy_rows"), "--policies"], capture_output=True, check=True, timeout=60)
    return {policy["name"] for policy in json.loads(done.stdout)}


def chosen(folder, specs, layer):
    """What the program reads under each spec."""
    asks = "".join(json.dumps({"spec": spec, "layer": layer}) + "\n" for spec in specs)
    done = subprocess.run([tool("policy_rows"), folder], input=asks.encode(), capture_output=True, timeout=240, check=True,
                          env=host.environment(with_plugin=False))
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def keys_of(spec):
    return dict(key.split("=", 1) for key in spec.partition(":")[2].split(",") if key)


# Trained gates, which the model has not: made ones are compared in tests/gates/gates_test.py.
COMPARED_WITH_MADE_GATES = {"nsa", "seer"}


class Reference(unittest.TestCase):
    def test_every_policy_has_a_reference(self):
        wanted = registered() - COMPARED_WITH_MADE_GATES
        for name in sorted(wanted):
            self.assertTrue(name in REFERENCE and SPECS.get(name),
                            f"policy '{name}' has no reference: write its rule in NumPy in tests/reference/policies.py "
                            f"(@reference(\"{name}\")) and what to compare in SPECS of tests/reference/specs.py")
        self.assertEqual(set(REFERENCE), wanted, "a reference whose policy is not registered")

    def compare(self, kv_type, table, layers):
        with tempfile.TemporaryDirectory(prefix="condense-reference-") as folder:
            capture(folder, kv_type, layers)
            profile = pathlib.Path(folder) / "profile.tsv"
            profile.write_text("".join(f"{i / 31:.3f}\t{1 - i / 31:.3f}\t0.5\n" for i in range(30)))
            names = [(name, spec.replace("PROFILE", str(profile))) for name, specs in table.items() for spec in specs]
            for i, number in enumerate(layers):
                layer = Layer(folder, number)
                # Every spec in the first layer, in each of the others a part of them.
                part = names[i % 3::3] if i else names
                for (name, spec), answer in zip(part, chosen(folder, [spec for _, spec in part], number), strict=True):
                    with self.subTest(spec=spec, layer=number, kv=kv_type):
                        self.assertNotIn("error", answer)
                        self.assertEqual(len(answer["steps"]), N_STEPS)
                        wrongs = REFERENCE[name](keys_of(spec), layer, answer["steps"])
                        self.assertFalse(wrongs, f"{len(wrongs)} wrong:\n  " + "\n  ".join(wrongs[:4]))
            self.check_equal_input_gives_equal_rows(folder, layers[0])

    def check_equal_input_gives_equal_rows(self, folder, layer):
        """`random` and `bigbird` too: twice the same, and another seed another draw."""
        specs = ["random:blocks=6", "bigbird:blocks=6", "mean:blocks=6", "h2o", "condense:budget=25%"]
        first, second = (chosen(folder, specs, layer) for _ in range(2))
        self.assertEqual(first, second)
        self.assertNotEqual(first[0]["steps"][0]["k"],
                            chosen(folder, ["random:blocks=6,seed=2"], layer)[0]["steps"][0]["k"])

    def test_policies_read_what_their_rules_say(self):
        self.compare("f16", SPECS, LAYERS)

    def test_policies_read_what_their_rules_say_of_q8_0(self):
        self.compare("q8_0", Q8_SPECS, (14,))

    def test_a_mean_at_the_ends_of_a_row_counts_its_padding(self):
        """F.avg_pool1d and F.max_pool1d of SnapKV's snapkv_utils.py, on a row whose best mean is at neither end."""
        votes = np.array([6.0, 0.0, 0.0, 3.0, 3.0, 3.0, 0.0, 5.0])
        self.assertEqual(pool_around(votes, 3, average=True).tolist(), [2.0, 2.0, 1.0, 2.0, 3.0, 2.0, 8 / 3, 5 / 3])
        self.assertEqual(pool_around(votes, 3, average=False).tolist(), [6.0, 6.0, 3.0, 3.0, 3.0, 3.0, 5.0, 5.0])

    def test_wrong_rows_are_found(self):
        """What the comparison must not let pass: each of these is one row or one item off."""
        always = np.arange(64) >= 48
        scores = np.where(always, 0.0, np.arange(64.0))
        pick = rows_pick(always, scores, np.full(64, 0.1), 4)
        right = [44, 45, 46, 47, *range(48, 64)]
        self.assertEqual(pick.wrong(right), "")
        self.assertIn("must be read", pick.wrong(right[:-1]))
        self.assertIn("scores 43", pick.wrong([43, *right[1:]]))
        self.assertIn("3 items are read, not 4", pick.wrong(right[1:]))
        tied = rows_pick(always, scores, np.full(64, 0.6), 4)
        self.assertEqual(tied.wrong([43, *right[1:]]), "")  # within the bounds
        item = np.repeat(np.arange(4), 16)
        blocks = Pick(item, np.arange(4.0), np.zeros(4), (1, 1))
        self.assertIn("in part", blocks.wrong(np.arange(48, 63)))
        self.assertIn("must not be read", Pick(np.full(4, Pick.NEVER), np.zeros(0), np.zeros(0), (0, 0)).wrong([2]))


if __name__ == "__main__":
    host.main()
