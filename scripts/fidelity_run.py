"""Runs `condense compare` for the cells that have no records: one dense prefill a (model, prefix), then 127 decisions of
every policy and teacher. Finished policies stay, whatever becomes of a run."""
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import fetch
from fidelity_records import (ABLATIONS, BESIDE, EVERY_PREFIX, N_GENERATE, NEEDED, PREFIXES, SUBJECTS, NotMeasured, Prefix,
                              Subject, read_cells)

ROOT = Path(__file__).resolve().parent.parent
SOURCES = "WikiText-2 raw, test split; Project Gutenberg 2701 and 2600 as GITenberg has them"


class Request(NamedTuple):
    """Which part of the matrix to run; no subjects or prefixes: all that the sets have."""
    beside: bool = False
    ablations: bool = False
    subjects: tuple = ()  # names
    prefixes: tuple = ()

    def policies(self, prefix):
        wanted = (NEEDED if prefix in PREFIXES else ()) + (BESIDE if self.beside else ())
        return tuple(dict.fromkeys(wanted + (ABLATIONS if self.ablations and prefix in PREFIXES else ())))

    def wanted(self):
        """(subject, prefix, policies)."""
        for subject in SUBJECTS:
            for prefix in EVERY_PREFIX:
                asked = subject.name in (self.subjects or (subject.name,)) and prefix.name in (self.prefixes or (prefix.name,))
                if asked and self.policies(prefix):
                    yield subject, prefix, self.policies(prefix)


class Run(NamedTuple):
    subject: Subject
    prefix: Prefix
    policies: tuple  # without records

    def seconds(self):
        return self.subject.prefill_seconds + len(self.policies) * self.subject.policy_seconds


def check_texts(folder, prefixes=PREFIXES):
    """{prefix: path}, or why not."""
    wanted = ", ".join(dict.fromkeys(prefix.file for prefix in prefixes))
    if folder is None:
        raise NotMeasured(f"no texts: give --texts DIR with {wanted} ({SOURCES}; SHA-256 in scripts/fidelity_records.py)")
    for file, sha256 in dict.fromkeys((prefix.file, prefix.sha256) for prefix in prefixes):
        path = folder / file
        if not path.is_file():
            raise NotMeasured(f"--texts: there is no {path}; wanted: {wanted} ({SOURCES})")
        found = fetch.sha256_of(path)
        if found != sha256:
            raise NotMeasured(f"--texts: {path} is another text than the figures are defined on (sha256 {found}, not "
                              f"{sha256})")
    return {prefix: folder / prefix.file for prefix in prefixes}


def find_model(subject):
    path = ROOT / "build/models" / subject.model.file
    if not path.exists():
        done = subprocess.run([sys.executable, str(ROOT / "scripts/fetch.py"), subject.step], capture_output=True, text=True)
        if done.returncode != 0:
            raise NotMeasured(done.stderr.strip() or f"scripts/fetch.py {subject.step} failed")
    return path


def canonical_of(build, policy):
    """(the plug-in's spelling, None) as records have it, or (None, what it says against the policy)."""
    done = subprocess.run([str(build / "bin/condense"), "env", "--policy", policy], capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip().removeprefix("condense: ") or f"condense env fails with {done.returncode}"
    found = re.search("^export CONDENSE_POLICY=(.*)$", done.stdout, re.M)
    return shlex.split(found[1])[0] if found else policy, None


def spell(build, policies, say):
    """{policy: its canonical spelling} of those that this build's plug-in has; the others are said."""
    spelled, refused = {}, {}
    for policy in policies:
        canonical, why = canonical_of(build, policy)
        if why:
            refused.setdefault(why, []).append(policy)
        else:
            spelled[policy] = canonical
    for why, left_out in refused.items():
        say(f"fidelity: left out, since this build's plug-in does not take them: {', '.join(left_out)}: {why}")
    return spelled


def plan(request, spelled, folder):
    """(runs, number of cells that are there already)."""
    cells = read_cells(folder)
    runs, n_there = [], 0
    for subject, prefix, policies in request.wanted():
        ours = tuple(dict.fromkeys(spelled[policy] for policy in policies if policy in spelled))
        missing = tuple(policy for policy in ours if policy not in cells[subject.name, prefix.name])
        n_there += len(ours) - len(missing)
        if missing:
            runs.append(Run(subject, prefix, missing))
    return runs, n_there


def duration(runs):
    minutes = max(1, round(sum(run.seconds() for run in runs) / 60))
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def next_file(folder, stem):
    """STEM-n.jsonl, one past the last: nothing is written over."""
    taken = [int(path.stem.rpartition("-")[2]) for path in folder.glob(f"{stem}-*.jsonl")
             if re.fullmatch(re.escape(stem) + r"-\d+", path.stem)]
    return folder / f"{stem}-{max(taken, default=-1) + 1}.jsonl"


def execute(run, build, text, threads, folder):
    subject, prefix = run.subject, run.prefix
    model = find_model(subject)
    folder.mkdir(parents=True, exist_ok=True)
    records = next_file(folder, f"{subject.name}-{prefix.name}")
    command = [build / "bin/condense", "compare", "-m", model, "-f", text, "--offset", prefix.offset, "--prompt-tokens",
               subject.n_prompt, "-n", N_GENERATE, "-t", threads, "--speed-pairs", 0, "--records", records]
    for policy in run.policies:
        command += ["--policy", policy]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"condense compare failed on {subject.name}, {prefix.name}; finished policies are kept in {records}, and the "
                 "same command runs the rest")


def plan_known(request, build, folder, say):
    """plan() of what this build's plug-in has. It is asked for what has no records alone."""
    spelled = {policy: policy for _, _, policies in request.wanted() for policy in policies}
    runs, n_there = plan(request, spelled, folder)
    missing = dict.fromkeys(policy for run in runs for policy in run.policies)
    if missing:
        known = spell(build, missing, say)
        runs, n_there = plan(request, {policy: known.get(policy, policy) for policy in spelled
                                       if policy in known or policy not in missing}, folder)
    return runs, n_there


def run_missing(request, build, texts, threads, folder, say):
    """Runs everything that was asked for and has no records; yields each model once its runs are done. A model that cannot be
    had is said and left out."""
    wanted = list(request.wanted())
    if not wanted:
        raise NotMeasured(f"nothing runs on {', '.join(request.prefixes)} without --beside")
    paths = check_texts(texts, tuple(dict.fromkeys(prefix for _, prefix, _ in wanted)))
    runs, n_there = plan_known(request, build, folder, say)
    n_missing = sum(len(run.policies) for run in runs)
    say(f"fidelity: {n_missing} cells (model, prefix, policy) to run, {n_there} have records"
        + (f"; {len(runs)} prefills; about {duration(runs)} on 2 cores" if runs else ""))
    for subject in dict.fromkeys(subject for subject, _, _ in wanted):
        try:
            while runs and runs[0].subject == subject:
                run = runs[0]
                say(f"  {subject.name}, {run.prefix.name}, about {duration(runs[:1])} of {duration(runs)} left: "
                    f"{', '.join(run.policies)}")
                execute(run, build, paths[run.prefix], threads, folder)
                runs = runs[1:]
        except NotMeasured as reason:
            say(f"fidelity: {subject.name}: not measured: {reason}")
            runs = [run for run in runs if run.subject != subject]
        else:
            yield subject
