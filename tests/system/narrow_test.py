#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints come faster than their link can carry them; then the owner is back."""
import os

from labkit import Skip, check, main, number, wait_for

# Some 0.7 MB that hardly compress, every 0.8 s or more: up to eight times what 1 Mbit/s carries.
WORK = ["--width", "64", "--layers", "2", "--context", "16", "--steps", "100000", "--every", "16",
        "--pace", "50ms"]
COMMITS = 10


def given_way(lab, machine):
    """Transfers of the job's images that a newer image ended, as the agent logged them."""
    with open(os.path.join(lab.dir, "m", machine, "agent.log"), errors="replace") as f:
        return sum("gives way to a newer one" in line for line in f)


def folder(lab, machine, job, name):
    path = os.path.join(lab.map["machines"][machine]["state"], "images", "jobs", job, name)
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def senders(lab, machine):
    """Programs that send images, by the store that they have open."""
    store = lab.map["machines"][machine]["state"]
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/comm" % pid) as f:
                ours = f.read().startswith("reclaim-transfe")
            fds = os.listdir("/proc/%s/fd" % pid) if ours else []
            if any(os.readlink("/proc/%s/fd/%s" % (pid, n)).endswith(".pack") and
                   os.readlink("/proc/%s/fd/%s" % (pid, n)).startswith(store) for n in fds):
                found.append(int(pid))
        except OSError:
            pass  # it ended meanwhile
    return found


def case_16_more_commits_than_the_link_carries(lab):
    """The newest whole commit arrives, the transfers that it overtook were cancelled."""
    if not lab.map["namespaces"]:
        raise Skip("links with a rate need network namespaces")
    job = lab.submit(["train", *WORK], name="narrow")
    j = lab.wait_state(job, "running", timeout=90)
    epoch, source = number(j["epoch"]), j["node"]
    other = next(m for m in lab.machines if m != source)
    saved = set()

    def commits():
        saved.add(lab.job(job).get("saved"))
        return len(saved - {None, ""})

    wait_for(lambda: "%d commits, saw %d" % (COMMITS, commits()), lambda: commits() >= COMMITS, 120)
    check(len(folder(lab, other, job, "images")) <= COMMITS // 2,
          "the link carried them all: the case is none")
    check(given_way(lab, source) >= 1, "no transfer gave way to a newer image")
    lab.owner(source, "back", timeout=120)  # fails when the window is not kept
    check(not lab.guests_left(source), "guest processes are left")
    last = max(r["last_step"] for r in lab.observed() if r["job"] == job and r["epoch"] == epoch)
    then = wait_for("it goes on elsewhere", lambda: sorted(
        (r for r in lab.observed() if r["job"] == job and r["epoch"] > epoch and r["first_step"]),
        key=lambda r: r["epoch"]), 90)[0]
    check(then["machine"] == other, "it went to %s" % then["machine"])
    check(then["first_step"] == last + 1, "it resumed at step %d of %d" % (then["first_step"] - 1, last))
    now = lab.job(job)
    move = next(m for m in now["moves"] if number(m["epoch"]) == then["epoch"])
    check(move["image"] + ".manifest" in folder(lab, other, job, "images"),
          "its image is not in the destination's store")
    wait_for("nothing is being sent any more", lambda: not senders(lab, source), 20)
    wait_for("no beginning of an overtaken image is left", lambda: not folder(lab, other, job, "incoming"), 20)
    check(number(now["failures"]) == 0, "counted as a failure")


if __name__ == "__main__":
    main([case_16_more_commits_than_the_link_carries],
         os.path.join(os.path.dirname(os.path.abspath(__file__)), "narrow.yaml"), need_root=True)
