#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`reclaim back` with everything else down, typed by the owner without root."""
import os
import time

from labkit import Skip, check, main, number, step_of, wait_for

GUEST = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "campaign", "guest.py")
SMALL = ["--width", "32", "--layers", "1", "--context", "16"]


def start(lab, *more, name="job"):
    job = lab.submit(["train", *SMALL, "--steps", "6000", "--every", "60", "--pace", "20ms", *more],
                     name=name)
    j = lab.wait_state(job, "running")
    lab.wait_durable(job)
    return job, lab.job(job)


def resumes(lab, job, epoch, timeout=40):
    """Runs in a later incarnation; returns its machine and the step that it went on from."""
    r = wait_for("%s resumes after epoch %d" % (job, epoch), lambda: sorted(
        (r for r in lab.observed() if r["job"] == job and r["epoch"] > epoch and r["first_step"]),
        key=lambda r: r["epoch"]), timeout)[0]
    return r["machine"], r["first_step"] - 1


def last_of(lab, job, epoch):
    return max((r["last_step"] for r in lab.observed() if r["job"] == job and r["epoch"] == epoch),
               default=0)


def back(lab, node, *args):
    """As the owner; returns how long it took."""
    begin = time.monotonic()
    lab.owner(node, "back", *args)
    took = time.monotonic() - begin
    check(not lab.guests_left(node), "%s has guest processes left: %s" % (
        node, lab.guests_left(node)))
    return took


def coordinator_down(lab):
    """Coordinator stopped: back works, and the image travels by standby ticket meanwhile."""
    job, j = start(lab)
    epoch = number(j["epoch"])
    lab.do(do="crash", what="coordinator")
    took = back(lab, j["node"], "--in", "6s")
    check(took <= 7, "it took %.1f s" % took)
    lab.do(do="restart", what="coordinator")
    machine, at = resumes(lab, job, epoch)
    check(machine != j["node"], "it runs on the machine that was taken back")
    check(at == last_of(lab, job, epoch), "resumed at %d, computed %d: the image of the coordinator's absence was "
          "not used" % (at, last_of(lab, job, epoch)))
    check(number(lab.job(job)["failures"]) == 0, "a failure was counted")


def output_goes_with_the_image(lab):
    """The coordinator is away while a job leaves a machine that then dies for good: what it had
    printed meanwhile is known to nobody but the image's new home."""
    job, j = start(lab)
    epoch = number(j["epoch"])
    lab.do(do="crash", what="coordinator")
    seen = last_of(lab, job, epoch)
    wait_for("output that nobody takes", lambda: last_of(lab, job, epoch) > seen + 20)
    back(lab, j["node"], "--in", "6s")
    lab.do(do="crash", what="agent", machines=[j["node"]])
    lab.do(do="restart", what="coordinator")
    _, at = resumes(lab, job, epoch)
    check(at > seen + 20, "resumed at %d: the image of the coordinator's absence was not used" % at)
    lab.wait_step(job, at + 5)

    def printed():
        steps = [step_of(line) for line in lab.logs(job).splitlines()]
        return [s for s in steps if s]
    wait_for("the new home's output", lambda: printed()[-1] > at)
    steps = printed()
    check(steps == list(range(1, len(steps) + 1)), "the log lacks lines or repeats some: %s" % sorted(
        set(range(1, steps[-1])).symmetric_difference(steps)))
    lab.do(do="restart", what="agent", machines=[j["node"]])


def network_down(lab):
    """The machine's cable pulled: back works; the job goes on once its last image is in reach."""
    if not lab.map["namespaces"]:
        raise Skip("no namespaces: cables cannot be cut")
    job, j = start(lab)
    epoch = number(j["epoch"])
    lab.do(do="cut", machines=[j["node"]])
    took = back(lab, j["node"], "--in", "4s")
    check(took <= 5, "it took %.1f s" % took)
    machine, at = resumes(lab, job, epoch)
    check(machine != j["node"] and at > 0, "resumed on %s at %d" % (machine, at))
    lab.do(do="restore", machines=[j["node"]])
    check(number(lab.job(job)["failures"]) == 0, "a failure was counted")


def agent_dead(lab):
    """Agent killed: back --now works through the setuid helper."""
    if not lab.map["root"]:
        raise Skip("no root: there is no helper with privileges")
    job, j = start(lab)
    epoch = number(j["epoch"])
    lab.do(do="crash", what="agent", machines=[j["node"]])
    took = back(lab, j["node"], "--now")
    check(took <= 1, "it took %.1f s" % took)
    machine, at = resumes(lab, job, epoch)
    check(machine != j["node"] and at > 0, "resumed on %s at %d" % (machine, at))
    lab.do(do="restart", what="agent", machines=[j["node"]])
    wait_for("agent", lambda: lab.owner(j["node"], "status", ok=False).returncode == 0, 20)
    check(lab.status(j["node"])["state"] == "owned", "after its restart the agent says %s" %
          lab.status(j["node"])["state"])


def agent_dead_with_window(lab):
    """Agent killed: back with a window speaks to the guests' supervisors."""
    job, j = start(lab)
    epoch = number(j["epoch"])
    lab.do(do="crash", what="agent", machines=[j["node"]])
    lab.owner(j["node"], "back", "--in", "3s")
    wait_for("no guest process", lambda: not lab.guests_left(j["node"]), 5)
    machine, _ = resumes(lab, job, epoch)
    check(machine != j["node"], "it runs on the machine that was taken back")
    lab.do(do="restart", what="agent", machines=[j["node"]])


