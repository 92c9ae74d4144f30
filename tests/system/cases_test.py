#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Troubles that users of comparable systems reported, as tests on the campus."""
import json
import os
import subprocess
import time

from labkit import Skip, check, final, main, number, step_of, wait_for

SMALL = ["--width", "32", "--layers", "1", "--context", "16"]


def train(steps, *more):
    return ["train", *SMALL, "--steps", str(steps), *more]


def later(lab, job, epoch):
    """Incarnations after this one that have computed a step, in order."""
    return sorted((r for r in lab.observed() if r["job"] == job and r["epoch"] > epoch and
                   r["first_step"]), key=lambda r: r["epoch"])


def resumed(lab, job, epoch):
    """The step after which the next incarnation went on."""
    return later(lab, job, epoch)[0]["first_step"] - 1


def last_of(lab, job, epoch):
    return max((r["last_step"] for r in lab.observed() if r["job"] == job and r["epoch"] == epoch),
               default=0)


def moved_on(lab, job, epoch, timeout=40):
    """The next incarnation has computed a step."""
    return wait_for("%s goes on elsewhere" % job, lambda: later(lab, job, epoch), timeout)


def case_03_shell_without_exec(lab):
    """sh -c 'train' without exec: the trainer itself gets the notice, in under a second."""
    job = lab.submit(["sh", "-c", "./train %s --steps 4000 --every 0 --pace 20ms; exit $?" %
                      " ".join(SMALL)], name="sh",
                     inputs=[{"path": lab.train, "to": "train", "executable": True}])
    j = lab.wait_state(job, "running")
    lab.wait_step(job, 30)
    start = time.monotonic()
    back = lab.start_owner(j["node"], "back", "--in", "60s")
    # Saved by SIGTERM, long before T: the window ends early only if the trainer heard it.
    epoch = number(j["epoch"])
    check(back.wait(timeout=70) == 0, "back failed: %s" % back.stdout.read())
    told = time.monotonic() - start
    moved_on(lab, job, epoch)
    check(resumed(lab, job, epoch) == last_of(lab, job, epoch), "steps were redone")
    check(told < 30, "the machine was free %.1f s after the notice" % told)


def case_08_commit_after_notice(lab):
    """A checkpoint committed after the notice is the one it resumes from."""
    job = lab.submit(train(4000, "--every", "0", "--pace", "20ms"), name="late")
    j = lab.wait_state(job, "running")
    lab.wait_step(job, 40)
    check(not lab.job(job).get("saved"), "it saved before the notice")
    lab.owner(j["node"], "back")
    epoch = number(j["epoch"])
    moved_on(lab, job, epoch)
    at = resumed(lab, job, epoch)
    check(at == last_of(lab, job, epoch), "resumed at %s, had computed %s" % (
        at, last_of(lab, job, epoch)))


def case_09_before_any_checkpoint(lab):
    """Taken back before there is a checkpoint: requeued from the start, never failed or held."""
    # It ignores the notice and saves never: what a program without checkpoints does.
    job = lab.submit(["sh", "-c", "trap '' TERM; i=0; while [ $i -lt 400 ]; do i=$((i+1)); "
                      "echo step $i x; sleep 0.02; done"], name="young")
    j = lab.wait_state(job, "running")
    lab.wait_step(job, 1)
    lab.owner(j["node"], "back", "--in", "1s")
    epoch = number(j["epoch"])
    moved_on(lab, job, epoch)
    now = lab.job(job)
    check(number(now["failures"]) == 0, "a reclaim was counted as a failure")
    check(now["state"] in ("running", "done"), "it is %s" % now["state"])
    why = json.dumps(now.get("moves")) + (now.get("reason") or "")
    check("reclaim" in why, "the reason is not said: %s" % why)
    check(resumed(lab, job, epoch) == 0, "it did not start over")


