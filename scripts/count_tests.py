#!/usr/bin/env python3
"""Sums the JUnit files that ctest wrote into one line, "N passed, N failed, N skipped", and names what failed.

A test that ctest could not start (no executable) counts as failed; one that skipped itself, with its reason in its
output, as skipped. A result file that is not there is a failure of its own.
"""

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
            names[outcome(case)].append(case.get("name"))
    for name in names["failed"]:
        print(f"failed: {name}")
    for name in names["skipped"]:
        print(f"skipped: {name}")
    print(", ".join(f"{len(names[key])} {key}" for key in names))
    return 1 if names["failed"] or not names["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
