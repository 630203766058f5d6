#!/usr/bin/env python3
"""What scripts/fidelity_run.py runs: the sets of policies on their prefixes, only what has no records, only what the plug-in
has; and what it says before, and where texts are missing or are others. `condense` is a shell script here."""

import collections
import json
import os
import pathlib
import tempfile
import unittest
import unittest.mock

from made_records import QWEN, SMOL, RecordsCase, policy_lines, run_line  # finds scripts/ too
import fidelity_records
import fidelity_run

PREFIXES, HELD_OUT, EVERY = fidelity_records.PREFIXES, fidelity_records.HELD_OUT, fidelity_records.EVERY_PREFIX
# Answers `env` like a plug-in without topk, and each comparison with the prepared run and a policy's lines for each asked.
CONDENSE = r"""#!/bin/sh
if [ "$1" = env ]; then
  case $3 in topk*) echo "condense: policy 'topk' is unknown" >&2; exit 2;; esac
  echo "export CONDENSE_POLICY='$3'"; exit 0
fi
echo "$@" >>"$here/argv"
while [ "$1" != --records ]; do shift; done
records=$2; shift 2
cat "$here/run" >"$records"
while [ $# -gt 0 ]; do
  [ "$2" = "$fails_at" ] && exit 1
  sed "s/POLICY/$2/" "$here/policy" >>"$records"; shift 2
done
"""


class Sets(unittest.TestCase):
    def counts(self, **asked):
        found = collections.Counter()
        for _, prefix, policies in fidelity_run.Request(**asked).wanted():
            found[prefix.name] += len(policies)
        return found

    def test_figures_need_three_prefixes(self):
        self.assertEqual(self.counts(), {prefix.name: 2 * 6 for prefix in PREFIXES})

    def test_beside_runs_all_policies_on_all_prefixes(self):
        asked = list(fidelity_run.Request(beside=True).wanted())
        self.assertEqual([(subject, prefix) for subject, prefix, _ in asked],
                         [(subject, prefix) for subject in (SMOL, QWEN) for prefix in EVERY])
        expected = {f"{name}:budget={p}%" for name in ("condense", "oracle", "topk", "mean", "quest") for p in (3, 5, 8, 12)}
        expected -= {"mean:budget=3%", "quest:budget=3%", "quest:budget=5%"}  # summaries alone take more
        expected -= {"condense:budget=3%"}  # rows read always and all codes too
        expected |= {"condense:budget=5%,rotation=on", "condense:budget=8%,rotation=on", "condense:budget=3%,scan=50%"}
        for _, _, policies in asked:
            self.assertEqual(sorted(policies), sorted(expected))

    def test_ablations_change_one_key_on_the_figures_prefixes(self):
        asked = list(fidelity_run.Request(ablations=True).wanted())
        self.assertEqual([prefix for _, prefix, _ in asked], list(PREFIXES) * 2)
        for _, _, policies in asked:
            for percent in (5, 8):
                plain = f"condense:budget={percent}%"
                self.assertEqual({policy for policy in policies if policy.startswith(plain)},
                                 {plain, f"{plain},split=1", f"{plain},bits=64", f"{plain},rotation=on", f"{plain},scan=50%",
                                  f"{plain},copies=q8_0", f"{plain},anchor=0", f"{plain},window=128"})

    def test_parts(self):
        self.assertEqual(self.counts(subjects=("qwen",), prefixes=("moby-dick",)), {"moby-dick": 6})
        self.assertEqual(self.counts(subjects=("qwen",), prefixes=("held-out-wikitext",)), {})
        self.assertEqual(set(self.counts(beside=True, prefixes=("held-out-wikitext", "moby-dick"))),
                         {"held-out-wikitext", "moby-dick"})

    def test_held_out_places_overlap_no_other(self):
        for prefix in HELD_OUT:
            for other in EVERY:
                if other != prefix and other.file == prefix.file:
                    self.assertGreater(abs(prefix.offset - other.offset), 8192 + 128)


