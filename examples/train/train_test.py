#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The trainer ends with the same bits however it was stopped on the way."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

TRAIN = os.path.abspath(sys.argv[1])
SHAPE = ["--width", "16", "--layers", "1", "--context", "16", "--steps", "120", "--every", "10"]


def run(folder, extra=(), stop=None):
    """One incarnation; stop = (signal, step): sent when that step was printed."""
    env = dict(os.environ, RECLAIM_CHECKPOINT_DIR=os.path.join(folder, "ckpt"))
    p = subprocess.Popen([TRAIN, *SHAPE, *extra], cwd=folder, env=env, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = []
    for line in p.stdout:
        lines.append(line.rstrip("\n"))
        if stop and line.startswith("step %d " % stop[1]):
            p.send_signal(stop[0])
    return p.wait(), lines


def result(folder):
    with open(os.path.join(folder, "result.json")) as f:
        return json.load(f)


def check(ok, what):
    if not ok:
        sys.exit("FAILED: " + what)


def main():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    top = tempfile.mkdtemp(prefix="train-test-")
    try:
        ref = os.path.join(top, "reference")
        os.mkdir(ref)
        status, lines = run(ref)
        check(status == 0, "reference ended with %d: %s" % (status, lines[-3:]))
        want = result(ref)["digest"]
        check(result(ref)["save_ms"] > 0 and result(ref)["checkpoint_bytes"] > 1000, "figures")
        for sig, statuses in ((signal.SIGTERM, {85}), (signal.SIGKILL, {-9}), (signal.SIGUSR1, {0})):
            d = os.path.join(top, sig.name)
            os.mkdir(d)
            seen, status, stops = {}, None, 0
            at = 0
            while status != 0:
                at += rng.randint(13, 35)
                status, lines = run(d, ["--pace", "3ms"], (sig, at))
                check(status in statuses | {0}, "%s ended with %d" % (sig.name, status))
                stops += status != 0
                if stops and status != 0 and sig == signal.SIGTERM:
                    saved = sorted(os.listdir(os.path.join(d, "ckpt")))[-1]
                    last = [l for l in lines if l.startswith("step ")][-1].split()[1]
                    check(int(saved[5:]) == int(last), "SIGTERM lost steps: %s, %s" % (saved, last))
                for line in lines:
                    if line.startswith("step "):
                        n = int(line.split()[1])
                        check(seen.setdefault(n, line) == line, "step %d differs" % n)
            check(result(d)["digest"] == want, "%s: other bits at the end" % sig.name)
            check(len(seen) == 120, "steps are missing")
            check(stops >= 2 or sig == signal.SIGUSR1, "%s never stopped it" % sig.name)
        # A torn newest checkpoint: the one before it serves.
        d = os.path.join(top, "torn")
        os.mkdir(d)
        run(d, [], (signal.SIGTERM, 45))
        *_, before, newest = sorted(os.listdir(os.path.join(d, "ckpt")))
        with open(os.path.join(d, "ckpt", newest, "adamw.bin"), "r+b") as f:
            f.seek(77)
            f.write(b"x")
        status, lines = run(d)
        check(status == 0 and result(d)["digest"] == want, "after a torn checkpoint")
        check("resumed at step %d" % int(before[5:]) in lines,
              "did not fall back to %s: %s" % (before, lines[:3]))
        print("ok: same digest", want[:16])
    finally:
        shutil.rmtree(top)


if __name__ == "__main__":
    watchdog = threading.Timer(100, lambda: os._exit(3))
    watchdog.daemon = True
    watchdog.start()
    main()