def case_10_reclaims_are_no_failures(lab):
    """Many reclaims, then one real crash, failure limit 3: still running, failures = 1."""
    mark = os.path.join(lab.dir, "out", "crash-now")
    # It crashes once, at a step that its own counter file has not seen before.
    script = ("s=0; [ -f $RECLAIM_CHECKPOINT_DIR/s ] && s=$(cat $RECLAIM_CHECKPOINT_DIR/s); "
              "save() { echo $s > $RECLAIM_CHECKPOINT_DIR/.s && "
              "mv $RECLAIM_CHECKPOINT_DIR/.s $RECLAIM_CHECKPOINT_DIR/s; }; "
              "trap 'save; exit 85' TERM; "
              "while :; do s=$((s+1)); echo step $s x; save; "
              "[ $s -ge 200 ] && [ ! -e $RECLAIM_CHECKPOINT_DIR/crashed ] && "
              "{ : > $RECLAIM_CHECKPOINT_DIR/crashed; sync; sleep 1; kill -SEGV $$; }; "
              "sleep 0.05; done")
    job = lab.submit(["sh", "-c", script], name="many", extra={"failure_limit": 3})
    lab.wait_state(job, "running")
    reclaims = 0
    while reclaims < 8 and lab.last_step(job) < 190:
        j = lab.wait_state(job, "running")
        lab.owner(j["node"], "back", "--in", "5s")
        lab.owner(j["node"], "lend")
        epoch = number(j["epoch"])
        wait_for("next incarnation", lambda: number(lab.job(job)["epoch"]) > epoch, 20)
        reclaims += 1
    check(reclaims >= 5, "only %d reclaims" % reclaims)
    wait_for("the crash", lambda: number(lab.job(job)["failures"]) == 1, 60)
    now = lab.wait_state(job, "running")
    check(number(now["failures"]) == 1, "failures %s" % now["failures"])
    check(number(now["reclaims"]) == reclaims, "%s reclaims were booked, %d happened" % (
        now["reclaims"], reclaims))


def case_11_free_is_proven(lab):
    """A process that stays: the machine is not said to be free while one exists."""
    job = lab.submit(["sh", "-c", "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM HUP; "
                      "while :; do sleep 0.1; done' & while :; do echo alive; sleep 0.1; done"],
                     name="stays")
    j = lab.wait_state(job, "running")
    node = j["node"]
    wait_for("its processes", lambda: len(lab.guests_left(node)) >= 2, 10)
    back = lab.start_owner(node, "back", "--in", "2s")
    while back.poll() is None:
        # Looked at in this order, so that a process seen after the word "free" is a lie.
        state = lab.status(node)["state"]
        left = lab.guests_left(node)
        check(not (state in ("free", "owned") and left), "said %s with %s left" % (state, left))
        time.sleep(0.02)
    check(back.returncode == 0, "back failed: %s" % back.stdout.read())
    check(not lab.guests_left(node), "left: %s" % lab.guests_left(node))


def case_12_slow_save(lab):
    """A save that takes most of the window: no early kill, and released when it is saved."""
    job = lab.submit(train(4000, "--every", "0", "--pace", "20ms", "--save-delay", "6s"),
                     name="slow")
    j = lab.wait_state(job, "running")
    lab.wait_step(job, 20)
    start = time.monotonic()
    lab.owner(j["node"], "back", "--in", "14s")
    took = time.monotonic() - start
    epoch = number(j["epoch"])
    moved_on(lab, job, epoch)
    check(resumed(lab, job, epoch) == last_of(lab, job, epoch), "steps were redone")
    check(6 <= took < 13.5, "the machine was free after %.1f s" % took)


