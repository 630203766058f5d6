#!/usr/bin/env python3
"""Folders of `condense lab`: gone on with after kills and stops, locked, refused with reasons, left whole by a full disk."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
import unittest

from lab_case import LabTest, N_CELLS, SPEC, host


LONG = SPEC.replace("tokens = 17", "tokens = 65").replace("[0, 300]", "[0, 100, 200, 300]")
N_LONG = 2 * N_CELLS


class GoOn(LabTest):
    def wait_for_cells(self, process, n, out="out"):
        """Until n cells are on disk, or the process has ended."""
        path = self.folder / out / "records-0.jsonl"
        for _ in range(12000):
            if process.poll() is not None or (path.exists() and path.read_bytes().count(b'"record":"cell"') >= n):
                return
            time.sleep(0.01)

    def test_killed_runs_go_on_and_end_as_one_run_does(self):
        self.run_lab(out="whole")
        wanted = self.cells("whole")
        for n in (1, 5, 9, 12):
            process = self.start(self.run_words())
            self.wait_for_cells(process, n)
            process.kill()
            process.communicate()
        done = self.run_lab()
        self.assertIn(f"{N_CELLS} cells, ", done.stdout)
        self.assertEqual(self.cells(), wanted)
        before = (self.folder / "out/records-0.jsonl").read_bytes()
        done = self.run_lab()
        self.assertIn(f"{N_CELLS} cells, {N_CELLS} of them done before", done.stdout)
        self.assertIn("TF match", done.stdout, "the table all the same")
        self.assertEqual((self.folder / "out/records-0.jsonl").read_bytes(), before, "nothing to do, nothing written")

    def test_a_file_cut_at_any_byte_goes_on(self):
        self.run_lab()
        wanted = self.cells()
        path = self.folder / "out/records-0.jsonl"
        whole = path.read_bytes()
        lines = whole.splitlines(keepends=True)
        ends = [i for i, line in enumerate(lines) if b'"record":"cell"' in line]
        # In the middle of a cell's first line, between two lines, before the last byte; within the very first line.
        for cut in (sum(map(len, lines[:ends[2] + 1])) + 40, sum(map(len, lines[:ends[5] + 3])), len(whole) - 1, 25):
            path.write_bytes(whole[:cut])
            self.run_lab()
            self.assertEqual(self.cells(), wanted, f"cut at byte {cut}")

    def test_ctrl_c_keeps_what_is_done(self):
        process = self.start(self.run_words(self.write_spec("long.toml", LONG)))
        self.wait_for_cells(process, 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("stopped; what is done is kept: the same command goes on from there", err)
        n_done = len(self.cells())
        self.assertGreaterEqual(n_done, 2)
        self.assertLess(n_done, N_LONG)
        self.assertIn(f"{n_done} of {N_LONG} cells done", out)
        status = self.call(self.command("status", self.folder / "out")).stdout
        self.assertIn(f"survival: {n_done} of {N_LONG} cells done", status)
        self.run_lab(self.folder / "long.toml")
        self.assertEqual(len(self.cells()), N_LONG)

    def test_another_spec_makes_other_cells_in_the_same_folder(self):
        small = self.write_spec("one.toml", SPEC.replace("[0, 300]", "[0]").replace("[300, 400]", "[300]"))
        self.run_lab(small)
        done = self.run_lab()
        self.assertIn(f"{N_CELLS} cells, 4 of them done before", done.stdout)
        self.assertEqual(len(self.cells()), N_CELLS)
        self.assertEqual((self.folder / "out/survival.toml").read_text(), small.read_text())
        self.assertEqual((self.folder / "out/survival-2.toml").read_text(), SPEC)

    def test_a_cell_that_fails_says_why_and_stops_no_other(self):
        small = self.write_spec("one.toml", SPEC.replace("[300, 400]", "[300]"))
        self.run_lab(self.write_spec("dense.toml", SPEC.replace("[300, 400]", "[300]").replace(
            'policies = ["mean:blocks=4,window=32", "quest:blocks=4,window=32"]', 'policies = ["sink:window=100"]')))
        path = self.folder / "out/records-0.jsonl"
        good = path.read_text()
        lines = good.splitlines(keepends=True)
        prompt = next(i for i, line in enumerate(lines) if '"record":"prompt"' in line and '"offset":0' in line)
        # As if dense attention had decided otherwise in the earlier run: cells must not be compared with it.
        lines[prompt] = lines[prompt].replace('"dense_tokens":[', '"dense_tokens":[7,')
        path.write_text("".join(lines))
        done = self.run_lab(small, expect=1)
        self.assertIn("2 cells failed", done.stderr)
        self.assertIn("dense attention gives other tokens", done.stderr)
        failed = [line for line in self.lines() if line["record"] == "cell" and line["state"] == "failed"]
        self.assertEqual({line["parameters"]["offset"] for line in failed}, {0})
        self.assertIn("6 of 8 cells done, 2 failed", done.stdout)
        status = self.call(self.command("status", self.folder / "out")).stdout
        self.assertIn("2 failed", status)
        self.assertIn("dense attention gives other tokens", status)
        path.write_text(path.read_text().replace('"dense_tokens":[7,', '"dense_tokens":['))
        done = self.run_lab(small)
        self.assertIn("8 of 8 cells done", done.stdout)

    def test_two_runs_at_once(self):
        process = self.start(self.run_words(self.write_spec("long.toml", LONG)))
        self.wait_for_cells(process, 1)
        self.assertIsNone(process.poll(), "still at work")
        done = self.run_lab(expect=2)
        self.assertIn(f"another run is at work in the folder '{self.folder}/out' (process {process.pid} since ", done.stderr)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.run_lab(self.folder / "long.toml")
        self.assertEqual(len(self.cells()), N_LONG)

    def test_progress_is_lines_in_a_pipe(self):
        done = self.run_lab()
        self.assertNotIn("\r", done.stderr)
        self.assertIn("where ", done.stdout)
        self.assertIn(" prefill ", done.stdout)


class Refused(LabTest):
    def refused(self, why, *arguments, expect=2, **more):
        done = self.run_lab(*arguments, expect=expect, **more)
        self.assertIn(why, done.stderr)
        self.assertTrue(done.stderr.startswith("condense: "), done.stderr)
        self.assertEqual(done.stdout, "")
        return done

    def test_bad_specs(self):
        def spec(old, new):
            self.assertIn(old, SPEC)
            return self.write_spec("bad.toml", SPEC.replace(old, new))

        where = f"spec '{self.folder}/bad.toml'"
        self.refused(f"{where}, line 5: key 'token' is unknown; did you mean 'tokens'?", spec("tokens =", "token ="))
        self.refused(f"{where}, line 5: tokens must be a whole number from 2", spec("= 17", "= 1"))
        self.refused(f"{where}, line 4: ", spec("[0, 300]", "[0, 300"))
        self.refused("line 1: experiment 'survivl' is unknown; did you mean 'survival'?", spec('"survival"', '"survivl"'))
        self.refused("has no key experiment", spec('experiment = "survival"', ""))
        self.refused("did you mean 'quest'?", spec("quest:", "quset:"))
        self.refused("experiment 'survivel' is unknown; did you mean 'survival'?", "survivel")
        self.refused("spec 'none.toml': cannot be read: No such file", "none.toml")
        self.refused("is a folder", f"{self.folder}/")
        self.assertFalse((self.folder / "out/records-0.jsonl").exists())

    def test_texts(self):
        self.refused("text 'none.txt' is not there (looked for",
                     self.write_spec("bad.toml", SPEC.replace("words.txt", "none.txt")))
        self.refused("offset 9000, context 300 and tokens 17 make 9317: give a longer text",
                     self.write_spec("bad.toml", SPEC.replace("[0, 300]", "[0, 9000]")))
        self.refused("context 4090 and tokens 17 make 4108 positions, but tiny.gguf@",
                     self.write_spec("bad.toml", SPEC.replace("400]", "4090]")))
        self.refused("/words.txt' has ", self.write_spec("bad.toml", SPEC.replace("[0, 300]", "[0, 30000]")))
        (self.folder / "empty.txt").write_text("")
        self.refused("is empty", self.write_spec("bad.toml", SPEC.replace("words.txt", "empty.txt")))

    def test_texts_are_found_in_their_folder(self):
        (self.folder / "there").mkdir()
        (self.folder / "words.txt").rename(self.folder / "there/words.txt")
        self.refused("name its folder with --texts DIR", self.spec)
        small = self.write_spec("one.toml", SPEC.replace("[0, 300]", "[0]").replace("[300, 400]", "[300]"))
        self.call([*self.run_words(small), "--texts", str(self.folder / "there")])

    def test_models(self):
        self.refused("none.gguf': No such file", self.spec, model=self.folder / "none.gguf")
        (self.folder / "text.gguf").write_text("no model at all")
        self.refused("not a GGUF model", self.spec, model=self.folder / "text.gguf")
        (self.folder / "words.txt").write_text((self.folder / "words.txt").read_text() * 20)
        self.refused("context 8190 and tokens 17 make 8207 positions, but SmolLM2",
                     self.write_spec("bad.toml", SPEC.replace("400]", "8190]")), model=host.default_model())

    def test_folders(self):
        (self.folder / "file").write_text("")
        self.refused("cannot make the folder", out="file/out")
        if os.geteuid() == 0:
            # No folder is read-only for root but those of the kernel.
            self.refused("cannot write into the folder '/proc/self'", out="/proc/self")
        else:
            (self.folder / "out").mkdir(mode=0o555)
            self.refused("cannot write into the folder")

    def test_other_programs_records(self):
        small = self.write_spec("one.toml", SPEC.replace("[0, 300]", "[0]").replace("[300, 400]", "[300]"))
        self.run_lab(small)
        self.refused("threads was 2, is 1 now; name another folder with --out", small, threads=1)
        path = self.folder / "out/records-0.jsonl"
        good = path.read_text()
        path.write_text(good.replace('"schema":1', '"schema":2', 1))
        self.refused("line 1 is of schema 2, and this program reads schema 1", small)
        lines = good.splitlines(keepends=True)
        path.write_text("".join([lines[0], lines[1].replace('"record":', '"record:', 1), *lines[2:]]))
        self.refused("line 2 is no record of Condense", small)
        self.assertIn("line 2 is no record", self.call(self.command("status", self.folder / "out"), expect=2).stderr)

    def test_mpirun_without_mpi(self):
        (self.folder / "bin").mkdir()
        program = shutil.copy(host.BUILD / "bin" / "condense", self.folder / "bin")  # no ../lib/condense-mpi.so beside it
        done = subprocess.run([program, *self.run_words()[1:]], env={**self.environment(), "OMPI_COMM_WORLD_SIZE": "2"},
                              cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("this is one of 2 processes that mpirun started, and Condense was built without MPI", done.stderr)
        self.assertFalse((self.folder / "out").exists())

    def test_words_without_a_folder(self):
        self.assertIn("give what to do: list, run, status, export", self.call(self.command(), expect=2).stderr)
        self.assertIn("holds no records of the lab", self.call(self.command("status", self.folder), expect=2).stderr)

    def test_list(self):
        self.assertIn("survival: ", self.call(self.command("list")).stdout)
        printed = self.call(self.command("list", "--spec", "survival")).stdout
        self.assertIn("# Tokens of a prefix.", printed)
        self.assertIn("did you mean 'survival'?", self.call(self.command("list", "--spec", "survial"), expect=2).stderr)


class FullDisk(LabTest):
    def ends_and_goes_on(self, out):
        """After the disk was full: whole cells are kept, and with room the run ends."""
        n_done = len({line.get("cell") for line in self.whole_lines(out) if line["record"] == "cell"})
        self.assertLess(n_done, N_CELLS)
        self.assertGreater(n_done, 0)
        return n_done

    def whole_lines(self, out):
        text = (self.folder / out / "records-0.jsonl").read_text()
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]

    def test_a_file_that_may_not_grow(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))

        done = self.call(self.run_words(), expect=1, preexec_fn=limit)
        self.assertIn("cannot write records to", done.stderr)
        self.assertIn("File too large; what is done is kept: the same command goes on from there", done.stderr)
        n_done = self.ends_and_goes_on("out")
        done = self.run_lab()
        self.assertIn(f"{N_CELLS} cells, {n_done} of them done before", done.stdout)
        self.assertEqual(len(self.cells()), N_CELLS)

    def test_a_full_file_system(self):
        (self.folder / "out").mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "none", str(self.folder / "out")]
        if subprocess.run(["unshare", "-rm", *mount], capture_output=True, check=False).returncode != 0:
            raise unittest.SkipTest("this system lets nobody mount a small file system here")
        # In a mount namespace of its own; what was written is copied out before it ends.
        script = '"$@"; code=$?; mkdir kept; cp out/records-0.jsonl out/survival.toml kept/; exit $code'
        words = ["unshare", "-rm", "sh", "-c", " ".join(mount) + "; " + script, "sh", *self.run_words()]
        done = self.call(words, expect=1)
        self.assertIn("No space left on device; what is done is kept", done.stderr)
        n_done = self.ends_and_goes_on("kept")
        done = self.run_lab(out="kept")
        self.assertIn(f"{N_CELLS} cells, {n_done} of them done before", done.stdout)
        self.assertEqual(len(self.cells("kept")), N_CELLS)


if __name__ == "__main__":
    host.main()
