#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A stand-in trainer: counts steps, saves atomically, resumes. What it listens to is
chosen by its arguments, so that one file plays every kind of program."""
import argparse
import json
import os
import re
import signal
import sys
import threading
import time
import urllib.request

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=10**9)
p.add_argument("--step-s", type=float, default=0.02)
p.add_argument("--save-s", type=float, default=0.1)
p.add_argument("--every", type=int, default=0, help="save every so many steps")
p.add_argument("--catch", action="append", default=[], help="signal that asks for a save")
p.add_argument("--ignore", action="append", default=[])
p.add_argument("--block", action="append", default=[])
p.add_argument("--poll", choices=["file", "http"], default=None)
p.add_argument("--after", choices=["exit85", "exit0", "exit1", "ack", "go-on", "requeue", "requeue255"],
               default="exit85")
p.add_argument("--deadlock", action="store_true", help="the save handler never returns")
p.add_argument("--burn", action="store_true", help="use the CPU instead of sleeping")
p.add_argument("--log", action="store_true", help="print every step")
p.add_argument("--lightning", action="store_true",
               help="as that framework: needs Slurm's names, keeps hpc_ckpt_N.ckpt, written in place")
a = p.parse_args()

ckpt = os.environ["RECLAIM_CHECKPOINT_DIR"]
state = {"step": 0, "saves": 0}
path = os.path.join(ckpt, "state.json")
if a.lightning:
    for name in ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID"):
        assert re.fullmatch("[0-9_-]+", os.environ[name]), name
    assert os.environ["SLURM_JOB_NAME"] not in ("bash", "interactive")
    kept = [int(m.group(1)) for m in map(re.compile(r"hpc_ckpt_(\d+)\.ckpt$").match, os.listdir(ckpt)) if m]
    version = max(kept, default=0)
    path = os.path.join(ckpt, f"hpc_ckpt_{version}.ckpt")
if os.path.exists(path):
    state = json.load(open(path))
    print("resumed at", state["step"], flush=True)
asked = threading.Event()


def say(*words):
    # One write: print() may not be entered again from the signal handler.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def save():
    time.sleep(a.save_s)
    state["saves"] += 1
    if a.lightning:
        with open(os.path.join(ckpt, f"hpc_ckpt_{version + state['saves']}.ckpt"), "w") as f:
            f.write(json.dumps(state) + " " * 100000)
        say("saved", state["step"])
        return
    tmp = os.path.join(ckpt, ".state.tmp")
    with open(tmp, "w") as f:
        json.dump(state, f)
        f.flush()
        os.fsync(f.fileno())
    os.rename(tmp, path)
    say("saved", state["step"])


def handler(signo, frame):
    say("signal", signal.Signals(signo).name, "at", time.clock_gettime(time.CLOCK_BOOTTIME))
    if a.deadlock:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    asked.set()


for name in a.catch:
    signal.signal(getattr(signal, name), handler)
for name in a.ignore:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
if a.block:
    signal.pthread_sigmask(signal.SIG_BLOCK, {getattr(signal, n) for n in a.block})


def noticed():
    if a.poll == "file":
        try:
            return json.load(open(os.environ["RECLAIM_NOTICE_FILE"]))["action"] == "terminate"
        except (OSError, ValueError):
            return False
    url = os.environ["RECLAIM_METADATA_URL"] + "/latest/meta-data/spot/instance-action"
    try:
        return json.load(urllib.request.urlopen(url, timeout=1))["action"] == "terminate"
    except OSError:
        return False


say("ready", os.getpid())
reported = False
while state["step"] < a.steps:
    if a.burn:
        end = time.monotonic() + a.step_s
        while time.monotonic() < end:
            pass
    else:
        time.sleep(a.step_s)
    state["step"] += 1
    if a.log:
        say("step", state["step"])
    if a.every and state["step"] % a.every == 0:
        save()
    if a.poll and not reported and noticed():
        reported = True
        say("noticed by", a.poll, "at", time.clock_gettime(time.CLOCK_BOOTTIME))
        asked.set()
    if asked.is_set():
        asked.clear()
        save()
        if a.after == "go-on":
            continue
        if a.after == "ack":
            os.system("reclaim ack")
            say("acked")
            while True:
                time.sleep(60)
        if a.after.startswith("requeue"):
            os.system("scontrol requeue $SLURM_JOB_ID")
            sys.exit(255 if a.after == "requeue255" else 0)
        sys.exit({"exit85": 85, "exit0": 0, "exit1": 1}[a.after])
save()
say("finished", state["step"])
