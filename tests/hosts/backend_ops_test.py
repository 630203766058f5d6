#!/usr/bin/env python3
"""llama.cpp's test-backend-ops on the plug-in's device: every case that it claims agrees with llama.cpp's CPU backend
(random masks, sinks, soft-cap, every KV type and head size), and the number of claimed cases does not fall below
claimed.json's for this ggml backend API.
"""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import host

FLOORS = json.loads((pathlib.Path(__file__).parent / "claimed.json").read_text())
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class BackendOps(host.HostTest):
    def check(self, op):
        # Worker threads of the program's own; each keeps one thread of OpenMP, so that they do not fight for the cores.
        done, _ = self.run_host("test-backend-ops", "test", "-o", op, "-b", "Condense", "-j", host.N_THREADS,
                                OMP_THREAD_LIMIT="1", expect=None, timeout=580, stats=None)
        case = re.compile(rf"^\s*({op}\(.*\)): (.*)$")
        claimed, declined, failed = [], [], []
        # A failing case prints its error first, on the same line.
        for line in COLOUR.sub("", done.stdout).splitlines():
            found = case.match(line.strip())
            if not found:
                continue
            name, outcome = found.groups()
            if outcome == "OK":
                claimed.append(name)
            elif outcome.startswith("not supported ["):
                declined.append(name)
            else:
                failed.append(f"{name}: {outcome}")
        print(f"{op}: {len(claimed) + len(failed)} cases claimed, {len(failed)} of them fail, {len(declined)} declined")
        self.assertEqual(failed, [])
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertIn(host.GGML_API, FLOORS, f"claimed.json has no figures for ggml backend API {host.GGML_API}: "
                      f"add {{\"{op}\": {len(claimed)}}}")
        floor = FLOORS[host.GGML_API][op]
        self.assertGreaterEqual(len(claimed), floor, f"{op}: fewer cases are claimed than the {floor} of claimed.json")
        # What is claimed must have passed by the program's own count too.
        self.assertIn(f"{len(claimed)}/{len(claimed)} tests passed", done.stdout)

    def test_flash_attn_ext(self):
        self.check("FLASH_ATTN_EXT")

    def test_set_rows(self):
        self.check("SET_ROWS")


if __name__ == "__main__":
    host.main()
