#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Crash campaign: kill -9 at protocol points, on a campus that works all the time.

Each round arms one protocol point in one program (an agent and what it starts: the
shims, senders and receivers; or the coordinator), does to the campus what passes there
(points.py), waits for the kill, brings the program back, and holds the campus to its
promises:

  - no job is lost, none has failed, every finished one has the right bits and its
    output once, without a gap
  - no two incarnations of a job ran at once, steps follow each other, and no image of
    an older incarnation was committed
  - no torn checkpoint was loaded
  - no guest runs past its lease, nobody at all without a coordinator
  - a machine that is said to be free has no guest process
  - nothing is left of guests that ended: processes, cgroups, pins, links, queues, mounts

and at the end nothing is left behind on the machine. Seed and rounds are printed; the
same seed gives the same choices.
"""
import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "system"))
import guest as own_guest  # noqa: E402
import labkit  # noqa: E402
import outside  # noqa: E402
import points  # noqa: E402
from labkit import Failed, check, final, number, wait_for  # noqa: E402

SHAPE = ["--width", "32", "--layers", "1", "--context", "16"]
STEPS = {"train": 400, "save": 400, "ack": 400, "plain": 400, "gang": 400, "deaf": 140, "short": 40}
SAVES = ("train", "save", "ack")  # kinds of one rank that have images
SEEDS = 4
LIVE = 3
LEASE_S = 2.0
WAIT_S = 8.0  # for a kill, once everything was done that leads to it
ROOM_S = 5.0  # what a guest must still have before it to be of use in a round


class Campaign:
    def __init__(self, lab, rng, hits, criu):
        self.lab, self.rng, self.hits = lab, rng, hits
        self.kinds = ["train", "save", "ack", "deaf"] + (["plain"] if criu else [])
        self.digest = {}     # (kind, seed) -> of the whole run
        self.mine = {}       # job id -> (kind, seed)
        self.done = set()
        self.names = 0
        self.submits = []
        self.without = 0     # rounds with the coordinator away for longer than a lease
        self.ground = outside.Ground(lab)
        self.watcher = outside.Watcher(lab)

    def prepare(self):
        for seed in range(1, SEEDS + 1):
            for kind in ("train", "short"):
                self.digest[kind, seed] = labkit.reference(
                    self.train_args(kind, seed),
                    os.path.join(self.lab.dir, "out", "reference-%s-%d" % (kind, seed)))
            for kind in ("save", "ack", "deaf", "plain", "gang"):
                self.digest[kind, seed] = own_guest.expected(STEPS[kind], seed)
        self.watcher.start()

    # ---- guests

    @staticmethod
    def train_args(kind, seed):
        return SHAPE + ["--steps", str(STEPS[kind]), "--every", "30", "--seed", str(seed)]

    def submit(self, kind):
        seed = self.rng.randint(1, SEEDS)
        self.names += 1
        name = "%s%d" % (kind, self.names)
        extra = {}
        if kind in ("train", "short"):
            command, inputs = ["train", *self.train_args(kind, seed), "--pace", "25ms"], []
        else:
            command = ["/usr/bin/python3", "-u", "guest.py", kind, str(STEPS[kind]), str(seed)]
            inputs = [{"path": os.path.join(HERE, "guest.py"), "to": "guest.py"}]
            extra["checkpoint"] = {"driver": "criu" if kind == "plain" else "signal"}
            if kind == "gang":
                extra["slots"] = {"ranks": 2, "cores": 1}
        job = self.lab.submit(command, name=name, inputs=inputs, results=["result.json"],
                              extra=extra)
        self.mine[job] = (kind, seed)
        return job

    def submit_beside(self, kind):
        """The same while the coordinator may die of it: finish_submits() has it end well."""
        t = threading.Thread(target=self.submit_noted, args=(kind,))
        t.start()
        self.submits.append(t)

    def submit_noted(self, kind):
        try:
            try:
                self.submit(kind)
            except Failed as e:
                # Dead already when the command began: it says so at once, and nothing was begun.
                if "cannot be reached" not in str(e):
                    raise
                wait_for("the coordinator", lambda: self.lab.admin("ps", ok=False).returncode == 0, 25)
                self.submit(kind)
        except Exception as e:
            self.watcher.fault("a submit did not outlive the coordinator's restart: %s" % e)

    def finish_submits(self):
        for t in self.submits:
            t.join(40)
            check(not t.is_alive(), "a submit does not end")
        self.submits.clear()

    def live(self):
        return [j for j in self.lab.jobs() if j["id"] in self.mine and not final(j["state"])]

    def top_up(self):
        for _ in range(LIVE - len(self.live())):
            self.submit(self.rng.choice(self.kinds + ["train"]))

    def left_s(self, job):
        """How long it has still to compute."""
        kind = self.mine[job][0]
        return (STEPS[kind] - self.lab.last_step(job)) * 0.025

    def need(self, kind):
        """A running guest of this kind (None = any) with work left: its id and machine."""
        kinds = SAVES if kind == "saves" else (kind,)
        fit = []

        def look():
            fit[:] = [j for j in self.live() if j["state"] == "running" and j.get("node") and
                      (not kind or self.mine[j["id"]][0] in kinds) and
                      self.lab.last_step(j["id"]) and self.left_s(j["id"]) >= min(
                          ROOM_S, STEPS[self.mine[j["id"]][0]] * 0.015)]
            return fit
        if not look():
            self.submit(kinds[0] or "train")
            wait_for("a guest of kind %s to work with" % (kind or "any"), look, 30)
        j = self.rng.choice(fit)
        return j["id"], j["node"]

    def settle(self, timeout=45):
        """Every machine lent and connected, every live job computing, nothing of others left."""
        lab = self.lab
        for m in lab.machines:
            wait_for("%s answers" % m, lambda: lab.owner(m, "lend", ok=False).returncode == 0, 20)

        def working():
            return all(j["state"] == "running" for j in self.live())
        wait_for(lambda: "every job runs: %s" % [
            (j["id"], self.mine.get(j["id"], "?")[0], j["state"], j.get("reason"))
            for j in self.live() if j["state"] != "running"], working, timeout, 0.2)
        before = {j["id"]: lab.last_step(j["id"]) for j in self.live()}
        wait_for(lambda: "progress of %s" % before, lambda: all(
            final(lab.job(j)["state"]) or lab.last_step(j) > n for j, n in before.items()), 20, 0.1)
        wait_for(lambda: "nothing left of guests that ended: %s" % self.ground.left(),
                 lambda: not self.ground.left(), 15, 0.2)

    # ---- one round

    def round(self, point, recipe):
        lab, rng = self.lab, self.rng
        self.point, self.before = point, self.hits.count()[1][point]
        act = rng.choice(recipe.acts)
        job, source = self.need(recipe.kind) if recipe.kind or recipe.side != "coordinator" or \
            act != "submit" else (None, None)
        nth = rng.randint(1, 3) if recipe.often else 1
        armed = None
        if recipe.side == "coordinator":
            lab.do(do="crash", what="coordinator", point=point, nth=nth)
            wait_for("the coordinator or its death", lambda: self.killed() or
                     lab.admin("ps", ok=False).returncode == 0, 20)
        elif recipe.side == "source":
            armed = source
            self.arm(armed, nth)
        elif act == "fetch":
            armed = self.stranded(job, source)
            self.arm(armed, nth)
        else:
            armed = self.emptiest(source)
            self.arm(armed, nth)
            for m in lab.machines:
                if m not in (source, armed):
                    lab.owner(m, "pause", ok=False)
        getattr(self, "act_" + act)(job, source, armed)
        end = time.monotonic() + WAIT_S
        while not self.killed() and time.monotonic() < end:
            time.sleep(0.05)
        died = self.killed()
        self.recover(recipe, armed, died and act != "enrol")  # that one starts it again itself
        return act, died

    def killed(self):
        return self.hits.count()[1][self.point] > self.before

    def arm(self, machine, nth):
        self.lab.do(do="crash", what="agent", machines=[machine], point=self.point, nth=nth)
        wait_for("agent %s or its death" % machine, lambda: self.killed() or
                 self.lab.owner(machine, "status", ok=False).returncode == 0, 20)

    def emptiest(self, source):
        used = collections.Counter(j["node"] for j in self.live() if j.get("node"))
        others = [m for m in self.lab.machines if m != source]
        least = min(used[m] for m in others)
        return self.rng.choice([m for m in others if used[m] == least])

    def stranded(self, job, source):
        """The job's image on one machine, and another alone may run it: that one is returned."""
        lab = self.lab
        epoch = number(lab.job(job)["epoch"])
        for m in lab.machines:
            if m != source:
                lab.owner(m, "pause")
        lab.owner(source, "back", "--in", "6s", timeout=40)
        wait_for("%s waits for a machine" % job, lambda: lab.job(job)["state"] == "queued" or
                 number(lab.job(job)["epoch"]) > epoch, 20)
        digest = lab.job(job).get("durable")
        holds = [m for m in lab.machines if digest and os.path.exists(os.path.join(
            lab.map["machines"][m]["state"], "images", "jobs", job, "images", digest + ".manifest"))]
        others = [m for m in lab.machines if m != source and m not in holds]
        return self.rng.choice(others or [m for m in lab.machines if m != source])

    def recover(self, recipe, armed, died):
        lab = self.lab
        if recipe.side == "coordinator":
            if died and self.rng.random() < 0.3:
                self.without_coordinator()
            lab.do(do="restart", what="coordinator")
        else:
            lab.do(do="restart", what="agent", machines=[armed])
        self.finish_submits()
        wait_for("the coordinator", lambda: lab.admin("ps", ok=False).returncode == 0, 20)
        for m in lab.machines:
            wait_for("%s resumes" % m, lambda: lab.owner(m, "resume", ok=False).returncode == 0, 20)

    def without_coordinator(self):
        """Nobody computes once the lease is over."""
        self.without += 1
        time.sleep(LEASE_S + 1.0)
        before = {(r["job"], r["epoch"]): r["last_step"] for r in self.lab.observed()}
        time.sleep(0.5)
        for r in self.lab.observed():
            check(before.get((r["job"], r["epoch"]), 0) == r["last_step"],
                  "job %s epoch %d runs without a lease" % (r["job"], r["epoch"]))

    # ---- what is done to the campus

    def back(self, machine, *args):
        p = self.lab.owner(machine, "back", *args, ok=False, timeout=40)
        if p.returncode == 0:
            check(not self.lab.guests_left(machine), "%s is said to be free, with %s left" % (
                machine, self.lab.guests_left(machine)))

    def act_back(self, job, source, armed):
        self.back(source, "--in", "6s")

    def act_now(self, job, source, armed):
        self.back(source, "--now")

    def act_save(self, job, source, armed):
        pass  # guests save by themselves

    def act_lend(self, job, source, armed):
        self.back(source, "--now")
        self.lab.owner(source, "lend", ok=False)

    def act_cancel(self, job, source, armed):
        back = self.lab.start_owner(source, "back", "--in", "6s")
        end = time.monotonic() + 3
        while time.monotonic() < end and back.poll() is None and not self.killed():
            try:
                if self.lab.ask(source)["state"] == "notice":
                    break
            except (OSError, ValueError, KeyError):
                pass
        time.sleep(self.rng.choice([0, 0, 0.2, 0.5]))  # at a random moment, that is the point
        self.lab.owner(source, "back", "--cancel", ok=False)
        back.wait(timeout=40)

    def act_submit(self, job, source, armed):
        # With a target, nobody else may take it.
        if armed and source:
            self.lab.owner(source, "pause", ok=False)
        self.submit_beside("short")

    def act_fresh(self, job, source, armed):
        """A guest that saves often comes to the armed machine."""
        self.lab.owner(source, "pause", ok=False)
        self.submit_beside("save")

    def act_gang(self, job, source, armed):
        self.submit_beside("gang")

    def act_back_other(self, job, source, armed):
        """A gang's other rank must leave: this one hears of it from the coordinator."""
        self.back(self.lab.job(job + ".1")["node"], "--in", "6s")

    def act_alone(self, job, source, armed):
        self.lab.wait_durable(job)
        self.lab.do(do="crash", what="coordinator")
        self.back(source, "--in", "6s")
        self.lab.do(do="restart", what="coordinator")

    def act_enrol(self, job, source, armed):
        """Somebody joins; whatever the crash cut off, a new token lets them in."""
        self.names += 1
        home = os.path.join(self.lab.dir, "home", "user%d" % self.names)
        for attempt in range(2):
            shutil.rmtree(home, ignore_errors=True)
            os.makedirs(home)
            p = self.lab.admin("token", "create", "--role", "guest", "--name",
                               "user%d" % self.names, ok=False)
            if p.returncode == 0:
                p = self.lab._run(["reclaim", "enrol", p.stdout.split()[0]], 30, False,
                                  env=dict(os.environ, RECLAIM_IDENTITY=home))
            if p.returncode == 0:
                break
            check(attempt == 0, "%s cannot enrol after the crash: %s" % (home, p.stderr))
            self.lab.do(do="restart", what="coordinator")
            wait_for("coordinator", lambda: self.lab.admin("ps", ok=False).returncode == 0, 20)
        p = self.lab._run(["reclaim", "ps"], 30, False, env=dict(os.environ, RECLAIM_IDENTITY=home))
        check(p.returncode == 0 or self.killed(), "enrolled and refused: %s" % p.stderr)

    def act_arrive(self, job, source, armed):
        self.back(source, "--in", "6s")

    def act_fetch(self, job, source, armed):
        self.lab.owner(armed, "resume", ok=False)

    def arrived(self, job, source, armed):
        """The guest computes on the armed machine (or that was killed on the way)."""
        self.back(source, "--in", "6s")

        def there():
            j = self.lab.job(job)
            return self.killed() or final(j["state"]) or (
                j["state"] == "running" and j["node"] == armed and any(
                    r["job"] == job and r["epoch"] == number(j["epoch"]) and r["first_step"]
                    for r in self.lab.observed()))
        wait_for("%s computes on %s" % (job, armed), there, 30)
        return not self.killed()

    def act_then_back(self, job, source, armed):
        if self.arrived(job, source, armed):
            self.back(armed, "--in", "6s")

    def act_then_now(self, job, source, armed):
        if self.arrived(job, source, armed):
            self.back(armed, "--now")

    def act_then_cancel(self, job, source, armed):
        if self.arrived(job, source, armed):
            self.act_cancel(job, armed, armed)

    def act_then_expire(self, job, source, armed):
        if self.arrived(job, source, armed):
            self.lab.do(do="crash", what="coordinator")
            self.without_coordinator()
            self.lab.do(do="restart", what="coordinator")

    # ---- what must hold

    def invariants(self):
        lab = self.lab
        jobs = {j["id"]: j for j in lab.jobs()}
        runs = collections.defaultdict(list)
        for r in lab.observed():
            runs[r["job"]].append(r)
        faults = self.watcher.take() + labkit.sanitizer_reports(lab.dir)[:3]
        check(not faults, "; ".join(faults))
        for job, (kind, seed) in self.mine.items():
            check(job in jobs, "job %s is lost" % job)
            if job in self.done:
                continue
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
            if kind != "plain":  # a restored process does not say where it goes on
                check(not any(r["torn"] for r in own), "job %s: steps out of order" % job)
            for _, lines in lab.runs(job).values():
                bad = [l for l in lines if l.startswith(("train: ", "guest: "))]
                check(not bad, "job %s: %s" % (job, bad[:1]))
            if j["state"] == "done":
                self.finished(job, kind, seed, own)

    def finished(self, job, kind, seed, own):
        digests = {r["digest"] for r in own if r["digest"]}
        check(digests == {self.digest[kind, seed]}, "job %s (%s) ended in other bits: %s" % (
            job, kind, digests))
        steps = [labkit.step_of(l) for l in self.lab.logs(job).splitlines()]
        steps = [s for s in steps if s]
        want = list(range(1, STEPS[kind] + 1))
        check(steps == want, "job %s (%s): its output is not each line once: %s" % (
            job, kind, next(((i + 1, s) for i, (s, w) in enumerate(zip(steps, want)) if s != w),
                            "%d lines of %d" % (len(steps), len(want)))))
        to = os.path.join(self.lab.dir, "out", "results-" + job)
        os.makedirs(to, exist_ok=True)
        self.lab.admin("results", job, to)
        with open(os.path.join(to, "result.json")) as f:
            check(json.load(f)["digest"] == self.digest[kind, seed], "job %s: results of other bits"
                  % job)
        self.done.add(job)


