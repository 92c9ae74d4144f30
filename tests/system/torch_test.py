#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""examples/pytorch on the campus, its machine reclaimed three times: the loss curve in the job's
log and the final weights are bit for bit those of a run that nobody disturbed."""
import os
import pathlib
import re
import shutil
import subprocess

from labkit import BUILD, check, main, need_torch, number, wait_for

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
ENV = {"PYTHONPATH": ".", "RECLAIM_LIBRARY": "./libreclaim.so"}
ARGS = ["train.py", "--steps", "200", "--every", "25"]
PARTS = {"train.py": TOP / "examples/pytorch/train.py", "reclaim": TOP / "python/reclaim",
         "libreclaim.so": pathlib.Path(BUILD, "src/libreclaim/libreclaim.so").absolute()}


def undisturbed(folder):
    folder.mkdir(parents=True)
    for name, path in PARTS.items():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / name)
    (folder / "ckpt").mkdir()
    return subprocess.run(["/usr/bin/python3", *ARGS, "--dir", "ckpt"], cwd=folder, check=True,
                          env={**os.environ, **ENV, "OMP_NUM_THREADS": "1"}, capture_output=True,
                          text=True).stdout


def moved_three_times(lab):
    """Three owners in turn; nothing is redone, nothing differs."""
    need_torch()
    want = undisturbed(pathlib.Path(lab.dir, "out", "undisturbed"))
    job = lab.submit(["/usr/bin/python3", *ARGS], name="torch",
                     inputs=[{"path": str(path), "to": name} for name, path in PARTS.items()],
                     extra={"env": ENV, "checkpoint": {"driver": "poll", "format": "manifest"}})
    for epoch in range(1, 4):
        wait_for("epoch %d computes" % epoch, lambda: any(
            r["job"] == job and r["epoch"] == epoch and r["last_step"] >= r["first_step"] + 10
            for r in lab.observed() if r["first_step"]), 60)
        j = lab.job(job)
        check(number(j["epoch"]) == epoch and j["state"] == "running", "it moved by itself: %s" % j)
        lab.owner(j["node"], "back", "--in", "10s")
        check(not lab.guests_left(j["node"]), "guest processes are left")
        lab.owner(j["node"], "lend")
    wait_for("the end", lambda: lab.job(job)["state"] == "done", 120)
    check(number(lab.job(job)["epoch"]) == 4, "it ran in %s incarnations" % lab.job(job)["epoch"])
    log = lab.logs(job)
    curve = re.findall(r"step (\d+) loss (\S+)", log)
    check(curve == re.findall(r"step (\d+) loss (\S+)", want), "the loss curve differs")
    check(re.findall(r"digest (\w+)", log) == re.findall(r"digest (\w+)", want), "the weights differ")
    check(len(re.findall(r"resumed at step", log)) == 3, "it did not resume three times")
    ends = sorted((r["epoch"], r["first_step"], r["last_step"]) for r in lab.observed() if r["job"] == job)
    check(all(b[1] == a[2] + 1 for a, b in zip(ends, ends[1:])), "steps were redone: %s" % ends)


if __name__ == "__main__":
    main([moved_three_times])
