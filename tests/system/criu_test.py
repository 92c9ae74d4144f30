#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that know nothing of any of this, saved by CRIU and moved between two machines of the
campus: a program of several threads and a shell pipeline. Their output is the uninterrupted one."""
import os
import re
import subprocess
import sys
import tempfile

from labkit import BUILD, Skip, check, main, number, wait_for

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

THREADS = """
import threading, time
lock, total = threading.Lock(), 0
def worker():
    global total
    while True:
        time.sleep(0.003)
        with lock:
            total += 1
for _ in range(4):
    threading.Thread(target=worker, daemon=True).start()
k = 0
while True:
    time.sleep(0.02)
    k += 1
    assert all(t.is_alive() for t in threading.enumerate()) and threading.active_count() == 5
    print("line", k, flush=True)
"""
PIPELINE = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done | grep --line-buffered line | cat"


def need_criu():
    if "RECLAIM_CRIU" not in os.environ:
        raise Skip("CRIU 4.2 or later is not here and cannot be built (packaging/build-criu.sh)")


def lines(lab, job):
    return [int(n) for n in re.findall(r"^line (\d+)$", lab.logs(job), re.M)]


def moves(lab, command, inputs=()):
    need_criu()
    job = lab.submit(command, name="unmodified", inputs=inputs, extra={"checkpoint": {"driver": "criu"}})
    for _ in range(3):
        j = lab.wait_state(job, "running")
        epoch, node = number(j["epoch"]), j["node"]
        have = len(lines(lab, job))
        wait_for("30 more lines", lambda: len(lines(lab, job)) > have + 30)
        lab.owner(node, "back", "--in", "20s")
        wait_for(lambda: "it goes on elsewhere: %s" % lab.job(job).get("reason"),
                 lambda: number(lab.job(job)["epoch"]) > epoch and lab.job(job)["state"] == "running", 40)
        j = lab.job(job)
        check(number(j["epoch"]) == epoch + 1 and j["node"] != node, "it is on %s" % j["node"])
        have = len(lines(lab, job))
        wait_for("lines after the move", lambda: len(lines(lab, job)) > have + 10)
        lab.lend(node)
    got = lines(lab, job)
    check(got == list(range(1, len(got) + 1)), "lines are lost or doubled near %s" % [
        (a, b) for a, b in zip(got, got[1:]) if b != a + 1][:3])


def a_program_of_five_threads(lab):
    path = os.path.join(lab.dir, "out", "threads.py")
    with open(path, "w") as f:
        f.write(THREADS)
    moves(lab, ["/usr/bin/python3", "-u", "threads.py"], [{"path": path, "to": "threads.py"}])


def a_shell_pipeline(lab):
    moves(lab, ["sh", "-c", PIPELINE])


def what_cannot_be_saved_is_refused(lab):
    """By name, before it has run anywhere."""
    need_criu()
    p = lab.user("submit", "--json", bad_job(lab), ok=False)
    said = p.stdout + p.stderr
    check(p.returncode != 0 and "cannot be saved from outside" in said, "accepted, or not by name: %s" % said)


def bad_job(lab):
    path = os.path.join(lab.dir, "out", "gang-criu.yaml")
    with open(path, "w") as f:
        f.write('{"name": "x", "command": ["sleep", "9"], "slots": {"ranks": 2}, "checkpoint": {"driver": "criu"}}')
    return path


if __name__ == "__main__":
    if "LAB_DIR" not in os.environ:
        p = subprocess.run([os.path.join(TOP, "packaging/build-criu.sh"), "--check",
                            os.path.join(BUILD, "criu")], capture_output=True, text=True, check=False)
        if p.returncode == 0:
            os.environ["RECLAIM_CRIU"] = os.path.abspath(p.stdout.strip())
    main([a_program_of_five_threads, a_shell_pipeline, what_cannot_be_saved_is_refused], need_root=True,
         scenario=os.path.join(os.path.dirname(os.path.abspath(__file__)), "gang.yaml"))
