#!/usr/bin/env python3
"""An unmodified llama-server with the plug-in loaded: chat over HTTP, two slots with separate and with unified KV, a
slot's prompt taken up again, context shift, slots saved and restored. Counters show that sparse steps ran; answers under
disturbance are those of a fresh server.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import host
from server import Server

POLICY = "mean:blocks=4,window=32"
N_LAYER = 3  # of the tiny model
N = 24       # tokens of an answer; the first comes from the prompt's batch, the others from sparse steps


class Chat(host.HostTest):
    def test_default_model_answers(self):
        """A question behind a long text, so that rows are left out."""
        server = Server(self, host.default_model(), "-c", 2048, "-np", 1, policy="mean:blocks=8,window=64")
        answer = server.chat(host.gpl_text(1600) + "\n\nWhat is the name of the license in the text above?", 32)
        stats = server.stop()
        text = answer["choices"][0]["message"]["content"]
        print(f"answer: {text!r}")
        self.assertGreater(answer["usage"]["prompt_tokens"], 300)
        self.assertRegex(text, r"GNU|General Public License|GPL")
        self.assert_attended(stats, sparse_steps=(answer["usage"]["completion_tokens"] - 1) * 30, n_layers=30)
        self.assertEqual(stats["fallback_steps"], 0)
        self.assertLess(stats["kv_read_share"], 0.75)

    def test_dense_answers_as_llama_cpp_does(self):
        prompt = "Count: " + ", ".join(str(i) for i in range(1, 60)) + ","
        answers = []
        for with_plugin in (False, True):
            server = Server(self, host.default_model(), "-c", 1024, "-np", 1, with_plugin=with_plugin)
            answers.append(server.complete(prompt, 32)["tokens"])
            stats = server.stop()
        self.assertEqual(answers[0], answers[1])
        self.assert_attended(stats, dense_steps=31 * 30)
        self.assertEqual(stats["sparse_steps"], 0)


class Slots(host.HostTest):
    def setUp(self):
        super().setUp()
        text = host.gpl_text()
        # About 520 and 610 tokens of the tiny model.
        self.prompts = [text[600:1400], text[5000:5950]]

    def start(self, *arguments, policy=POLICY):
        return Server(self, host.tiny_model(), *arguments, policy=policy)

    def alone(self, prompts, *arguments, policy=POLICY):
        """Each prompt in its slot of a fresh server, while the other slot is empty."""
        answers = []
        for slot, prompt in enumerate(prompts):
            server = self.start(*arguments, policy=policy)
            answers.append(server.complete(prompt, N, slot)["tokens"])
            server.stop()
        return answers

    def at_once(self, *arguments, policy=POLICY):
        server = self.start(*arguments, policy=policy)
        answers = server.complete_at_once([(prompt, N, slot) for slot, prompt in enumerate(self.prompts)])
        return [answer["tokens"] for answer in answers], server.stop()

    def test_two_slots_with_separate_kv(self):
        arguments = ("-c", 4096, "-np", 2, "--no-kv-unified")
        together, stats = self.at_once(*arguments)
        self.assertEqual(together, self.alone(self.prompts, *arguments))
        self.assertGreater(len(set(together[0])), 4)
        self.assert_attended(stats, sparse_steps=2 * (N - 1) * N_LAYER)
        # Where one slot decodes already, the host cuts a prompt's first row off to run beside it: nothing to leave out.
        self.assertLessEqual(stats["fallback_steps"], 2 * N_LAYER)
        self.assertLess(stats["kv_read_share"], 0.4)

    def test_two_slots_with_unified_kv(self):
        """Prompts of whole blocks that begin in the same batch lie in the same blocks as alone: the sparse answers are
        those of each alone, although the cells written since then alternate."""
        arguments = ("-c", 4096, "-np", 2, "--kv-unified", "-ctk", "f32", "-ctv", "f32")
        server = self.start(*arguments)
        prompts = [server.tokens(text)[:n] for text, n in zip(self.prompts, (496, 592))]
        together = [answer["tokens"] for answer in server.complete_list(prompts, N)]
        stats = server.stop()
        self.assertEqual(together, self.alone(prompts, *arguments))
        self.assertGreater(len(set(together[0])), 4)
        self.assert_attended(stats, sparse_steps=2 * (N - 1) * N_LAYER)
        self.assertEqual(stats["fallback_steps"], 0)
        self.assertLess(stats["kv_read_share"], 0.4)

    def test_two_clients_with_unified_kv(self):
        """Whenever they come: dense answers are equal whatever the cells; sparse ones leave rows out, and begin alike."""
        arguments = ("-c", 4096, "-np", 2, "--kv-unified", "-ctk", "f32", "-ctv", "f32")
        dense, _ = self.at_once(*arguments, policy="dense")
        alone = self.alone(self.prompts, *arguments, policy="dense")
        self.assertEqual(dense, alone)
        together, stats = self.at_once(*arguments)
        self.assertEqual([answer[0] for answer in together], [answer[0] for answer in alone])
        self.assertEqual([len(answer) for answer in together], [N, N])
        self.assert_attended(stats, sparse_steps=2 * (N - 2) * N_LAYER)
        self.assertLessEqual(stats["fallback_steps"], 2 * N_LAYER)
        self.assertLess(stats["kv_read_share"], 0.6)

    def test_two_long_answers_with_unified_kv_by_codes(self):
        """The default policy, two answers at once whose rows alternate: no segment of them is one answer's, and the steps
        stay sparse to the end."""
        n = 300
        text = host.gpl_text()
        server = self.start("-c", 8192, "-np", 2, "--kv-unified", policy=None)
        prompts = [server.tokens(text[begin:])[:2600] for begin in (600, 9000)]
        answers = server.complete_list(prompts, n)
        stats = server.stop()
        self.assertEqual([len(answer["tokens"]) for answer in answers], [n, n])
        self.assertEqual(stats["policy"], "condense:budget=8%")
        # While the other's prompt is read some steps count as rows of it.
        self.assert_attended(stats, sparse_steps=2 * (n - 8) * N_LAYER)
        self.assertEqual(stats["fallback_steps"], 0)
        self.assertLessEqual(stats["kv_read_share"], 0.08)
        self.assertEqual(stats["rebuilds"], 0)

    def test_leftovers_of_other_requests(self):
        """Unified KV after other requests came and went: the cells hold leftovers before, between and behind."""
        answers = {}
        for policy in ("dense", POLICY):
            server = self.start("-c", 4096, "-np", 2, "--kv-unified", "--cache-ram", 0, policy=policy)
            server.complete(self.prompts[1], N, 1)
            server.complete_at_once([(self.prompts[1], N, 0), (self.prompts[0][::-1], N, 1)])
            answers[policy] = server.complete(self.prompts[0], N, 1)["tokens"]
            stats = server.stop()
        wanted = self.alone(self.prompts[:1], "-c", 4096, "-np", 2, "--kv-unified", policy="dense")[0]
        self.assertEqual(answers["dense"], wanted)
        self.assertEqual(answers[POLICY][0], wanted[0])
        # A row that is decoded in the batch of a long prompt counts as a row of it.
        self.assert_attended(stats, sparse_steps=(4 * (N - 1) - 2) * N_LAYER)
        self.assertEqual(stats["rebuilds"], 0)


class OneSlot(host.HostTest):
    def setUp(self):
        super().setUp()
        text = host.gpl_text()
        self.shared, self.first, self.second = text[600:1400], text[5000:5200], text[9000:9200]
        self.other = text[12000:13000]

    def start(self, *arguments):
        return Server(self, host.tiny_model(), "-c", 2048, "-np", 1, *arguments, policy=POLICY)

    def fresh(self):
        server = self.start()
        tokens = server.complete(self.shared + self.second, N)["tokens"]
        server.stop()
        return tokens

    def test_prompt_is_taken_up_again(self):
        """The slot keeps the shared beginning, drops the rest (rollback) and goes on otherwise."""
        server = self.start("--cache-ram", 0)
        server.complete(self.shared + self.first, N)
        answer = server.complete(self.shared + self.second, N)
        stats = server.stop()
        self.assertGreater(answer["timings"]["cache_n"], 400)
        self.assertEqual(answer["tokens"], self.fresh())
        self.assert_attended(stats, sparse_steps=2 * (N - 1) * N_LAYER)
        self.assertEqual(stats["rebuilds"], 0)

    def test_prompt_cache_in_memory(self):
        """The server moves the slot's state out for another prompt and loads it again behind the graph's back."""
        server = self.start("--cache-ram", 256)
        server.complete(self.shared + self.first, N)
        server.complete(self.other, N)
        answer = server.complete(self.shared + self.second, N)
        stats = server.stop()
        self.assertEqual(answer["tokens"], self.fresh())
        self.assert_attended(stats, sparse_steps=3 * (N - 1) * N_LAYER)

    def test_slot_is_saved_and_restored(self):
        server = self.start("--cache-ram", 0, "--slot-save-path", self.folder)
        server.complete(self.shared, 1)
        saved = server.post("/slots/0?action=save", {"filename": "slot.bin"})
        self.assertGreater(saved["n_saved"], 400)
        server.complete(self.other, N)
        restored = server.post("/slots/0?action=restore", {"filename": "slot.bin"})
        self.assertEqual(restored["n_restored"], saved["n_saved"])
        answer = server.complete(self.shared + self.second, N)
        stats = server.stop()
        self.assertGreater(answer["timings"]["cache_n"], 400)
        self.assertEqual(answer["tokens"], self.fresh())
        # The restore wrote rows under summaries of the other prompt.
        self.assert_attended(stats, sparse_steps=2 * (N - 1) * N_LAYER, rebuilds=1)

    def test_context_shift(self):
        """The context fills while it answers: the host drops the older half and turns the other keys in place."""
        server = Server(self, host.tiny_model(), "-c", 512, "-np", 1, "--context-shift", "--cache-ram", 0, policy=POLICY)
        answer = server.complete(self.shared[:500], 400)
        stats = server.stop()
        self.assertEqual(len(answer["tokens"]), 400)
        self.assertTrue(answer["truncated"])
        self.assertGreater(len(set(answer["tokens"][-50:])), 1)
        self.assert_attended(stats, sparse_steps=300 * N_LAYER, rebuilds=1)
        self.assertEqual(stats["fallback_steps"], 0)


if __name__ == "__main__":
    host.main()
