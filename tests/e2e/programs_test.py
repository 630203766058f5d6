#!/usr/bin/env python3
"""Unmodified llama-bench and llama-completion with the plug-in loaded: sparse steps run, by the counters; dense answers
are llama.cpp's own; and what a user may get wrong is said in the log while the program runs on.
"""

import json
import pathlib
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import host

POLICY = "mean:blocks=4,window=32"
N_LAYER = 3  # of the tiny model
COUNTING = "Count: " + ", ".join(str(i) for i in range(1, 60)) + ","


class Bench(host.HostTest):
    def bench(self, policy, *more):
        done, stats = self.run_host("llama-bench", "-m", host.tiny_model(), "-p", 0, "-n", 16, "-d", 512, "-t", host.N_THREADS,
                                    "-fa", 1, "-r", 2, "--no-warmup", "-o", "json", *more, policy=policy)
        result = json.loads(done.stdout[done.stdout.index("["):])[0]
        self.assertGreater(result["avg_ts"], 0)
        self.assertEqual((result["n_gen"], result["n_depth"]), (16, 512))
        return stats.last()

    def test_sparse(self):
        stats = self.bench(POLICY)
        self.assertEqual(stats["policy"], POLICY)
        self.assert_attended(stats, n_layers=N_LAYER, multi_rows=512 * N_LAYER)
        self.assertEqual(stats["sparse_steps"], 2 * 16 * N_LAYER)
        self.assertEqual(stats["fallback_steps"], 0)
        # 97 rows and their summaries, of 512 to 528.
        self.assertLess(stats["kv_read_share"], 0.3)
        self.assertGreater(stats["kv_read_share"], 0.15)
        self.assertEqual(stats["declined"], 0)

    def test_by_default(self):
        """Without CONDENSE_POLICY, or with an empty one."""
        for policy in (None, ""):
            done, stats = self.run_host("llama-bench", "-m", host.tiny_model(), "-p", 0, "-n", 16, "-d", 3072, "-t",
                                        host.N_THREADS, "-fa", 1, "-r", 1, "--no-warmup", "-v", "-o", "json", policy=policy)
            stats = stats.last()
            self.assertEqual(stats["policy"], "condense:budget=8%")
            self.assertEqual((stats["sparse_steps"], stats["fallback_steps"]), (16 * N_LAYER, 0))
            self.assertLessEqual(stats["kv_read_share"], 0.08)
            self.assertGreater(stats["kv_read_share"], 0.06)
            self.assertEqual(done.stderr.count("CONDENSE_POLICY=dense"), 1, done.stderr[-2000:])

    def test_every_kv_type(self):
        for kv in ("f16", "bf16", "q8_0"):  # llama-bench knows no f32 cache
            with self.subTest(kv=kv):
                stats = self.bench(POLICY, "-ctk", kv, "-ctv", kv)
                self.assertEqual(stats["sparse_steps"], 2 * 16 * N_LAYER)
                self.assertLess(stats["kv_read_share"], 0.3)

    def test_kv_type_that_is_declined(self):
        stats = self.bench(POLICY, "-ctk", "q4_0", "-ctv", "q4_0")
        self.assertEqual(stats["nodes"], 0)
        self.assertGreater(stats["declined"], 0)

    def test_short_context_falls_back(self):
        done, stats = self.run_host("llama-bench", "-m", host.tiny_model(), "-p", 0, "-n", 16, "-d", 32, "-fa", 1, "-r", 1,
                                    "--no-warmup", "-o", "json", policy=POLICY)
        self.assertEqual(stats.last()["sparse_steps"], 0)
        self.assertEqual(stats.last()["fallback_steps"], 16 * N_LAYER)
        self.assertEqual(stats.last()["kv_read_share"], 1)


