#!/usr/bin/env python3
"""The figures of a page as files (scripts/report_figures.py): made records of the lab, drawn by the pinned vl-convert."""

import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "report_figures.py"
CONDENSE = pathlib.Path(os.environ.get("CONDENSE_BUILD", ROOT / "build" / "release"), "bin", "condense")
POLICIES = {"dense": 1.0, "control": 1.0, "mean:blocks=2": 0.05, "quest:blocks=8,window=64": 0.2}


def cell(experiment, parameters, **line):
    words = " ".join(f"{name}={value}" for name, value in parameters.items())
    common = {"schema": 1, "experiment": experiment, "cell": words, "policy": parameters["policy"]}
    return [{**common, **line},
            {**common, "record": "cell", "state": "done", "group": "", "parameters": parameters}]


def made_records():
    """Runs under both teachers at two contexts, and needles at two depths."""
    yield {"schema": 1, "record": "run", "program": "condense lab", "model": "made.gguf"}
    for context in (1000, 4000):
        for policy, share in POLICIES.items():
            for offset in (0, 100):
                parameters = {"context": context, "offset": offset, "policy": policy}
                run = {"record": "policy", "tf_match": min(1, 0.7 + share + offset / 1000), "kl_mean": 0.01 / share,
                       "kv_read_share": share, "n_decisions": 127, "t_div": 9, "sparse_tokens_per_second": 30,
                       "dense_tokens_per_second": 90 - context / 50}
                lines = cell("runs", parameters, teacher="greedy", **run)
                yield from [{**lines[0], "teacher": "text"}, *lines]
            for depth in (0.0, 1.0):
                yield from cell("needle", {"context": context, "depth": depth, "policy": policy}, record="item", task="needle",
                                kv_read_share=share, first_token_match=depth == 0, full_match=True, score=1.0)


class Figures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def page(self):
        lab = self.folder / "lab"
        lab.mkdir()
        (lab / "records-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made_records()))
        self.assertTrue(CONDENSE.exists(), f"{CONDENSE} is missing: build the target condense")
        subprocess.run([CONDENSE, "report", lab, "-o", self.folder / "lab.html"], check=True, stdout=subprocess.DEVNULL)
        return self.folder / "lab.html"

    def draw(self, page, out, *more, expect=0):
        done = subprocess.run([sys.executable, SCRIPT, page, self.folder / out, *more], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, expect, done.stderr)
        self.assertEqual(expect == 0, done.stderr == "")
        return done.stderr if expect else {path.name: path.read_text() for path in (self.folder / out).iterdir()}

    def test_every_figure_of_a_page_is_a_file(self):
        page = self.page()
        files = self.draw(page, "out")
        figures = sorted(name[:-4] for name in files if name.endswith(".svg"))
        self.assertEqual([name for name in figures if name.startswith("lab-runs-")],
                         ["lab-runs-depth", "lab-runs-kl", "lab-runs-match", "lab-runs-survival"])
        self.assertEqual(len([name for name in figures if name.startswith("lab-needle-")]), 4)
        for name in figures:
            root = xml.etree.ElementTree.fromstring(files[name + ".svg"])
            self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
            self.assertNotIn("var(", files[name + ".svg"])
            self.assertNotIn("<image", files[name + ".svg"])
            rows = list(csv.reader(files[name + ".csv"].splitlines()))
            self.assertGreater(len(rows), 4, name)
        # What a chart shows of several, and whose its letters are.
        texts = "".join(xml.etree.ElementTree.fromstring(files["lab-runs-match.svg"]).itertext())
        for words in ("Same decision as dense, against bytes read", "Setting: 1,000 tokens; Fed: dense-greedy",
                      "A mean:blocks=2 · B quest:blocks=8,window=64"):
            self.assertIn(words, texts)
        self.assertIn(["1,000 tokens", "dense-greedy", "A mean:blocks=2", "5.00 %", "2", "80.0 %", "75.0 % to 85.0 %"],
                      list(csv.reader(files["lab-runs-match.csv"].splitlines())))
        # The panels of a map are one file.
        texts = "".join(xml.etree.ElementTree.fromstring(
            next(text for name, text in files.items() if re.match(r"lab-needle-needle-first-\d+\.svg", name))).itertext())
        for words in ("dense (2 of 4 found)", "B quest:blocks=8,window=64 (2 of 4 found)"):
            self.assertIn(words, texts)
        # The text beside them names files that are there, all of them.
        linked = set(re.findall(r"\]\(([^)]+)\)", files["figures.md"]))
        self.assertEqual(linked, set(files) - {"figures.md"})
        self.assertIn("## What was found", files["figures.md"])
        self.assertEqual(self.draw(page, "again"), files)

    def test_every_choice_can_be_drawn(self):
        files = self.draw(self.page(), "out", "--every")
        self.assertEqual({name for name in files if name.startswith("lab-runs-kl") and name.endswith(".svg")},
                         {f"lab-runs-kl-{tokens}-tokens-{fed}.svg" for tokens in ("1-000", "4-000")
                          for fed in ("dense-greedy", "the-file-s-text")})
        self.assertIn("Setting: 4,000 tokens; Fed: the file's text", files["lab-runs-kl-4-000-tokens-the-file-s-text.svg"])

    def test_only_a_page_of_a_report_has_figures(self):
        page = self.folder / "other.html"
        page.write_text("<!DOCTYPE html><title>x</title><main></main>")
        self.assertEqual(self.draw(page, "out", expect=1), f"{page}: no page of `condense report`\n")
        self.assertIn("No such file", self.draw(self.folder / "none.html", "out", expect=1))
        self.assertFalse((self.folder / "out").exists())


if __name__ == "__main__":
    unittest.main()
