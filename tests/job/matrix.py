#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Six kinds of program under windows of 0, 7, 30, 60 and 120 s, all shortened by one factor:
each is reclaimed, its newest complete commit goes to a next incarnation, and it resumes.
Nothing that was committed may be lost, and no step be redone where the window is enough.
usage: matrix.py [--json] [--full] [--factor F]   (--full: two kinds at full length, W = 30 s)"""
import argparse
import json
import pathlib
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from shim import ROOT, Shim, marked_pids, remove_groups  # noqa: E402

TRAIN = (HERE / "guests/train.py").read_text()
LAUNCHER = (HERE / "guests/launcher.py").read_text()
SAVE_S = 4  # of full length
PERIOD = 10  # steps between the saves of their own

KINDS = {
    # the contract of each, as PEERS in docs/job-contract.md tells it
    "slurm": ("#SBATCH --signal=USR1@90 --requeue\n", "--catch SIGUSR1 --after requeue"),
    "lightning": ("#SBATCH --signal=SIGUSR1@90\n", "--lightning --catch SIGUSR1 --ignore SIGTERM --after requeue"),
    "submitit": ("#SBATCH --signal=USR2@90\n", "--catch SIGUSR2 --ignore SIGTERM --ignore SIGCONT --after requeue255"),
    "condor": ("#RECLAIM signal: TERM\n", "--catch SIGTERM --after exit85"),
    "torchrun": ("#RECLAIM signal: TERM\n", "--catch SIGTERM --burn --after exit1"),
    "spot": ("#RECLAIM checkpoint: {driver: poll}\n", "--poll http --after exit0"),
}


def script(kind, factor):
    marks, args = KINDS[kind]
    train = (f"/usr/bin/python3 train.py {args} --log --every {PERIOD} --step-s {max(0.02, 1 * factor):.3f} "
             f"--save-s {SAVE_S * factor:.3f}")
    if kind == "torchrun":
        train = f"/usr/bin/python3 launcher.py {30 * factor} {train}"
    return f"#!/bin/sh\n{marks}{train}\nexit $?\n"


def start(shim, kind, factor):
    work = shim.dir / "work"
    work.mkdir(parents=True, exist_ok=True)
    (work / "train.py").write_text(TRAIN)
    (work / "launcher.py").write_text(LAUNCHER)
    marks = KINDS[kind][0]
    spec = {}
    found = re.search(r"signal[=:] ?(\S+)", marks)
    if found:
        spec["signal"] = found.group(1)
    if "driver: poll" in marks:
        spec["checkpoint"] = {"driver": "poll"}
    shim.start(script=script(kind, factor), spec=spec, own_network=ROOT)


def last_step(text):
    steps = re.findall(r"^step (\d+)$", text, re.M)
    return int(steps[-1]) if steps else 0


def one(kind, window, factor):
    """Steps done, redone, and whether the window was enough (decided before the run)."""
    base = tempfile.mkdtemp(prefix="reclaim-job-")
    enough = window >= SAVE_S + 2
    job = f"job-{kind}-{window}"
    first = Shim(base=base, job=job, epoch=1)
    second = None
    try:
        start(first, kind, factor)
        first.wait_output(f"step {PERIOD + 4}", timeout=60 + 30 * factor)
        first.notice(window * factor)
        event = first.exited(window * factor + 10)
        assert event["end"] == "reclaimed", (kind, window, event)
        assert not marked_pids(job)
        done = last_step(first.output())
        committed = [int(x) for x in re.findall(r"^saved (\d+)$", first.output(), re.M)]
        second = Shim(base=base, job=job, epoch=2)
        # What was complete; a temporary name is none of it (ckpt_watch has the rule).
        (second.dir / "ckpt").mkdir(parents=True)
        for path in (first.dir / "ckpt").iterdir():
            if not path.name.startswith("."):
                shutil.copy2(path, second.dir / "ckpt" / path.name)
        start(second, kind, factor)
        second.wait_output("resumed at")
        resumed = int(re.search(r"resumed at (\d+)", second.output()).group(1))
        assert resumed >= committed[-1], (kind, window, "lost a commit", resumed, committed)
        redone = max(0, done - resumed)
        if enough:
            assert redone == 0, (kind, window, done, resumed, first.output()[-400:], first.shim_text())
        return {"kind": kind, "window_s": window, "enough": enough, "steps": done, "redone": redone,
                "end": event["end"]}
    finally:
        first.close()
        if second:
            second.close()
        shutil.rmtree(base, ignore_errors=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--json", action="store_true")
    p.add_argument("--full", action="store_true")
    p.add_argument("--factor", type=float, default=0.05)
    a = p.parse_args()
    if a.full:
        runs = [("slurm", 30), ("spot", 30)]
        a.factor = 1.0
    else:
        runs = [(kind, window) for kind in KINDS for window in (0, 7, 30, 60, 120)]
    print(f"all times shortened by {a.factor}; a save takes {SAVE_S} s, a window is enough from {SAVE_S + 2} s on",
          file=sys.stderr)
    failures, redone_enough, rows = 0, 0, []
    def attempt(run):
        try:
            return one(*run, a.factor)
        except Exception as e:  # one broken row must not hide the others
            return f"FAIL {run[0]} W={run[1]}: {e}"

    # Most of a row is waiting.
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(attempt, runs))
    for (kind, window), row in zip(runs, results):
        if isinstance(row, str):
            failures += 1
            print(row, file=sys.stderr, flush=True)
            continue
        rows.append(row)
        redone_enough += row["redone"] if row["enough"] else 0
        if not a.json:
            print(f"ok   {kind:10} W={window:4} s {'enough' if row['enough'] else 'short '} "
                  f"steps {row['steps']:4} redone {row['redone']}", flush=True)
    for metric, value in (("steps_redone", redone_enough), ("failures", failures)):
        print(json.dumps({"bench": "guest", "case": "matrix", "system": "reclaim", "metric": metric,
                          "value": value, "unit": "", "n": len(runs)}))
    remove_groups()
    return 1 if failures or redone_enough else 0


if __name__ == "__main__":
    sys.exit(main())
