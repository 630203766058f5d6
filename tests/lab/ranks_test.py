#!/usr/bin/env python3
"""`condense lab run` under mpirun, two ranks on this machine: the records of one process, a lost rank, a stop, folders that are
not shared, ranks that would do other work."""

import os
import pathlib
import signal
import time

from lab_case import LabTest, SPEC, host

SMALL = SPEC.replace("[0, 300]", "[0, 200, 400]").replace("[300, 400]", "[300]")
N_SMALL = 12  # 3 groups of 4
LONG = SPEC.replace("tokens = 17", "tokens = 65").replace("[0, 300]", "[0, 100, 200, 300]")
N_LONG = 32  # 8 groups of 4


class Ranks(LabTest):
    def mpirun(self, *words, options=(), n=2):
        """mpirun of `words`, or of several commands (lists), a rank each."""
        start = [os.environ.get("CONDENSE_MPIEXEC", "mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", *options]
        if isinstance(words[0], list):
            one_each = []
            for command in words:
                one_each += [*([":"] if one_each else []), "-n", "1", *command]
            return start + one_each
        return [*start, "-n", str(n), *words]

    def run_ranks(self, spec, *words, expect=0, options=(), **more):
        return self.call(self.mpirun(*self.run_words(spec, threads=1, **more), *words, options=options), expect)

    def n_cells(self, rank, out="out"):
        path = self.folder / out / f"records-{rank}.jsonl"
        return path.read_bytes().count(b'"record":"cell"') if path.exists() else 0

    def wait_for_cells(self, process, rank, n, out="out"):
        while process.poll() is None and self.n_cells(rank, out) < n:
            time.sleep(0.005)
        self.assertIsNone(process.poll(), "still at work")

    def process_of(self, mpirun, rank):
        """The process that this mpirun started as that rank."""
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                words = path.read_bytes().split(b"\0")
                parent = (path.parent / "stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError:
                continue
            if f"OMPI_COMM_WORLD_RANK={rank}".encode() in words and int(parent) == mpirun.pid:
                return int(path.parent.name)
        return self.fail(f"no process of rank {rank}")

    def one_process(self, spec):
        """What a run without mpirun writes."""
        self.run_lab(spec, out="one", threads=1)
        return self.cells("one")

    def states(self, out="out"):
        """{cell: state}, as the folder's readers count it: done before failed."""
        states = {}
        for line in self.lines(out):
            if line["record"] == "cell" and states.get(line["cell"]) != "done":
                states[line["cell"]] = line["state"]
        return states

    def test_records_are_those_of_one_process(self):
        spec = self.write_spec("small.toml", SMALL)
        wanted = self.one_process(spec)
        self.assertEqual(len(wanted), N_SMALL)
        done = self.run_ranks(spec)
        self.assertEqual(self.cells(), wanted)
        self.assertGreater(self.n_cells(0), 0)
        self.assertGreater(self.n_cells(1), 0, "rank 1 had its share")
        for rank in (0, 1):
            run = next(line for line in self.lines() if line["record"] == "run" and line["rank"] == rank)
            self.assertEqual((run["rank"], run["ranks"]), (rank, 2))
        self.assertEqual(sum(line["record"] == "plan" for line in self.lines()), 1)
        self.assertEqual(done.stdout.count(f"{N_SMALL} of {N_SMALL} cells done"), 1, "rank 0 alone speaks")
        self.assertRegex(done.stdout, r"2 ranks: 2 on \S+; 1 thread each")
        self.assertEqual(done.stdout.count("TF match"), self.call(
            self.command("status", self.folder / "out")).stdout.count("TF match"), "one table")

        # More cells, by one process and by two: each goes on with the files of both.
        more = self.write_spec("more.toml", SMALL.replace("[0, 200, 400]", "[0, 200, 400, 300]"))
        done = self.run_lab(more, threads=1)
        self.assertIn(f"16 cells, {N_SMALL} of them done before", done.stdout)
        done = self.run_ranks(more)
        self.assertIn("16 cells, 16 of them done before", done.stdout)
        self.assertEqual(len(self.cells()), 16)

    def test_a_killed_rank_loses_its_cell_alone(self):
        spec = self.write_spec("long.toml", LONG)
        words = self.mpirun(*self.run_words(spec, "--lost-after", 4, threads=1), options=("--enable-recovery",))
        process = self.start(words)
        self.wait_for_cells(process, 1, 2)
        os.kill(self.process_of(process, 1), signal.SIGKILL)
        out, err = process.communicate(timeout=120)
        states = self.states()
        failed = [line for line in self.lines() if line["record"] == "cell" and line["state"] == "failed"]
        self.assertLessEqual(len(failed), 1, err)
        self.assertEqual(len(states), N_LONG, "every other cell was run by rank 0")
        self.assertRegex(err, r"rank 1 on \S+ was lost: nothing heard of it for 4 s")
        self.assertIn(f"{N_LONG - len(failed)} of {N_LONG} cells done", out)
        self.assertEqual(process.returncode, 1 if failed else 0, err)
        for line in failed:
            self.assertRegex(line["reason"], r"rank 1 on \S+ was lost")
        self.run_lab(spec, threads=1)
        self.assertEqual(set(self.states().values()), {"done"})

    def test_a_killed_rank_without_recovery_ends_the_run(self):
        spec = self.write_spec("long.toml", LONG)
        process = self.start(self.mpirun(*self.run_words(spec, threads=1)))
        self.wait_for_cells(process, 1, 1)
        os.kill(self.process_of(process, 1), signal.SIGKILL)
        process.communicate(timeout=120)
        self.assertNotEqual(process.returncode, 0)
        n_done = len(self.states())
        self.assertGreater(n_done, 0)
        done = self.run_lab(spec, threads=1)
        self.assertIn(f"{N_LONG} cells, {n_done} of them done before", done.stdout)
        self.assertEqual(set(self.states().values()), {"done"})

    def test_a_stop_of_one_rank_stops_all(self):
        spec = self.write_spec("long.toml", LONG)
        for rank in (0, 1):
            process = self.start(self.mpirun(*self.run_words(spec, threads=1)))
            self.wait_for_cells(process, rank, self.n_cells(rank) + 1)
            os.kill(self.process_of(process, rank), signal.SIGTERM)
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 1, err)
            n_done = self.n_cells(0) + self.n_cells(1)
            self.assertLess(n_done, N_LONG)
            self.assertEqual(len(self.cells()), n_done, "whole cells")
            self.assertIn("stopped; what is done is kept: the same command goes on from there", err)
            self.assertIn(f"{n_done} of {N_LONG} cells done", out)

    def test_folders_that_are_not_shared(self):
        spec = self.write_spec("small.toml", SMALL)
        wanted = self.one_process(spec)
        done = self.call(self.mpirun(self.run_words(spec, threads=1, out="here"), self.run_words(spec, threads=1, out="there")))
        self.assertGreater(self.n_cells(1, "there"), 0)
        self.assertEqual(self.n_cells(0, "there") + self.n_cells(1, "here"), 0)
        self.assertRegex(done.stdout, rf"scp \S+:{self.folder}/there/records-1\.jsonl \S+/here/records-\S+-1\.jsonl")
        self.assertIn(f"{N_SMALL} of {N_SMALL} cells done", done.stdout)
        again = self.call(self.mpirun(self.run_words(spec, threads=1, out="here"), self.run_words(spec, threads=1, out="there")))
        self.assertIn(f"{N_SMALL} cells, {N_SMALL} of them done before", again.stdout)
        (self.folder / "here/records-other-1.jsonl").write_bytes((self.folder / "there/records-1.jsonl").read_bytes())
        self.assertEqual(self.cells("here"), wanted)
        done = self.run_lab(spec, out="here", threads=1)
        self.assertIn(f"{N_SMALL} cells, {N_SMALL} of them done before", done.stdout)

    def test_ranks_that_would_do_other_work(self):
        spec = self.write_spec("small.toml", SMALL)
        done = self.call(self.mpirun(self.run_words(spec, threads=1), self.run_words(spec, threads=2)), expect=2)
        self.assertRegex(done.stderr, r"condense: rank 1 on \S+ would do other work than rank 0: threads is 2 there, 1 here")
        other = self.write_spec("other.toml", SMALL.replace("tokens = 17", "tokens = 18"))
        done = self.call(self.mpirun(self.run_words(spec, threads=1), self.run_words(other, threads=1)), expect=2)
        self.assertIn("cell 1 of the plan is 'tokens=18' there, 'tokens=17' here", done.stderr)
        done = self.call(self.mpirun(self.run_words(spec, threads=1), self.run_words("none.toml", threads=1)), expect=2)
        self.assertRegex(done.stderr, r"condense: rank 1 on \S+: spec 'none.toml': cannot be read: No such file")
        self.assertFalse((self.folder / "out/records-0.jsonl").exists(), "nothing was written")


if __name__ == "__main__":
    host.main()