def play(c, args, mine):
    """The rounds; how many failed."""
    bad = 0
    asked = collections.Counter()
    start = time.monotonic()
    for n in range(1, args.rounds + 1):
        if args.minutes and time.monotonic() - start > args.minutes * 60:
            break
        point = "settling"
        try:
            c.top_up()
            c.settle()
            least = min(asked[p] for p in mine)
            point = c.rng.choice([p for p in mine if asked[p] == least])
            asked[point] += 1
            what, died = c.round(point, mine[point])
            c.settle()
            c.invariants()
            print("round %3d  %-34s %-11s %s" % (n, point, what, "killed" if died else
                                                "not passed"), flush=True)
        except Exception as e:
            bad += 1
            print("round %3d  %-34s FAILED: %s" % (n, point, e), flush=True)
            if not isinstance(e, Failed) or bad >= 3:
                break
            try:
                c.lab.mend()
            except Failed as e2:
                print("           and cannot be mended: %s" % e2)
                break
    try:
        wait_for(lambda: "the rest of the jobs: %s" % [
            (j["id"], c.mine[j["id"]][0], j["state"]) for j in c.live()],
            lambda: not c.live(), 90, 0.3)
        c.invariants()
        wait_for(lambda: "nothing left: %s" % c.ground.left(), lambda: not c.ground.left(), 15)
    except Exception as e:
        bad += 1
        print("at the end FAILED: %s" % e)
    return bad


