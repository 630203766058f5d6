#!/usr/bin/env python3
"""Sums the JUnit files that ctest wrote into one line, "N passed, N failed, N skipped", and names what failed.

A test that ctest could not start (no executable) counts as failed; one that skipped itself, with its reason in its
output, as skipped. A result file that is not there is a failure of its own. A GoogleTest program that ran to its end
counts as the cases that it reports: one entry of ctest may hold many.
"""

import re
import sys
import xml.etree.ElementTree


def outcome(case):
    if case.get("status") == "run":
        return "passed"
    skipped = case.find("skipped")
    reason = "" if skipped is None else skipped.get("message", "")
    if case.get("status") == "disabled" or reason.startswith(("SKIP_", "Disabled")):
        return "skipped"
    return "failed"


def outcomes(case):
    """(outcome, name) of every case that an entry of ctest stands for."""
    name, output = case.get("name"), case.findtext("system-out") or ""
    if not re.search(r"^\[={10}\] \d+ tests? from \d+ test suites? ran", output, re.M):
        return [(outcome(case), name)]
    found = []
    for key in ("PASSED", "SKIPPED", "FAILED"):
        counted = re.findall(rf"^\[ *{key} *\] (\d+) tests?[.,]", output, re.M)
        # The list after the counts; the lines of the run itself end with the time taken.
        named = re.findall(rf"^\[ *{key} *\] (\S+\.\S+?)(?:, where .*)?$", output, re.M)
        n = int(counted[-1]) if counted else 0
        named = list(dict.fromkeys(named))[-n:] if n else []
        found += [(key.lower(), f"{name}: {one}") for one in named + ["a case"] * (n - len(named))]
    if outcome(case) == "failed" and all(kind != "failed" for kind, _ in found):
        found.append(("failed", name))  # after its last case: a leak
    return found if len(found) > 1 else [(found[0][0] if found else outcome(case), name)]


def main(paths):
    names = {"passed": [], "failed": [], "skipped": []}
    for path in paths:
        try:
            root = xml.etree.ElementTree.parse(path).getroot()
        except (OSError, xml.etree.ElementTree.ParseError) as error:
            print(f"no result: {error}")
            names["failed"].append(path)
            continue
        for case in root.iter("testcase"):
            for kind, name in outcomes(case):
                names[kind].append(name)
    for name in names["failed"]:
        print(f"failed: {name}")
    for name in names["skipped"]:
        print(f"skipped: {name}")
    print(", ".join(f"{len(names[key])} {key}" for key in names))
    return 1 if names["failed"] or not names["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
