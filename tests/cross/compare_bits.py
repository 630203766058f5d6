#!/usr/bin/env python3
"""Whether all exact targets compute the same bits: runs kernel_bits once for each machine, natively or under an
emulator, and compares what they print. No value is committed: the runs are compared with each other.

usage: compare_bits.py [--need TARGET] COMMAND … [--and COMMAND …]
"""

import subprocess
import sys


def split(words, separator):
    parts = [[]]
    for word in words:
        if word == separator:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def lines_of(command):
    """Target -> case -> hash, as one run of kernel_bits printed it."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        sys.exit(f"{command[0]} does not run: {error.strerror}")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with status {done.returncode} (is it built?): {done.stderr.strip()}")
    targets = {}
    for line in done.stdout.splitlines():
        target, case, bits = line.split("\t")
        targets.setdefault(target, {})[case] = bits
    return targets


def main(words):
    needed = None
    if words[:1] == ["--need"]:
        needed, words = words[1], words[2:]
    found = {}
    for command in split(words, "--and"):
        found |= lines_of(command)
    if needed is not None and needed not in found:
        sys.exit(f"no run used {needed}, only {', '.join(found)}")
    if len(found) < 2:
        print(f"... skipped: nothing to compare, the only exact target here is {', '.join(found) or 'none'}")
        return 0
    (first, expected), *others = found.items()
    n_wrong = 0
    for target, cases in others:
        for case in expected.keys() | cases.keys():
            if expected.get(case) != cases.get(case):
                n_wrong += 1
                if n_wrong <= 20:
                    print(f"{case}: {first} {expected.get(case)}, {target} {cases.get(case)}")
    print(f"{', '.join(found)}: {len(expected)} cases, {n_wrong} differences")
    return 1 if n_wrong or not expected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
