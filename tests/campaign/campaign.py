#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Crash campaign: kill -9 at protocol points, on a campus that works all the time.

Each round arms one protocol point in one program (an agent and what it starts,
or the coordinator), does something to the campus that should pass there, waits
for the kill, brings the program back, and holds the campus to its promises:

  - no job is lost, none has failed, every finished one has the right bits
  - no two incarnations of a job ran at once, steps follow each other
  - no torn checkpoint was loaded
  - without a coordinator nobody runs past the lease
  - a machine that is said to be free has no guest process

and at the end nothing is left behind on the machine. Seed and rounds are
printed; the same seed gives the same choices.
"""
import argparse
import collections
import os
import random
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "system"))
import labkit  # noqa: E402
import outside  # noqa: E402
from labkit import Failed, check, final, number, wait_for  # noqa: E402
from points import Hits  # noqa: E402

SHAPE = ["--width", "32", "--layers", "1", "--context", "16"]
STEPS = 260
ARGS = SHAPE + ["--steps", str(STEPS), "--every", "30"]
SEEDS = 4
LIVE = 3
LEASE_S = 2.0


def points():
    """name -> folder of the source it stands in."""
    found = {}
    for folder, _, files in os.walk(os.path.join(ROOT, "src")):
        for name in files:
            if name.endswith(".c") and not name.endswith("_test.c"):
                with open(os.path.join(folder, name)) as f:
                    for p in re.findall(r'POINT\("([^"]+)"\)', f.read()):
                        found[p] = os.path.basename(folder)
    return dict(sorted(found.items()))


# Which program passes there. The others are not part of moving jobs: their own tests count them.
COORDINATOR = ("coordinator", "store")
AGENT = ("agent", "image", "transfer", "job", "edge")
# On which side of a move an agent's point is passed.
ARRIVING = ("received", "incoming", "restore", "launch", "start", "adopt", "fetch", "receive",
            "inputs")


class Campaign:
    def __init__(self, lab, rng, hits):
        self.lab, self.rng, self.hits = lab, rng, hits
        self.digest = {}
        self.mine = {}       # job id -> seed
        self.done = set()
        self.names = 0

    def prepare(self):
        for seed in range(1, SEEDS + 1):
            self.digest[seed] = labkit.reference(
                ARGS + ["--seed", str(seed)],
                os.path.join(self.lab.dir, "out", "reference-%d" % seed))

    # ---- a campus at work

    def live(self):
        return [j for j in self.lab.jobs() if not final(j["state"])]

    def top_up(self):
        for _ in range(LIVE - len(self.live())):
            seed = self.rng.randint(1, SEEDS)
            self.names += 1
            job = self.lab.submit(["train", *ARGS, "--seed", str(seed), "--pace", "25ms"],
                                  name="c%d" % self.names)
            self.mine[job] = seed

    def settle(self, timeout=45):
        """Every machine lent and connected, every live job computing."""
        lab = self.lab
        for m in lab.machines:
            wait_for("%s answers" % m, lambda: lab.owner(m, "lend", ok=False).returncode == 0, 20)

        def working():
            jobs = self.live()
            return all(j["state"] == "running" for j in jobs)
        wait_for(lambda: "every job runs: %s" % [
            (j["id"], j["state"], j.get("reason")) for j in self.live()], working, timeout, 0.2)
        before = {j["id"]: lab.last_step(j["id"]) for j in self.live()}
        wait_for(lambda: "progress of %s" % before, lambda: all(
            final(lab.job(j)["state"]) or lab.last_step(j) > n for j, n in before.items()), 20, 0.1)

    # ---- one round

    def round(self, point, folder):
        lab, rng = self.lab, self.rng
        _, before = self.hits.count()
        source = rng.choice([j["node"] for j in self.live() if j.get("node")] or lab.machines)
        if folder in COORDINATOR:
            lab.do(do="crash", what="coordinator", point=point, nth=rng.randint(1, 3))
            armed = None
        else:
            arriving = any(part in ARRIVING for part in re.split(r"[._]", point))
            armed = rng.choice([m for m in lab.machines if m != source]) if arriving else source
            lab.do(do="crash", what="agent", machines=[armed], point=point, nth=1)
            wait_for("agent %s or its death" % armed, lambda: self.killed(point, before) or
                     lab.owner(armed, "status", ok=False).returncode == 0, 20)
            if arriving and not self.killed(point, before):
                for m in lab.machines:
                    if m not in (source, armed):
                        lab.owner(m, "pause", ok=False)
        what = self.stimulate(source)
        end = time.monotonic() + 8
        while not self.killed(point, before) and time.monotonic() < end:
            time.sleep(0.05)
        died = self.killed(point, before)
        self.recover(folder, armed, died)
        return what, died

    def killed(self, point, before):
        return self.hits.count()[1][point] > before[point]

    def stimulate(self, source):
        rng, lab = self.rng, self.lab
        what = rng.choice(["back", "back", "back", "now", "cancel", "save", "submit"])
        if what in ("back", "now"):
            args = ["--now"] if what == "now" else ["--in", "6s"]
            p = lab.owner(source, "back", *args, ok=False, timeout=40)
            if p.returncode == 0:
                check(not lab.guests_left(source), "%s is said to be free, with %s left" % (
                    source, lab.guests_left(source)))
        elif what == "cancel":
            back = lab.start_owner(source, "back", "--in", "6s")
            time.sleep(rng.uniform(0, 0.6))  # at a random moment, that is the point
            lab.owner(source, "back", "--cancel", ok=False)
            back.wait(timeout=40)
        elif what == "submit":
            try:
                self.names += 1
                job = lab.submit(["train", *ARGS, "--seed", "1", "--pace", "25ms"],
                                 name="c%d" % self.names)
                self.mine[job] = 1
            except Failed:
                pass  # nothing was acknowledged, so nothing may be asked for
        return what

    def recover(self, folder, armed, died):
        lab = self.lab
        if folder in COORDINATOR:
            if died and self.rng.random() < 0.3:
                self.without_coordinator()
            lab.do(do="restart", what="coordinator")
        else:
            lab.do(do="restart", what="agent", machines=[armed])
        for m in lab.machines:
            wait_for("%s resumes" % m, lambda: lab.owner(m, "resume", ok=False).returncode == 0, 20)

    def without_coordinator(self):
        """Nobody computes once the lease is over."""
        time.sleep(LEASE_S + 1.0)
        before = {(r["job"], r["epoch"]): r["last_step"] for r in self.lab.observed()}
        time.sleep(0.5)
        for r in self.lab.observed():
            check(before.get((r["job"], r["epoch"]), 0) == r["last_step"],
                  "job %s epoch %d runs without a lease" % (r["job"], r["epoch"]))

    # ---- what must hold

    def invariants(self):
        lab = self.lab
        jobs = {j["id"]: j for j in lab.jobs()}
        runs = collections.defaultdict(list)
        for r in lab.observed():
            runs[r["job"]].append(r)
        for job, seed in self.mine.items():
            check(job in jobs, "job %s is lost" % job)
            j = jobs[job]
            check(j["state"] not in ("failed", "cancelled"), "job %s %s: %s" % (
                job, j["state"], j.get("reason")))
            check(number(j["failures"]) == 0, "job %s counts %s failures: %s" % (
                job, j["failures"], j.get("reason")))
            own = sorted(runs[job], key=lambda r: r["epoch"])
            for a, b in zip(own, own[1:]):
                check(not b["first_ns"] or a["last_ns"] <= b["first_ns"],
                      "job %s: epochs %d and %d ran at once" % (job, a["epoch"], b["epoch"]))
                check(not b["first_step"] or b["first_step"] <= max(
                    r["last_step"] for r in own if r["epoch"] < b["epoch"]) + 1,
                      "job %s: steps are missing before epoch %d" % (job, b["epoch"]))
            check(not any(r["torn"] for r in own), "job %s: steps out of order" % job)
            for _, lines in lab.runs(job).values():
                bad = [l for l in lines if l.startswith("train: ")]
                check(not bad, "job %s: %s" % (job, bad[:1]))
            if j["state"] == "done" and job not in self.done:
                digests = {r["digest"] for r in own if r["digest"]}
                check(digests == {self.digest[seed]}, "job %s ended in other bits: %s" % (
                    job, digests))
                self.done.add(job)


def inside(args):
    rng = random.Random(args.seed)
    hits = Hits(os.environ["RECLAIM_POINTS_HITS"])
    lab = labkit.Lab()
    all_points = points()
    mine = {p: f for p, f in all_points.items() if f in COORDINATOR + AGENT}
    c = Campaign(lab, rng, hits)
    with open(hits.path + ".lab", "w") as f:
        f.write(os.path.basename(lab.dir)[len("rlab-"):])
    print("crash campaign: seed %d, %d rounds, %d protocol points" % (
        args.seed, args.rounds, len(mine)), flush=True)
    c.prepare()
    bad = 0
    asked = collections.Counter()
    start = time.monotonic()
    for n in range(1, args.rounds + 1):
        if args.minutes and time.monotonic() - start > args.minutes * 60:
            break
        try:
            point = "settling"
            c.top_up()
            c.settle()
            least = min(asked[p] for p in mine)
            point = rng.choice([p for p in mine if asked[p] == least])
            asked[point] += 1
            what, died = c.round(point, mine[point])
            c.settle()
            c.invariants()
            print("round %3d  %-38s %-7s %s" % (n, point, what, "killed" if died else
                                               "not passed"), flush=True)
        except Exception as e:
            bad += 1
            print("round %3d  %-38s FAILED: %s" % (n, point, e), flush=True)
            if not isinstance(e, Failed) or bad >= 3:
                break
            try:
                lab.mend()
            except Failed as e2:
                print("           and cannot be mended: %s" % e2)
                break
    try:
        wait_for("the rest of the jobs", lambda: not c.live(), 90, 0.3)
        c.invariants()
    except Exception as e:
        bad += 1
        print("at the end FAILED: %s" % e)
    counts, kills = hits.count()
    print("\n%-44s %8s %6s" % ("protocol point", "passed", "kills"))
    for p in mine:
        print("%-44s %8d %6d" % (p, counts[p], kills[p]))
    unseen = [p for p in mine if not counts[p]]
    print("%d of %d points passed; %d jobs done; %d rounds failed" % (
        len(mine) - len(unseen), len(mine), len(c.done), bad))
    if args.all_points and unseen:
        bad += 1
        print("FAILED: never passed: %s" % " ".join(unseen))
    sys.exit(1 if bad else 0)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--minutes", type=float, default=0, help="stop after so long")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    p.add_argument("--all-points", action="store_true", help="fail if one was never passed")
    args = p.parse_args()
    if "LAB_DIR" in os.environ:
        inside(args)
    build = os.path.abspath(os.environ.get("RECLAIM_BUILD", "build"))
    reclaim = os.path.join(build, "src", "cli", "reclaim")
    hits = os.path.join(build, "campaign.hits")
    if os.path.exists(hits):
        os.unlink(hits)
    env = dict(os.environ, RECLAIM_POINTS="count", RECLAIM_POINTS_HITS=hits)
    script = "exec %s %s --rounds %d --minutes %f --seed %d%s" % (
        sys.executable, os.path.abspath(__file__), args.rounds, args.minutes, args.seed,
        " --all-points" if args.all_points else "")
    r = subprocess.run([reclaim, "lab", "shell", "-q", "--keep",
                        os.path.join(build, "logs", "campaign"),
                        os.path.join(ROOT, "tests", "system", "campus.yaml"), "-c", script], env=env)
    with open(hits + ".lab") as f:
        left = outside.left_behind(f.read())
    if left:
        print("FAILED: left behind: %s" % left)
    sys.exit(1 if left else r.returncode)


if __name__ == "__main__":
    main()