class Environment(host.HostTest):
    def test_lines_of_condense_env_make_a_program_sparse(self):
        """What `condense env` prints is all that an unmodified program needs."""
        command = host.need(host.BUILD / "bin" / "condense", "build the target condense")
        exports = subprocess.run([str(command), "env", "--policy", POLICY], capture_output=True, text=True, check=True,
                                 env=host.environment(with_plugin=False, CONDENSE_PLUGIN=str(host.plugin()))).stdout
        (self.folder / "prompt.txt").write_text(host.gpl_text(1500))
        stats = self.stats_file()
        words = [host.program("llama-completion"), "-m", host.tiny_model(), "-f", self.folder / "prompt.txt", "-n", 24,
                 "--temp", 0, "-c", 2048, "-t", host.N_THREADS, "-no-cnv", "--ignore-eos"]
        script = exports + f"export CONDENSE_STATS={stats.path}\n" + shlex.join(str(word) for word in words)
        subprocess.run(["sh", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=120,
                       env=host.environment(with_plugin=False))
        self.assertEqual(stats.last()["policy"], POLICY)
        self.assert_attended(stats.last(), sparse_steps=23 * N_LAYER)


class Log(host.HostTest):
    """llama-bench -v logs at once; llama-completion's log, written by a thread, may lose its last lines at the end."""

    def bench(self, flash, policy, stats="file"):
        done, counters = self.run_host("llama-bench", "-m", host.tiny_model(), "-p", 0, "-n", 8, "-d", 512, "-fa", flash,
                                       "-r", 1, "--no-warmup", "-v", policy=policy, stats=stats)
        return done.stdout + done.stderr, counters

    def test_closing_line(self):
        log, _ = self.bench("on", POLICY, stats="1")
        self.assertRegex(log, r"condense: policy mean:blocks=4,window=32: 24 sparse, 0 dense, 0 fallback")

    def test_idle_is_said_with_flash_attention_off(self):
        log, stats = self.bench("off", POLICY)
        self.assertEqual(log.count("no attention came: start the program with flash attention on (-fa on)"), 1)
        self.assertEqual(stats.last()["nodes"], 0)

    def test_idle_is_said_with_flash_attention_auto(self):
        log, stats = self.bench("auto", POLICY)
        self.assertEqual(log.count("no attention came: start the program with flash attention on (-fa on)"), 1)
        self.assertEqual(stats.last()["nodes"], 0)

    def test_idle_is_not_said_when_attention_came(self):
        log, stats = self.bench("on", "dense")
        self.assertNotIn("no attention came", log)
        self.assert_attended(stats.last(), dense_steps=8 * N_LAYER)


class Completion(host.HostTest):
    def complete(self, model, prompt, n, *more, **options):
        """(text, log, Stats) of a greedy completion."""
        path = self.folder / "prompt.txt"
        path.write_text(prompt)
        done, stats = self.run_host("llama-completion", "-m", model, "-f", path, "-n", n, "--temp", 0, "-c", 2048, "-t",
                                    host.N_THREADS, "--no-display-prompt", "-no-cnv", "--ignore-eos", *more, **options)
        return done.stdout, done.stderr, stats

    def assert_same_answer(self, one, other):
        """llama-completion prints through its log's thread, which may lose the last lines at the end."""
        shorter, longer = sorted((one.rstrip(), other.rstrip()), key=len)
        self.assertGreaterEqual(len(shorter), 0.7 * len(longer))
        self.assertEqual(longer[:len(shorter)], shorter)

    def test_sparse(self):
        text, _, stats = self.complete(host.tiny_model(), host.gpl_text(1500), 24, "-fa", "on", policy=POLICY)
        self.assertGreater(len(text.strip()), 0)
        self.assert_attended(stats.last(), sparse_steps=23 * N_LAYER)
        self.assertEqual(stats.last()["fallback_steps"], 0)

    def test_sparse_on_the_default_model(self):
        text, _, stats = self.complete(host.default_model(), COUNTING, 24, "-fa", "on", policy="mean:blocks=4,window=64")
        self.assert_attended(stats.last(), sparse_steps=23 * 30)
        self.assertTrue(text.strip().startswith("60, 61, 62,"), text)

    def test_without_a_policy_it_is_condense_at_8_percent(self):
        text, _, stats = self.complete(host.tiny_model(), host.gpl_text(9000), 8, "-fa", "on", "-c", 8192, policy=None)
        self.assertGreater(len(text.strip()), 0)
        self.assertEqual(stats.last()["policy"], "condense:budget=8%")
        self.assert_attended(stats.last(), sparse_steps=7 * N_LAYER)
        self.assertLessEqual(stats.last()["kv_read_share"], 0.08)
        short, _, stats = self.complete(host.tiny_model(), host.gpl_text(1500), 8, "-fa", "on", policy=None)
        self.assertEqual(stats.last()["sparse_steps"], 0, "below 1,024 rows everything is read")

    def test_dense_answers_as_llama_cpp_does(self):
        own, _, _ = self.complete(host.default_model(), COUNTING, 32, "-fa", "on", with_plugin=False)
        ours, _, stats = self.complete(host.default_model(), COUNTING, 32, "-fa", "on", policy="dense")
        self.assert_same_answer(own, ours)
        self.assert_attended(stats.last(), dense_steps=31 * 30)
        self.assertEqual(stats.last()["sparse_steps"], 0)
        self.assertEqual(stats.last()["kv_read_share"], 1)

    def test_a_sparse_policy_that_reads_all_answers_as_dense(self):
        dense, _, _ = self.complete(host.tiny_model(), host.gpl_text(1500), 32, "-fa", "on", policy="dense")
        full, _, stats = self.complete(host.tiny_model(), host.gpl_text(1500), 32, "-fa", "on", policy="mean:blocks=200")
        self.assert_same_answer(dense, full)
        self.assertEqual(stats.last()["sparse_steps"], 0)

    def test_by_default_short_prompts_are_dense(self):
        dense, _, _ = self.complete(host.tiny_model(), host.gpl_text(1500), 32, "-fa", "on", policy="dense")
        text, log, stats = self.complete(host.tiny_model(), host.gpl_text(1500), 32, "-fa", "on", policy=None)
        self.assert_same_answer(dense, text)
        self.assertNotIn("CONDENSE_POLICY", log)
        self.assertEqual(stats.last()["policy"], "condense:budget=8%")
        self.assertEqual(stats.last()["sparse_steps"], 0)
        self.assert_attended(stats.last(), fallback_steps=31 * N_LAYER)

    def test_bad_policy_is_said_and_stays_dense(self):
        for spec, reason in (("quset", "did you mean 'quest'"), ("mean:blocs=3", "blocks"), ("mean:blocks=-1", "blocks")):
            with self.subTest(spec=spec):
                text, log, stats = self.complete(host.tiny_model(), host.gpl_text(1500), 8, "-fa", "on", policy=spec)
                self.assertIn("CONDENSE_POLICY", log)
                self.assertIn(reason, log)
                self.assertIn("stays dense", log)
                self.assertGreater(len(text.strip()), 0)
                self.assertEqual(stats.last()["policy"], "dense")
                self.assertEqual(stats.last()["sparse_steps"], 0)
                self.assert_attended(stats.last(), dense_steps=7 * N_LAYER)


if __name__ == "__main__":
    host.main()
