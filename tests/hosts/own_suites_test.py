#!/usr/bin/env python3
"""llama.cpp's own test programs on the default model, with the plug-in loaded: saved and restored state, a fragmented
cache, several contexts on several threads. Their verdict counts, and the counters show that the plug-in computed the
attention.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import host


class OwnSuites(host.HostTest):
    def run_suite(self, name, *arguments, policy="dense"):
        # Their exit status is their verdict: the closing words go through a log that may lose its last lines.
        _, stats = self.run_host(name, "-m", host.default_model(), "-t", host.N_THREADS, "-fa", "on", *arguments,
                                    policy=policy)
        self.assert_attended(stats.last(), n_layers=30)
        return stats

    def test_save_load_state(self):
        stats = self.run_suite("test-save-load-state")
        self.assert_attended(stats.last(), dense_steps=30, multi_rows=30)
        self.assertEqual(stats.last()["sparse_steps"], 0)

    def test_state_restore_fragmented(self):
        self.run_suite("test-state-restore-fragmented")

    def test_thread_safety(self):
        # Two models of two contexts each, four threads of the program at once.
        stats = self.run_suite("test-thread-safety", "-p", "The meaning of life is", "-n", 16, "-c", 256, "-ub", 32, "-np", 2)
        self.assertEqual(len(stats.lines()), 4)
        # Two models x two contexts x 16 steps x 30 layers, and whatever ends early by an end-of-generation token.
        self.assert_attended(stats.last(), dense_steps=4 * 30)

    def test_thread_safety_sparse(self):
        stats = self.run_suite("test-thread-safety", "-p", host.gpl_text(600), "-n", 16, "-c", 256, "-ub", 32, "-np", 2,
                               policy="mean:blocks=1,window=16,anchor=1")
        self.assert_attended(stats.last(), sparse_steps=4 * 30)


if __name__ == "__main__":
    host.main()