def inside(args):
    hits = points.Hits(os.environ["RECLAIM_POINTS_HITS"])
    lab = labkit.Lab()
    with open(hits.path + ".lab", "w") as f:
        f.write(os.path.basename(lab.dir)[len("rlab-"):])
    criu = bool(os.environ.get("CAMPAIGN_CRIU"))
    every = points.find()
    mine = {p: r for p, r in every.items() if criu or not r.criu}
    if args.points:
        mine = {p: mine[p] for p in args.points}
    print("crash campaign: seed %d, %d rounds, %d protocol points%s" % (
        args.seed, args.rounds, len(mine), "" if criu else ", without CRIU"), flush=True)
    c = Campaign(lab, random.Random(args.seed), hits, criu)
    c.prepare()
    bad = play(c, args, mine)
    counts, kills = hits.count()
    print("\n%-36s %8s %6s" % ("protocol point", "passed", "kills"))
    for p in mine:
        print("%-36s %8d %6d" % (p, counts[p], kills[p]))
    for p in sorted(set(every) - set(mine)) if not args.points else ():
        print("%-36s needs CRIU (packaging/build-criu.sh)" % p)
    unseen = [p for p in mine if not counts[p]]
    spared = [p for p in mine if not kills[p]]
    print("%d of %d points passed, killed at %d; %d jobs done; %d guests looked at %d times, %d past "
          "the end of their lease; %d rounds without a coordinator; %d rounds failed" % (
              len(mine) - len(unseen), len(mine), len(mine) - len(spared), len(c.done),
              len(c.watcher.jobs), c.watcher.looks, len(c.watcher.leases_ended), c.without, bad))
    if args.all_points and spared:
        bad += 1
        print("FAILED: never passed: %s; never killed at: %s" % (" ".join(unseen) or "-",
                                                                 " ".join(spared)))
    sys.exit(1 if bad else 0)


