#!/usr/bin/env python3
"""The house rules that a compiler does not check: which folder of src/ may include which (the table of
docs/ARCHITECTURE.md), files of bearable length, and one registered policy for each file of select/policies/.
"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import host

SRC = host.ROOT / "src"
# folder: rooms whose headers it may include; "condense" is the plug-in's C interface.
MAY_INCLUDE = {
    "base": set(),
    "kernels": {"base"},
    "cache": {"base", "kernels"},
    "select": {"base", "kernels", "cache"},
    "attention": {"base", "kernels", "cache", "select"},
    "plugin": {"base", "kernels", "cache", "select", "attention", "condense"},
    "decode": {"base", "condense"},
    "metrics": {"base"},
    "bench": {"base", "kernels", "cache", "select", "attention", "metrics"},
    "lab": {"base", "decode", "metrics"},
    "report": {"base", "metrics"},
    "app": {"base", "kernels", "cache", "select", "attention", "plugin", "metrics", "bench", "decode", "lab", "report",
            "condense"},
}
# Folders that may include the host's headers, and which.
HOST_HEADERS = {"ggml": re.compile(r"(ggml|gguf)[a-z0-9-]*\.h$"), "llama": re.compile(r"llama[a-z0-9-]*\.h$")}
MAY_INCLUDE_HOST = {"plugin": {"ggml"}, "bench": {"ggml"}, "decode": {"ggml", "llama"}, "app": {"ggml", "llama"}}
MAX_LINES = 500
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)


def sources(*folders, suffixes=(".cc", ".h")):
    return sorted(path for folder in folders for path in (host.ROOT / folder).rglob("*")
                  if path.suffix in suffixes and path.is_file())


class Structure(unittest.TestCase):
    def test_rooms_include_what_their_row_allows(self):
        self.assertEqual({path.name for path in SRC.iterdir() if path.is_dir()} - set(MAY_INCLUDE), set(),
                         "a folder of src/ without a row in the table")
        wrong, n_includes = [], 0
        for path in sources("src"):
            room = path.relative_to(SRC).parts[0]
            for name in INCLUDE.findall(path.read_text()):
                n_includes += 1
                first = name.split("/")[0]
                where = f"{path.relative_to(host.ROOT)} includes {name}"
                if "/" in name and (first in MAY_INCLUDE or first == "condense"):
                    if first != room and first not in MAY_INCLUDE[room]:
                        wrong.append(f"{where}: {room}/ may include {', '.join(sorted(MAY_INCLUDE[room])) or 'nothing'}")
                for library, pattern in HOST_HEADERS.items():
                    if pattern.fullmatch(name) and library not in MAY_INCLUDE_HOST.get(room, set()):
                        wrong.append(f"{where}: {room}/ may not know {library}")
                if name.startswith(".."):
                    wrong.append(f"{where}: paths are relative to src/")
        self.assertEqual(wrong, [])
        self.assertGreater(n_includes, 100)

    def test_public_header_includes_nothing_of_ours(self):
        for path in sources("include"):
            for name in INCLUDE.findall(path.read_text()):
                self.assertIn(name, {"stddef.h", "stdint.h"}, path)

    def test_room_table_is_the_documented_one(self):
        """The table of docs/ARCHITECTURE.md, where `all above` and `all` are spelled out here."""
        page = host.need(host.ROOT / "docs" / "ARCHITECTURE.md", "the page with the table of rooms").read_text()
        rows = re.findall(r"^\| `(?:src/)?(\w+)/` \|[^|]*\| ([^|]*) \|$", page, re.M)
        self.assertEqual({room for room, _ in rows}, set(MAY_INCLUDE))
        order = [room for room, _ in rows]
        for room, cell in rows:
            words = {word.strip(" `") for word in cell.split(",")}
            documented = set()
            for word in words:
                if word == "all":
                    documented |= set(MAY_INCLUDE) | {"condense"}
                elif word == "all above":
                    documented |= set(order[:order.index(room)]) | {"condense"}
                elif word == "the C interface":
                    documented.add("condense")
                elif word in MAY_INCLUDE:
                    documented.add(word)
                else:
                    self.assertIn(word, {"ggml", "llama", "-"}, f"{room}: '{word}'")
            self.assertEqual(documented - {room}, MAY_INCLUDE[room] - {room}, room)

    def test_no_file_is_too_long(self):
        long = []
        for path in sources("src", "include", "tests", "bench", "scripts", "cmake", suffixes=(".cc", ".h", ".py", ".cmake", ".sh")):
            n = len(path.read_text().splitlines())
            if n >= MAX_LINES:
                long.append(f"{path.relative_to(host.ROOT)}: {n} lines; look for the seam")
        self.assertEqual(long, [])

    def test_headers_are_guarded_and_files_open_with_their_purpose(self):
        wrong = []
        for path in sources("src"):
            text = path.read_text()
            if path.suffix == ".h" and "-inl.h" not in path.name and "#pragma once" not in text:
                wrong.append(f"{path.relative_to(host.ROOT)}: no #pragma once")
            if path.suffix == ".h" and not text.startswith("//"):
                wrong.append(f"{path.relative_to(host.ROOT)}: does not say what it is for")
        self.assertEqual(wrong, [])

    def test_every_experiment_file_is_registered(self):
        files = {path.stem.replace("_", "-") for path in (SRC / "lab" / "experiments").glob("*.cc")}
        command = host.need(host.BUILD / "bin" / "condense", "build the target condense")
        done = subprocess.run([str(command), "lab", "list"], capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(set(re.findall(r"^(\S+): ", done.stdout, re.M)), files)
        self.assertGreaterEqual(len(files), 1)

    def test_every_policy_file_is_registered(self):
        files = {path.stem for path in (SRC / "select" / "policies").glob("*.cc") if not path.stem.endswith("_test")}
        command = host.need(host.BUILD / "bin" / "condense", "build the target condense")
        env = host.environment(with_plugin=False, CONDENSE_PLUGIN=str(host.plugin()))
        done = subprocess.run([str(command), "policies", "--json"], env=env, capture_output=True, text=True, timeout=60,
                              check=True)
        names = {policy["name"] for policy in json.loads(done.stdout)}
        self.assertEqual(names, files)
        self.assertGreaterEqual(len(files), 7)


if __name__ == "__main__":
    host.main()