def case_13_cancelled(lab):
    """The owner changes their mind at T/2: the job goes on in place, no step lost."""
    job = lab.submit(train(4000, "--every", "0", "--pace", "20ms", "--on-notice", "stay",
                           "--save-delay", "5s"), name="mind")
    j = lab.wait_state(job, "running")
    lab.wait_step(job, 20)
    back = lab.start_owner(j["node"], "back", "--in", "8s")
    wait_for("notice", lambda: lab.ask(j["node"])["state"] == "notice", 5)
    half = time.monotonic() + 4
    while time.monotonic() < half:  # the owner thinks about it for half the window
        check(back.poll() is None, "back ended early: %s" % back.returncode)
        time.sleep(0.1)
    lab.owner(j["node"], "back", "--cancel")
    back.wait(timeout=10)
    lab.wait_step(job, lab.last_step(job) + 20)
    check(not later(lab, job, number(j["epoch"])), "it did not go on in place")
    check(lab.ask(j["node"])["state"] == "lent", "not lent on")
    check(number(lab.job(job)["failures"]) == 0, "counted as a failure")


def case_13_no_destination(lab):
    """Nowhere to go: the machine is free all the same, and nothing is lost when one comes."""
    for m in lab.machines[1:]:
        lab.owner(m, "back", "--now")
    job = lab.submit(train(4000, "--every", "0", "--pace", "20ms"), name="nowhere")
    j = lab.wait_state(job, "running")
    check(j["node"] == lab.machines[0], "it runs on %s" % j["node"])
    lab.wait_step(job, 20)
    lab.owner(j["node"], "back", "--in", "5s")
    epoch = number(j["epoch"])
    check(not lab.guests_left(j["node"]), "guest processes are left")
    lab.owner(j["node"], "lend")
    moved_on(lab, job, epoch)
    check(resumed(lab, job, epoch) == last_of(lab, job, epoch), "steps were redone")
    check(number(lab.job(job)["failures"]) == 0, "counted as a failure")


def case_14_no_room_to_restore(lab):
    """The restore fails at the destination for want of room: elsewhere, from the same image."""
    if os.geteuid() != 0:
        raise Skip("a full disk for one folder needs root")
    job = lab.submit(["train", "--width", "128", "--layers", "3", "--steps", "4000", "--every", "0",
                      "--pace", "60ms"], name="no-room")
    j = lab.wait_state(job, "running")
    lab.wait_step(job, 20)
    epoch = number(j["epoch"])
    back = lab.start_owner(j["node"], "back", "--in", "20s")
    second = wait_for("a destination", lambda: next(
        (g["to"] for g in lab.ask(j["node"]).get("guests", []) if g.get("to")), None), 15, 0.01)
    # The program fits, its checkpoint does not.
    folder = os.path.join(lab.map["machines"][second]["state"], "jobs", job)
    os.makedirs(folder, exist_ok=True)
    room = os.path.getsize(lab.train) + (1 << 20)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%d" % room, "tmpfs", folder], check=True)
    try:
        check(back.wait(timeout=40) == 0, "back: %s" % back.stdout.read())
        third = [m for m in lab.machines if m not in (j["node"], second)]
        now = wait_for("it runs on a third machine", lambda: (
            lambda n: n["state"] == "running" and n["node"] in third and n)(lab.job(job)), 40)
        check(number(now["failures"]) == 0, "counted as a failure")
        tried, other = now["moves"][-2:]
        check(tried["to"] == second and other["cause"] == "not-started" and other["from"] == second,
              "the first destination was not tried: %s" % now["moves"])
        check(tried["image"] == other["image"], "another image: %s" % now["moves"])
        moved_on(lab, job, epoch)
        check(later(lab, job, epoch)[0]["epoch"] == number(now["epoch"]), "it computed in between")
        check(resumed(lab, job, epoch) == last_of(lab, job, epoch), "steps were redone")
    finally:
        lab.admin("cancel", job, ok=False)
        wait_for("the job is over", lambda: final(lab.job(job)["state"]))
        subprocess.run(["umount", "-l", folder], check=True)