def everything_down(lab):
    """Coordinator dead, cable pulled, agent dead, one after the other: --now frees the machine."""
    if not lab.map["root"] or not lab.map["namespaces"]:
        raise Skip("needs root")
    job, j = start(lab)
    epoch = number(j["epoch"])
    lab.do(do="crash", what="coordinator")
    lab.do(do="cut", machines=[j["node"]])
    lab.do(do="crash", what="agent", machines=[j["node"]])
    took = back(lab, j["node"], "--now")
    check(took <= 1, "it took %.1f s" % took)
    lab.do(do="restore", machines=[j["node"]])
    lab.do(do="restart", what="coordinator")
    resumes(lab, job, epoch)
    lab.do(do="restart", what="agent", machines=[j["node"]])


def agent_restart_keeps_guests(lab):
    """An agent that is killed and started again adopts its guests: nothing is lost."""
    job, j = start(lab)
    epoch = number(j["epoch"])
    lab.do(do="crash", what="agent", machines=[j["node"]])
    lab.do(do="restart", what="agent", machines=[j["node"]])
    before = lab.last_step(job)
    lab.wait_step(job, before + 100)
    check(number(lab.job(job)["epoch"]) == epoch, "it was started anew")
    back(lab, j["node"])
    _, at = resumes(lab, job, epoch)
    check(at == last_of(lab, job, epoch), "steps were redone")


def agent_restart_keeps_the_network(lab):
    """Two ranks that speak at every step go on long after their agents were started again."""
    if not lab.map["root"] or not lab.map["namespaces"]:
        raise Skip("no ranks of gangs without root and namespaces")
    job = lab.submit(["/usr/bin/python3", "-u", "guest.py", "gang", "2000", "1"], name="gang",
                     inputs=[{"path": GUEST, "to": "guest.py"}],
                     extra={"checkpoint": {"driver": "signal"}, "slots": {"ranks": 2, "cores": 1}})
    lab.wait_state(job, "running")
    lab.wait_step(job, 20)
    nodes = [lab.job(n)["node"] for n in (job, job + ".1")]
    for node in nodes:
        lab.do(do="crash", what="agent", machines=[node])
        lab.do(do="restart", what="agent", machines=[node])
    for node in nodes:
        wait_for("agent", lambda: lab.owner(node, "status", ok=False).returncode == 0, 20)
    at = lab.last_step(job)
    lab.wait_step(job, at + 240)  # six seconds of it, three leases
    check(number(lab.job(job)["epoch"]) == 1, "it was started anew")


def agent_away_at_the_end(lab):
    """A guest that ends while no agent runs: the next one leaves nothing of its network."""
    if not lab.map["root"] or not lab.map["namespaces"]:
        raise Skip("needs root")
    job, j = start(lab)
    netns = lab.map["machines"][j["node"]]["netns"]

    def links():
        p = lab._run(["nsenter", "--net=" + netns, "ip", "-o", "link"], 20, True)
        return [l for l in p.stdout.splitlines() if ": rg" in l]
    check(links(), "the guest has no network of its own")
    lab.do(do="crash", what="agent", machines=[j["node"]])
    lab.do(do="crash", what="shim", machines=[j["node"]])
    wait_for("the guest's end", lambda: not lab.guests_left(j["node"]), 10)
    lab.do(do="restart", what="agent", machines=[j["node"]])
    lab.owner(j["node"], "back", "--now")  # nothing new comes here
    resumes(lab, job, number(j["epoch"]))
    check(not links(), "left: %s" % links())


def coordinator_restart_loses_nothing(lab):
    """kill -9 of the coordinator right after each acknowledgement: all jobs are there."""
    jobs = []
    for n in range(6):
        jobs.append(lab.submit(["train", *SMALL, "--steps", "60", "--pace", "10ms"],
                               name="kept%d" % n))
        lab.do(do="crash", what="coordinator")
        lab.do(do="restart", what="coordinator")
        wait_for("coordinator", lambda: lab.admin("ps", "--json", ok=False).returncode == 0, 20)
    for job in jobs:
        lab.wait_state(job, "done", timeout=90)


def others_are_refused(lab):
    """Somebody who is not in the owners' group cannot touch the machine; guests only their jobs."""
    if not lab.map["root"]:
        raise Skip("no root: there is only one user")
    job, j = start(lab)
    m = lab.map["machines"][j["node"]]
    p = lab._run(["nsenter", "--net=" + m["netns"], "setpriv", "--reuid", "60999", "--regid",
                  "60999", "--clear-groups", "reclaim", "back", "--run", m["run"]], 30, False)
    check(p.returncode != 0, "a stranger took the machine back")
    check(lab.job(job)["state"] == "running", "a stranger disturbed the job")
    token = lab.admin("token", "create", "--role", "guest", "--name", "mallory").stdout.split()[0]
    home = os.path.join(lab.dir, "home", "mallory")
    os.makedirs(home, exist_ok=True)
    env = dict(os.environ, RECLAIM_IDENTITY=home)
    lab._run(["reclaim", "enrol", token], 30, True, env=env)
    for words in (["cancel", job], ["logs", job], ["show", job], ["results", job]):
        p = lab.user(*words, name="mallory", ok=False)
        check(p.returncode != 0, "another guest may '%s': %s" % (words[0], p.stdout))
    p = lab._run(["reclaim", "enrol", token], 30, False, env=dict(
        os.environ, RECLAIM_IDENTITY=home + "2"))
    check(p.returncode != 0, "a join token works twice")
    check(lab.job(job)["state"] == "running", "another guest disturbed the job")


if __name__ == "__main__":
    main([coordinator_down, output_goes_with_the_image, network_down, agent_dead,
          agent_dead_with_window, everything_down, agent_restart_keeps_guests, agent_restart_keeps_the_network, agent_away_at_the_end,
          coordinator_restart_loses_nothing, others_are_refused])
