#!/usr/bin/env python3
"""Instructions that the kernels take at fixed shapes (bench/instructions.cc), counted by callgrind and compared with
bench/instructions.json: a regression shows without the noise of a clock. Counts hold for one compiler with one set of
flags and one Highway; what another makes of the same source is reported beside the record and judged by nobody.

usage: scripts/instructions.py BUILD_DIR            measure and compare
       scripts/instructions.py BUILD_DIR --record   measure and write the record anew
       scripts/instructions.py BUILD_DIR --test     fail on more than 5 % more instructions than the record's
"""

import argparse
import datetime
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "bench" / "instructions.json"
SHOWN = 0.02  # of the record's count: a difference that is named
FAILS = 0.05  # of the record's count: what the test does not let pass
UNAVAILABLE = 3  # the program's exit status where the machine lacks the instruction set
MADE_BY = ("target", "compiler", "flags", "highway")  # what counts depend on beside the source


class NotMeasured(Exception):
    """Why this machine has no counts; no fault of the kernels."""


def measure(build):
    """What the program was made by, and {kernel: instructions}."""
    program = build / "bin" / "condense_instructions"
    if shutil.which("valgrind") is None:
        raise NotMeasured("there is no valgrind here (Debian: apt-get install valgrind, then configure anew)")
    if not program.exists():
        sys.exit(f"{program} is missing: configure again with valgrind's headers there, and build condense_instructions")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out")
        done = subprocess.run(["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={out}",
                               str(program)], capture_output=True, text=True, check=False)
        if done.returncode == UNAVAILABLE:
            said = [line for line in done.stderr.splitlines() if not line.startswith("==")]  # those are valgrind's
            raise NotMeasured(" ".join(said))
        if done.returncode != 0:
            sys.exit(f"{program} failed under valgrind:\n{done.stderr[-2000:]}")
        counts = {}
        for dump in sorted(pathlib.Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:])):
            text = dump.read_text()
            name = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.M)
            total = re.search(r"^totals: (\d+)$", text, re.M)
            if name and total:
                counts[name[1]] = int(total[1])
    if not counts or min(counts.values()) == 0:
        sys.exit(f"callgrind counted nothing in {program}")
    return json.loads(done.stdout), counts


class Comparison:
    """Counts beside the record's, where there is one."""

    def __init__(self, made_by, counts, record):
        self.made_by, self.counts, self.record = made_by, counts, record
        self.old = record.get("instructions", {})
        self.other_maker = [f"{key} {made_by[key]}, the record's {record.get(key, 'nothing')}"
                            for key in MADE_BY if made_by[key] != record.get(key)]

    def change(self, name):
        """Relative to the record; None where it has no such kernel."""
        return (self.counts[name] - self.old[name]) / self.old[name] if name in self.old else None

    def lines(self):
        for name, count in self.counts.items():
            change = self.change(name)
            note = "not in the record" if change is None else f"{100 * change:+.1f} %"
            if change is not None and abs(change) > SHOWN and not self.other_maker:
                note += "  REGRESSION" if change > 0 else "  improvement"
            yield f"{name:16} {count:10,}  {note}"
        for name in self.old.keys() - self.counts.keys():
            yield f"{name:16} {'-':>10}  in the record, not measured"
        if self.old and self.other_maker:
            yield "only reported, not judged: " + "; ".join(self.other_maker)

    def failures(self):
        if not self.old:
            return ["there is no record"]
        if self.other_maker:
            return []
        wrong = [f"{name} takes {100 * self.change(name):.1f} % more instructions than the record's {self.old[name]:,}"
                 for name in self.counts if name in self.old and self.change(name) > FAILS]
        if self.counts.keys() != self.old.keys():
            wrong.append("the record has other kernels")
        return wrong


def compare_with_record(build):
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return Comparison(*measure(build), record)


def figures(build):
    """The objects of bench.jsonl."""
    found = compare_with_record(build)
    how = "callgrind, " + ", ".join(f"{key} {found.made_by[key]}" for key in MADE_BY) + ", shapes of bench/instructions.cc"
    for name, count in found.counts.items():
        yield {"figure": "instructions:" + name, "value": count, "unit": "instr", "n": 1, "spread": [count, count],
               "how": how, "change": found.change(name), "judged": not found.other_maker}


def write_record(build):
    made_by, counts = measure(build)
    RECORD.write_text(json.dumps({"made": datetime.date.today().isoformat(), **made_by, "instructions": counts}, indent=2)
                      + "\n")
    print(f"written: {RECORD}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--record", action="store_true")
    what.add_argument("--test", action="store_true")
    options = parser.parse_args()
    try:
        if options.record:
            write_record(options.build)
            return 0
        found = compare_with_record(options.build)
    except NotMeasured as reason:
        print(f"... skipped: not measured: {reason}")
        return 0 if options.test else 1
    print("\n".join(found.lines()))
    if not options.test:
        return 0
    failures = found.failures()
    if failures:
        print("; ".join(failures) + f". Where it is meant: scripts/instructions.py {options.build} --record")
    elif found.other_maker:
        print("... skipped: another compiler than the record's: reported only")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
