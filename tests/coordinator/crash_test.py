# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the coordinator at every protocol point that a job's life passes.

First the life is played once and the points are counted. Then it is played
again for each point, the coordinator is killed there and started anew on the
same state. Whatever the point: the job is there once, ends with its own
status, its log has every line once, no failure is counted, and no two
machines ever ran it under leases at the same time.

    crash_test.py [--all] [--seed N]     --all: every point, also at its second hit
"""
import argparse
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from campus import Agent, Campus, Refused, wait_for

STEPS = 6
SPEC = {"name": "train", "command": ["true"], "failure_limit": 1}


def image_of(epoch, step):
    return ("%02x%04x" % (step, epoch)).ljust(64, "0")


def step_of(image):
    return int(image[:2], 16) if image else 0


class Life:
    """Two machines and a program of six steps; the first machine is reclaimed after step 3."""

    def __init__(self, campus):
        self.campus = campus
        self.guest = campus.enrol("guest", "alice")
        self.agents = [Agent(campus, "n1"), Agent(campus, "n2")]
        self.noticed = False
        self.job = None
        self.problems = []

    def submit(self):
        def once():
            try:
                return self.campus.call(self.guest, "POST", "/v1/jobs",
                                        {"spec": SPEC, "request_id": "r1"})["id"]
            except (OSError, Refused):
                return None
        self.job = wait_for("an answer to submit", once)

    def other(self, name):
        return next(a for a in self.agents if a.name == name)

    def play(self, agent, g):
        """One move of one incarnation; the agent's lock is held."""
        if g.end:
            return
        if g.state == "starting":
            g.step = step_of(g.start.get("image"))
            agent.running(g)
            return
        if g.state == "running" and g.step == 3 and not self.noticed:
            self.noticed = True
            agent.notice(20000)
            return
        if g.state == "noticed":
            self.leave(agent, g)
            return
        if g.step < STEPS:
            g.step += 1
            agent.write(g, "step %d\n" % g.step)
            if g.step == 2:
                agent.saved(g, image_of(g.epoch, 2))
            return
        agent.ended(g, "done", 7)

    def leave(self, agent, g):
        move = agent.find("move", job=g.job, epoch=g.epoch, use="notice")
        if not move:
            return
        if not g.final:
            agent.saved(g, image_of(g.epoch, 3), final=True)
            agent.write(g, "step 4\n")  # behind its image: made again elsewhere
            return
        to = move["to"].get("node")
        if to and not agent.find("durable", job=g.job, image=g.image):
            dest = self.other(to)
            if g.image not in dest.images:
                threading.Thread(target=dest.received, args=(g.job, g.epoch, g.image_seq, g.image,
                                                             g.image_output)).start()
            return
        agent.ended(g, "reclaimed")

    def turn(self):
        alive = []
        for a in self.agents:
            with a.lock:
                for g in list(a.guests.values()):
                    if g.job == self.job and g.state in ("running", "noticed") and not g.end:
                        alive.append((a.name, g.epoch))
                    self.play(a, g)
        if len(alive) > 1:
            self.problems.append("two incarnations at once: %s" % alive)

    def over(self):
        self.turn()
        try:
            job = self.campus.job(self.guest, self.job)
        except (OSError, Refused):
            return None
        return job if job["state"] in ("done", "failed", "cancelled") else None


def check(campus, life, job):
    jobs = campus.call(campus.admin_dir, "GET", "/v1/jobs?all=1")["jobs"]
    log = campus.call(life.guest, "GET", "/v1/jobs/%s/logs" % life.job).decode()
    want = "".join("step %d\n" % i for i in range(1, STEPS + 1))
    problems = list(life.problems)
    if len(jobs) != 1:
        problems.append("%d jobs" % len(jobs))
    if (job["state"], job["exit_status"]) != ("done", 7):
        problems.append("ended %s %d: %s" % (job["state"], job["exit_status"], job.get("reason")))
    if int(job["failures"]):
        problems.append("%s failures counted" % job["failures"])
    if log != want:
        problems.append("log: %r" % log)
    return problems


def play(points=None, hits=None):
    """Returns (problems, killed)."""
    with Campus() as campus:
        campus.start()
        life = Life(campus)
        campus.kill()
        campus.start(points, hits)
        killed = False
        stop = threading.Event()

        def restart():
            nonlocal killed
            while not stop.is_set():
                if campus.process.poll() is not None and not stop.is_set():
                    killed = True
                    campus.start()
                stop.wait(0.02)
        watcher = threading.Thread(target=restart)
        watcher.start()
        try:
            life.submit()
            job = wait_for("the end of the job", life.over, 60)
            problems = check(campus, life, job)
        except AssertionError as e:
            problems = [str(e)]
        finally:
            stop.set()
            watcher.join()
        if problems:
            print(campus.log_text()[-5000:])
        return problems, killed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--point", help="NAME@N: this one only")
    options = parser.parse_args()
    hits_file = "/tmp/reclaim-points-%d" % os.getpid()
    try:
        problems, _ = play("count", hits_file)
        with open(hits_file) as f:
            hits = [line.strip() for line in f]
    finally:
        if os.path.exists(hits_file):
            os.unlink(hits_file)
    assert not problems, problems
    counts = {p: hits.count(p) for p in sorted(set(hits))}
    print("seed %d; points passed:" % options.seed)
    for point, n in counts.items():
        print("  %5d  %s" % (n, point))
    rounds = [(p, n) for p, count in counts.items() for n in (1, 2) if n <= count]
    if options.point:
        name, n = options.point.split("@")
        rounds = [(name, int(n))]
    elif not options.all:
        rounds = random.Random(options.seed).sample(rounds, min(options.rounds, len(rounds)))
    failed = 0
    for point, n in rounds:
        problems, killed = play("%s=kill@%d" % (point, n))
        print("%s@%d: %s%s" % (point, n, "ok" if not problems else problems,
                               "" if killed else " (was not passed this time)"), flush=True)
        failed += bool(problems)
    print("%d of %d rounds failed" % (failed, len(rounds)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