def find_criu(build, may_build):
    """CRIU of its own build (minutes, once), or none."""
    argv = [os.path.join(ROOT, "packaging", "build-criu.sh")]
    argv += [] if may_build else ["--check"]
    p = subprocess.run([*argv, os.path.join(build, "criu")], text=True, capture_output=True)
    return p.stdout.strip() if p.returncode == 0 else None


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--minutes", type=float, default=0, help="stop after so long")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    p.add_argument("--all-points", action="store_true",
                   help="fail if one was never passed or never killed at; builds CRIU if it can")
    p.add_argument("--points", nargs="+", help="only these")
    args = p.parse_args()
    if "LAB_DIR" in os.environ:
        inside(args)
    build = os.path.abspath(os.environ.get("RECLAIM_BUILD", "build"))
    reclaim = os.path.join(build, "src", "cli", "reclaim")
    hits = os.path.join(build, "campaign-%d.hits" % args.seed)
    if os.path.exists(hits):
        os.unlink(hits)
    env = dict(os.environ, RECLAIM_POINTS="count", RECLAIM_POINTS_HITS=hits)
    criu = find_criu(build, args.all_points) if os.geteuid() == 0 else None
    if criu:
        env["CAMPAIGN_CRIU"] = criu
        env["PATH"] = os.path.dirname(criu) + ":" + env["PATH"]
    script = "exec %s %s --rounds %d --minutes %f --seed %d%s%s" % (
        sys.executable, os.path.abspath(__file__), args.rounds, args.minutes, args.seed,
        " --all-points" if args.all_points else "",
        " --points " + " ".join(args.points) if args.points else "")
    r = subprocess.run([reclaim, "lab", "shell", "-q", "--keep",
                        os.path.join(build, "logs", "campaign-%d" % args.seed),
                        os.path.join(ROOT, "tests", "system", "campus.yaml"), "-c", script], env=env)
    with open(hits + ".lab") as f:
        left = outside.left_behind(f.read())
    if left:
        print("FAILED: left behind: %s" % left)
    sys.exit(1 if left else r.returncode)


if __name__ == "__main__":
    main()