class Runs(RecordsCase):
    def setUp(self):
        super().setUp()
        self.records = self.folder / "records"
        self.build = self.folder / "build"
        program = self.build / "bin/condense"
        program.parent.mkdir(parents=True)
        program.write_text(CONDENSE)
        program.chmod(0o755)
        self.prepare(SMOL, PREFIXES[1])
        patches = [unittest.mock.patch.object(fidelity_run, "find_model", side_effect=self.find_model),
                   unittest.mock.patch.object(fidelity_run, "check_texts", side_effect=self.check_texts),
                   unittest.mock.patch.dict(os.environ, here=str(self.folder), fails_at="")]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)
        self.unavailable = None
        self.said = []

    def prepare(self, subject, prefix):
        (self.folder / "run").write_text(json.dumps(run_line(subject, prefix)) + "\n")
        (self.folder / "policy").write_text("".join(json.dumps(line) + "\n" for line in policy_lines("POLICY", 1)))

    def find_model(self, subject):
        if subject == self.unavailable:
            raise fidelity_records.NotMeasured("no network")
        return "MODEL"

    def check_texts(self, folder, prefixes):
        return {prefix: "TEXT" for prefix in prefixes}

    def run_missing(self, **asked):
        request = fidelity_run.Request(**({"subjects": ("smollm2",), "prefixes": ("moby-dick",)} | asked))
        return list(fidelity_run.run_missing(request, self.build, None, 2, self.records, self.said.append))

    def lines_of(self, name):
        return (self.folder / name).read_text().splitlines()

    def test_one_run_carries_what_is_missing(self):
        self.write(run_line(SMOL, PREFIXES[1]), *policy_lines("oracle:budget=5%", 1), name="records/before.jsonl")
        self.assertEqual(self.run_missing(), [SMOL])
        self.assertEqual(self.run_missing(), [SMOL])  # all there now
        [command] = self.lines_of("argv")
        self.assertIn("compare -m MODEL -f TEXT --offset 60000 --prompt-tokens 7904 -n 128 -t 2 --speed-pairs 0", command)
        self.assertTrue(command.endswith("smollm2-moby-dick-0.jsonl --policy condense:budget=5% --policy condense:budget=8% "
                                         "--policy oracle:budget=8% --policy condense:budget=12% --policy oracle:budget=12%"))

    def test_what_is_to_come_is_said(self):
        self.write(run_line(SMOL, PREFIXES[1]), *policy_lines("oracle:budget=5%", 1), name="records/before.jsonl")
        self.run_missing()
        self.assertEqual(self.said[0], "fidelity: 5 cells (model, prefix, policy) to run, 1 have records; 1 prefills; about "
                         "3 min on 2 cores")
        self.assertTrue(self.said[1].startswith("  smollm2, moby-dick, about 3 min of 3 min left: condense:budget=5%, "))
        self.said.clear()
        self.run_missing()
        self.assertEqual(self.said, ["fidelity: 0 cells (model, prefix, policy) to run, 6 have records"])

    def test_duration(self):
        runs = [fidelity_run.Run(QWEN, PREFIXES[0], ("policy",) * n) for n in (30, 59)]
        self.assertEqual(fidelity_run.duration(runs[:1]), "21 min")  # 70 s + 30 * 40 s
        self.assertEqual(fidelity_run.duration(runs), "1 h 02 min")

    def test_finished_policies_need_no_build(self):
        self.write_all()
        request = fidelity_run.Request()
        done = fidelity_run.run_missing(request, self.folder / "no build", None, 2, self.folder, self.said.append)
        self.assertEqual(list(done), [SMOL, QWEN])
        self.assertEqual(self.said, ["fidelity: 0 cells (model, prefix, policy) to run, 36 have records"])

    def test_a_policy_unknown_to_the_plug_in_is_said_and_the_others_run(self):
        self.run_missing(beside=True)
        self.assertEqual(self.said[0], "fidelity: left out, since this build's plug-in does not take them: topk:budget=8%, "
                         "topk:budget=5%, topk:budget=12%, topk:budget=3%: policy 'topk' is unknown")
        self.assertTrue(self.said[1].startswith("fidelity: 15 cells "))
        [command] = self.lines_of("argv")
        self.assertNotIn("topk", command)
        self.assertIn("--policy condense:budget=8%,rotation=on", command)

    def test_an_interrupted_run_is_taken_up_where_it_stopped(self):
        with unittest.mock.patch.dict(os.environ, fails_at="condense:budget=8%"):
            with self.assertRaisesRegex(SystemExit, "failed on smollm2, moby-dick; finished policies are kept in .*-0.jsonl"):
                self.run_missing()
        self.run_missing()
        self.assertIn("smollm2-moby-dick-1.jsonl --policy condense:budget=8% ", self.lines_of("argv")[1])
        self.assertEqual(len(self.cells()["smollm2", "moby-dick"]), 6)

    def test_no_file_is_written_over(self):
        self.records.mkdir()
        for name in ("qwen-wikitext-0", "qwen-wikitext-11", "qwen-wikitext-2", "qwen-wikitext-made", "smollm2-wikitext-40"):
            (self.records / f"{name}.jsonl").touch()
        self.assertEqual(fidelity_run.next_file(self.records, "qwen-wikitext").name, "qwen-wikitext-12.jsonl")

    def test_a_model_that_cannot_be_had_does_not_lose_the_other(self):
        self.unavailable = SMOL
        self.prepare(QWEN, PREFIXES[1])
        self.assertEqual(self.run_missing(subjects=()), [QWEN])
        self.assertIn("fidelity: smollm2: not measured: no network", self.said)
        self.assertEqual(len(self.cells()["qwen", "moby-dick"]), 6)

    def test_held_out_prefixes_ask_for_beside(self):
        with self.assertRaisesRegex(fidelity_records.NotMeasured, "nothing runs on held-out-wikitext without --beside"):
            self.run_missing(prefixes=("held-out-wikitext",), ablations=True)


class Texts(unittest.TestCase):
    def test_none_given(self):
        with self.assertRaisesRegex(fidelity_records.NotMeasured,
                                    r"--texts DIR with wikitext-2-raw-test.txt, moby-dick.txt, war-and-peace.txt \("):
            fidelity_run.check_texts(None, EVERY)

    def test_missing_and_another(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            with self.assertRaisesRegex(fidelity_records.NotMeasured, "there is no .*wikitext-2-raw-test.txt"):
                fidelity_run.check_texts(folder)
            (folder / "wikitext-2-raw-test.txt").write_text("another\n")
            with self.assertRaisesRegex(fidelity_records.NotMeasured, "another text .*sha256 [0-9a-f]{64}, not 4f3e427e"):
                fidelity_run.check_texts(folder)

    def test_a_part_needs_its_texts_alone(self):
        with tempfile.TemporaryDirectory() as name:
            with self.assertRaisesRegex(fidelity_records.NotMeasured, "wanted: moby-dick.txt "):
                fidelity_run.check_texts(pathlib.Path(name), PREFIXES[1:2])


if __name__ == "__main__":
    unittest.main()
