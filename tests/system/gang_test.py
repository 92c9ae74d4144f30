#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A gang of two ranks over gloo on the campus: one machine is reclaimed, both ranks commit the
same step, both resume from it, so many times; nothing of what they say crosses the campus in
clear. usage: gang_test.py [TEST...]; RECLAIM_GANG_MOVES=100 for the long run."""
import json
import os
import pathlib
import re
import subprocess
import sys
import time

from labkit import BUILD, Failed, Skip, check, main, need_torch, number, wait_for

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
MOVES = int(os.environ.get("RECLAIM_GANG_MOVES", "3"))
MARK = "what-the-ranks-say-to-each-other"


def submit(lab, *args):
    library = os.path.abspath(os.path.join(BUILD, "src/libreclaim/libreclaim.so"))
    return lab.submit(
        ["/usr/bin/python3", "gang.py", *args], name="gang",
        inputs=[{"path": str(TOP / "examples/pytorch/gang.py"), "to": "gang.py"},
                {"path": str(TOP / "python/reclaim"), "to": "reclaim"},
                {"path": library, "to": "libreclaim.so"}],
        extra={"slots": {"ranks": 2, "cores": 1}, "env": {"RECLAIM_LIBRARY": "./libreclaim.so"},
               "checkpoint": {"driver": "poll", "format": "manifest"}})


def both(job):
    return job, job + ".1"


def output(lab, job, epoch):
    """(machine, lines) of that incarnation, while its machine keeps them; or None."""
    return lab.runs(job).get(epoch)


def steps_in(lines):
    return [int(line.split()[1]) for line in lines if line.startswith("step ")]


def went_on(lab, job, epoch):
    """Both ranks have computed a step in that epoch: {rank: (machine, first step of it)}."""
    got = {}
    for rank, name in enumerate(both(job)):
        run = output(lab, name, epoch)
        steps = steps_in(run[1]) if run else []
        if not steps:
            return None
        got[rank] = (run[0], steps[0])
    return got


def compute(lab, job, epoch, timeout=90):
    """Waits until both ranks compute in that epoch; says what they say if they do not."""
    def look():
        j = lab.job(job)
        if j["state"] == "failed":
            raise Failed("%s: %s" % (j.get("reason"), [lab.logs(n)[-1500:] for n in both(job)]))
        return went_on(lab, job, epoch)
    return wait_for(lambda: "both ranks compute in epoch %d: %s" % (
        epoch, [(lab.job(n)["state"], lab.job(n).get("reason"), lab.logs(n)[-300:]) for n in both(job)]),
        look, timeout)


class Watch:
    """The last step of each rank in each epoch, read while the files are there."""

    def __init__(self, lab, job):
        self.lab, self.job, self.last = lab, job, {}

    def look(self):
        for rank, name in enumerate(both(self.job)):
            for epoch, (_, lines) in self.lab.runs(name).items():
                steps = steps_in(lines)
                if steps:
                    key = (epoch, rank)
                    self.last[key] = max(self.last.get(key, 0), steps[-1])


def epoch_of(lab, job):
    return number(lab.job(job)["epoch"])


def move_once(lab, job, watch, who):
    """Takes back the machine of rank `who`; both must go on after the same step."""
    epoch = epoch_of(lab, job)
    compute(lab, job, epoch)
    node = lab.job(both(job)[who])["node"]
    start = time.monotonic()
    back = lab.start_owner(node, "back", "--in", "30s")
    while back.poll() is None:
        watch.look()
        time.sleep(0.01)
    freed = time.monotonic() - start
    check(back.returncode == 0, "back failed: %s" % back.stdout.read())
    watch.look()

    def on():
        watch.look()
        return epoch_of(lab, job) > epoch and went_on(lab, job, epoch_of(lab, job))

    now = wait_for(lambda: "a next epoch of both: %s" % [lab.job(j).get("reason") for j in both(job)],
                   on, 90)
    down = time.monotonic() - start
    after = epoch_of(lab, job)
    check(after == epoch + 1, "epoch %d came after %d" % (after, epoch))
    check(now[0][1] == now[1][1], "rank 0 went on with step %d, rank 1 with %d" % (now[0][1], now[1][1]))
    # No step is redone: what a rank printed last is what it saved.
    for rank in (0, 1):
        last = watch.last.get((epoch, rank), 0)
        check(now[rank][1] == last + 1, "rank %d had computed step %d and went on with %d" %
              (rank, last, now[rank][1]))
    check(now[who][0] != node, "rank %d is still on %s" % (who, node))
    check(now[0][0] != now[1][0], "both ranks are on %s" % now[0][0])
    lab.lend(node)
    return freed, down


def gang_is_reclaimed_again_and_again(lab):
    """One machine after the other is wanted back; the ranks stay together."""
    need_torch()
    job = submit(lab, "--steps", "1000000", "--every", "0", "--pace", "0.02")
    watch = Watch(lab, job)
    times = [move_once(lab, job, watch, i % 2) for i in range(MOVES)]
    j = [lab.job(n) for n in both(job)]
    check(all(number(x["failures"]) == 0 for x in j), "a reclaim was counted as a failure")
    freed, down = (sorted(t[k] for t in times) for k in (0, 1))
    print(json.dumps({"bench": "guest", "case": "gang", "system": "reclaim", "metric": "failures",
                      "value": 0, "unit": "moves", "n": MOVES}))
    for what, v in (("freed_seconds", freed), ("seconds", down)):
        print(json.dumps({"bench": "guest", "case": "gang", "system": "reclaim", "metric": what,
                          "value": round(v[len(v) // 2], 3), "unit": "s", "n": MOVES}))
    print("%d reclaims of a two-rank gang: same step on both ranks each time, none redone; machine free "
          "after %.2f s (median, worst %.2f), both computing again after %.2f s (worst %.2f)" %
          (MOVES, freed[len(freed) // 2], freed[-1], down[len(down) // 2], down[-1]), flush=True)


def gang_result_is_that_of_an_undisturbed_run(lab):
    """Final weights after a reclaim are bit for bit those of a run that nobody disturbed."""
    need_torch()
    digests = []
    for moves in (0, 1):
        job = submit(lab, "--steps", "150", "--every", "0", "--pace", "0.02")
        if moves:
            move_once(lab, job, Watch(lab, job), 1)
        for j in both(job):
            lab.wait_state(j, "done", timeout=120)
        wait_for("all output", lambda: all("digest" in lab.logs(j) for j in both(job)))
        digests += [re.search(r"digest (\w+)", lab.logs(j))[1] for j in both(job)]
    check(len(set(digests)) == 1, "digests differ: %s" % digests)


def sniff(lab, namespace, ifname):
    p = subprocess.Popen(["nsenter", "--net=" + namespace, sys.executable,
                          os.path.join(os.path.dirname(os.path.abspath(__file__)), "sniff.py"), ifname,
                          MARK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if p.stdout.readline() != "ready\n":
        raise Failed("no capture of %s in %s" % (ifname, namespace))
    return p


def heard(p):
    out, _ = p.communicate(timeout=20)
    return json.loads(out)


def gang_says_nothing_in_clear(lab):
    """What is in clear inside a rank's network is not on the campus."""
    need_torch()
    if not lab.map["namespaces"]:
        raise Skip("no network namespaces: no machine's wire can be looked at")
    job = submit(lab, "--steps", "1000000", "--every", "0", "--pace", "0.02", "--say", MARK * 16)  # gloo cuts it
    compute(lab, job, 1)
    nodes = [lab.job(j)["node"] for j in both(job)]
    wires = [sniff(lab, os.path.join(lab.dir, "netns", n), "eth0") for n in nodes]
    pids = lab.guests_left(nodes[0])
    own = os.readlink("/proc/self/ns/net")
    inside = next(p for p in pids if os.path.exists("/proc/%d/root" % p) and has_gang(p, own))
    clear = sniff(lab, "/proc/%d/ns/net" % inside, "gang0")
    step = steps_in(output(lab, job, 1)[1])[-1]
    wait_for("20 more steps", lambda: steps_in(output(lab, job, 1)[1])[-1] > step + 20)
    seen = heard(clear)
    check(seen["found"] > 10, "the capture does not see what is there: %s" % seen)
    for n, w in zip(nodes, wires):
        got = heard(w)
        check(got["tunnel"] > 20, "no tunnel's packets at %s: %s" % (n, got))
        check(got["found"] == 0, "%d packets in clear at %s: %s" % (got["found"], n, got))


