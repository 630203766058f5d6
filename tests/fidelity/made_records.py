"""Records as `condense compare` writes them, made up, and a folder for them."""

import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import fidelity_records

SMOL, QWEN = fidelity_records.SUBJECTS


def run_line(subject, prefix, **changes):
    return {"record": "run", "model_sha256": subject.model.sha256, "n_prompt": subject.n_prompt, "text_sha256": prefix.sha256,
            "offset": prefix.offset, "n_generate": 128, "kv_type_k": "f16", "kv_type_v": "f16", "commit": "0123abcde",
            **changes}


def policy_lines(policy, kl, **changes):
    """Of both teachers; the text's KL is twice the other."""
    share = (fidelity_records.percent_of(policy) or 100) / 100
    # As the counters have it: an upper line's choice reads all other keys, condense's its codes.
    upper = policy.startswith(("oracle", "topk"))
    k, v, summary = (share * 50, share * 50, 50 - share * 50) if upper else (share * 40, share * 40, share * 20)
    for teacher, factor in (("greedy", 1), ("text", 2)):
        yield {"record": "policy", "policy": policy, "teacher": teacher, "kl_mean": kl * factor, "tf_match": 0.9,
               "k_bytes": k, "v_bytes": v, "summary_bytes": summary, "dense_bytes": 100, "sparse_steps": 0 if policy in (
                   "dense", "control") else 7, "fallbacks": {}, **changes}


class RecordsCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.n_files = 0

    def write(self, *lines, tail="", name=None):
        self.n_files += 1
        path = self.folder / (name or f"{self.n_files}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)

    def write_all(self, subjects=fidelity_records.SUBJECTS):
        """What the figures need; KL doubles from prefix to prefix."""
        for subject in subjects:
            for i, prefix in enumerate(fidelity_records.PREFIXES):
                lines = [run_line(subject, prefix), *policy_lines("control", 1e-4)]
                for percent in (5, 8, 12):
                    kl = 0.08 / percent * 2 ** i
                    lines += policy_lines(f"condense:budget={percent}%", kl)
                    lines += policy_lines(f"oracle:budget={percent}%", 3 * kl)
                self.write(*lines)

    def cells(self, *folders):
        return fidelity_records.read_cells(*(folders or (self.folder,)))
