#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A guest of the crash campaign whose every saved byte can be checked.

usage: guest.py MODE STEPS SEED

Its state is a step and a chain of hashes over all steps before, so that its last
digest says whether any was lost, doubled or computed from a torn checkpoint. A
checkpoint also holds a block that never changes (what a store shares between
images, and digs around when it gives room back). MODE:

  save   saves now and then, and at SIGTERM; leaves with 85
  ack    the same, but stays and says "reclaim ack"; goes on if the notice is withdrawn
  deaf   never saves and ignores SIGTERM: starts over after each reclaim
  gang   save, in ranks: after each step they tell each other that step and digest, and
         whether one was given notice; then all save it
  plain  never saves and knows nothing of notices: saved from outside (driver criu)
"""
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

PACE_S = 0.025
EVERY = 30
BLOCK = 192 * 1024


def chain(digest, step):
    return hashlib.sha256(("%s %d" % (digest, step)).encode()).hexdigest()


def expected(steps, seed):
    digest = chain("seed", seed)
    for step in range(1, steps + 1):
        digest = chain(digest, step)
    return digest


def block(seed):
    out = b""
    n = 0
    while len(out) < BLOCK:
        out += hashlib.sha256(b"%d %d" % (seed, n)).digest()
        n += 1
    return out


def put(folder, name, data):
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    return "%d %s %s\n" % (len(data), hashlib.sha256(data).hexdigest(), name)


def save(top, step, digest, fixed):
    new = os.path.join(top, ".new")
    shutil.rmtree(new, ignore_errors=True)
    os.mkdir(new)
    lines = put(new, "block", fixed)
    lines += put(new, "state", json.dumps({"step": step, "digest": digest}).encode())
    put(new, "MANIFEST.tmp", lines.encode())
    os.rename(new + "/MANIFEST.tmp", new + "/MANIFEST")
    name = os.path.join(top, "at-%06d" % step)
    shutil.rmtree(name, ignore_errors=True)
    os.rename(new, name)
    for old in sorted(d for d in os.listdir(top) if d.startswith("at-"))[:-2]:
        shutil.rmtree(os.path.join(top, old))


def load(top, fixed):
    """The newest checkpoint; a program that finds a torn one says so and fails."""
    found = sorted(d for d in os.listdir(top) if d.startswith("at-"))
    if not found:
        return None
    folder = os.path.join(top, found[-1])
    try:
        with open(folder + "/MANIFEST") as f:
            rows = [line.split() for line in f]
        for size, digest, name in rows:
            with open(os.path.join(folder, name), "rb") as f:
                data = f.read()
            if len(data) != int(size) or hashlib.sha256(data).hexdigest() != digest:
                raise ValueError("%s is torn" % name)
            if name == "block" and data != fixed:
                raise ValueError("the block is another's")
        with open(folder + "/state") as f:
            return json.load(f)
    except (OSError, ValueError) as e:
        print("guest: checkpoint %s: %s" % (found[-1], e), flush=True)
        sys.exit(1)


def withdrawn():
    try:
        with open(os.environ["RECLAIM_NOTICE_FILE"]) as f:
            return json.load(f)["action"] == "none"
    except (OSError, ValueError, KeyError):
        return False


class Ranks:
    """A connection of each rank with rank 0, by what a gang finds in its environment."""

    def __init__(self):
        self.rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if self.rank == 0:
            with socket.create_server(at) as s:
                self.files = [s.accept()[0].makefile("rw") for _ in range(ranks - 1)]
            return
        while True:
            try:
                s = socket.create_connection(at, 5)
            except OSError:  # rank 0 is not there yet; if it never comes our lease ends us
                time.sleep(0.05)
                continue
            s.settimeout(None)
            self.files = [s.makefile("rw")]
            return

    def agree(self, step, digest, told):
        """Every rank is at this step with this digest; whether one was told to leave."""
        mine = [step, digest, told]
        if self.rank:
            self.say(self.files[0], mine)
            return self.hear(self.files[0], mine)
        told = any([self.hear(f, mine) for f in self.files]) or told
        for f in self.files:
            self.say(f, [step, digest, told])
        return told

    @staticmethod
    def say(f, what):
        f.write(json.dumps(what) + "\n")
        f.flush()

    @staticmethod
    def hear(f, mine):
        line = f.readline()
        if not line:
            sys.exit(3)  # the other rank is gone
        step, digest, told = json.loads(line)
        if [step, digest] != mine[:2]:
            print("guest: at step %d, and another rank at %d" % (mine[0], step), flush=True)
            sys.exit(1)
        return told


def main():
    mode, steps, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    told = []
    top = os.environ["RECLAIM_CHECKPOINT_DIR"]
    step, digest = 0, chain("seed", seed)
    saves = mode in ("save", "ack", "gang")
    fixed = block(seed) if saves else b""
    if saves:
        signal.signal(signal.SIGTERM, lambda *_: told.append(1))
        at = load(top, fixed)
        if at:
            step, digest = at["step"], at["digest"]
            print("resumed at step %d" % step, flush=True)
    elif mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ranks = Ranks() if mode == "gang" else None
    due = time.monotonic()
    while step < steps:
        if ranks and step:
            told[:] = [1] if ranks.agree(step, digest, bool(told)) else []
        if told:
            save(top, step, digest, fixed)
            told.clear()
            if mode in ("save", "gang"):
                sys.exit(85)
            subprocess.run(["reclaim", "ack"], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            while not told and not withdrawn():
                time.sleep(0.02)
            told.clear()
        step += 1
        digest = chain(digest, step)
        print("step %d %s" % (step, digest[:8]), flush=True)
        if saves and step % EVERY == 0:
            save(top, step, digest, fixed)
        due = max(due + PACE_S, time.monotonic() - PACE_S)
        time.sleep(max(0, due - time.monotonic()))
    with open("result.json", "w") as f:
        json.dump({"digest": digest}, f)
    print("done step %d digest %s" % (step, digest), flush=True)


if __name__ == "__main__":
    main()