def case_17_destination_reclaimed(lab):
    """The destination is itself taken back while it receives or restores: a third machine."""
    job = lab.submit(["train", "--width", "128", "--layers", "3", "--steps", "4000", "--every", "0",
                      "--pace", "60ms"], name="twice")
    j = lab.wait_state(job, "running")
    lab.wait_step(job, 20)
    epoch = number(j["epoch"])
    back = lab.start_owner(j["node"], "back", "--in", "20s")
    second = wait_for("a destination", lambda: next(
        (g["to"] for g in lab.ask(j["node"]).get("guests", []) if g.get("to")), None), 15, 0.01)
    back2 = lab.start_owner(second, "back", "--now")
    check(back2.wait(timeout=30) == 0, "second back: %s" % back2.stdout.read())
    check(back.wait(timeout=40) == 0, "back: %s" % back.stdout.read())
    third = [m for m in lab.machines if m not in (j["node"], second)]
    now = wait_for("it runs on a third machine", lambda: (
        lambda n: n["state"] == "running" and n["node"] in third and n)(lab.job(job)), 40)
    check(number(now["failures"]) == 0, "counted as a failure")
    moved_on(lab, job, epoch)
    check(resumed(lab, job, epoch) == last_of(lab, job, epoch), "steps were redone")


def case_18_pause_survives(lab):
    """reclaim pause, then agent and coordinator restart: still paused, nothing placed."""
    for m in lab.machines:
        lab.owner(m, "pause")
    for m in lab.machines:
        lab.do(do="crash", what="agent", machines=[m])
    lab.do(do="crash", what="coordinator")
    lab.do(do="restart", what="coordinator")
    for m in lab.machines:
        lab.do(do="restart", what="agent", machines=[m])
    for m in lab.machines:
        wait_for("%s answers" % m, lambda: lab.owner(m, "status", ok=False).returncode == 0, 20)
        check(lab.status(m)["paused"], "%s is not paused any more" % m)
    job = wait_for("submit", lambda: submit_or_none(lab), 20)
    # Placement happens at every status: five of them go by without it.
    for m in lab.machines:
        wait_for("%s is connected" % m, lambda: lab.status(m)["coordinator_up"], 20)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        check(lab.job(job)["state"] == "queued", "placed while paused")
        time.sleep(0.1)
    lab.owner(lab.machines[0], "resume")
    lab.wait_state(job, "running", "done")
    for m in lab.machines:
        lab.owner(m, "resume")


def submit_or_none(lab):
    try:
        return lab.submit(train(200, "--pace", "10ms"), name="paused")
    except Exception:
        return None


def case_19_wait_across_moves(lab):
    """A client waits across three migrations: one terminal status, the real one."""
    job = lab.submit(["sh", "-c", "./train %s --steps 500 --every 50 --pace 20ms || exit $?; exit 7"
                      % " ".join(SMALL)], name="waits",
                     inputs=[{"path": lab.train, "to": "train", "executable": True}],
                     extra={"failure_limit": 1})
    waiter = subprocess.Popen(["reclaim", "wait", job], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    follower = subprocess.Popen(["reclaim", "logs", "-f", job], stdout=subprocess.PIPE, text=True)
    for n in range(3):
        j = lab.wait_state(job, "running")
        epoch = number(j["epoch"])
        lab.wait_step(job, 60 + 100 * n)
        lab.owner(j["node"], "back")
        lab.owner(j["node"], "lend")
        moved_on(lab, job, epoch)
        check(waiter.poll() is None, "wait ended early: %s" % waiter.returncode)
    out, _ = waiter.communicate(timeout=60)
    check(waiter.returncode == 7, "wait ended with %d: %s" % (waiter.returncode, out))
    text, _ = follower.communicate(timeout=20)
    steps = [step_of(l) for l in text.splitlines() if step_of(l)]
    check(steps == list(range(1, 501)), "forwarded output lost or repeated lines: %d lines, %d "
          "distinct" % (len(steps), len(set(steps))))
    check(number(lab.job(job)["moves_count_total"]) >= 3, "it did not move three times")


if __name__ == "__main__":
    main([case_03_shell_without_exec, case_08_commit_after_notice, case_09_before_any_checkpoint,
          case_10_reclaims_are_no_failures, case_11_free_is_proven, case_12_slow_save,
          case_13_cancelled, case_13_no_destination, case_14_no_room_to_restore,
          case_17_destination_reclaimed, case_18_pause_survives,
          case_19_wait_across_moves])