def has_gang(pid, own):
    try:
        with open("/proc/%d/net/dev" % pid) as f:
            return os.readlink("/proc/%d/ns/net" % pid) != own and "gang0:" in f.read()
    except OSError:
        return False


def gang_takes_a_cut_as_a_reclaim(lab):
    """back --now of one rank's machine: the other cannot go on alone, both begin again together."""
    need_torch()
    job = submit(lab, "--steps", "1000000", "--every", "20", "--pace", "0.02")
    compute(lab, job, 1)
    for j in both(job):
        wait_for("a durable image of %s" % j, lambda j=j: lab.job(j).get("durable"), 60)
    node = lab.job(job)["node"]
    lab.owner(node, "back", "--now")
    now = compute(lab, job, 2)
    check(now[0][1] == now[1][1], "rank 0 went on with step %d, rank 1 with %d" % (now[0][1], now[1][1]))
    check(now[0][1] > 1, "all was lost")
    for j in both(job):
        check(number(lab.job(j)["failures"]) == 0, "counted as a failure")


if __name__ == "__main__":
    main([gang_is_reclaimed_again_and_again, gang_says_nothing_in_clear,
          gang_takes_a_cut_as_a_reclaim, gang_result_is_that_of_an_undisturbed_run],
         scenario=str(pathlib.Path(__file__).resolve().parent / "gang.yaml"), need_root=True)
