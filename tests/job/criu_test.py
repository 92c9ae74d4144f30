#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Driver criu: unmodified programs saved from outside and restored in a sandbox of another
incarnation, at random moments (seed printed). usage: criu_test.py [ROUNDS] [SEED]

Each program counts by itself and prints what it counted; after any number of moves its
output is the uninterrupted one: no line lost, none twice."""
import os
import pathlib
import random
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from shim import BUILD, ROOT, Shim, marked_pids  # noqa: E402

THREADS = """
import threading, time
lock, n = threading.Lock(), 0
go = threading.Event()
def worker(k):
    global n
    while True:
        time.sleep(0.003)
        with lock:
            n += 1
for k in range(4):
    threading.Thread(target=worker, args=(k,), daemon=True).start()
k = 0
while True:
    time.sleep(0.004)
    k += 1
    print("line", k, flush=True)
"""
# Both ends of a TCP connection, a pipe and an open file that is appended to.
SOCKETS = """
import os, socket, sys, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
log = open("kept.txt", "w+")
if os.fork() == 0:
    c = socket.create_connection(s.getsockname())
    k = 0
    while True:
        c.sendall(b"%d\\n" % k)
        assert c.recv(1) == b"!"
        k += 1
        time.sleep(0.003)
a, _ = s.accept()
f = a.makefile("rb")
want = 0
while True:
    got = int(f.readline())
    assert got == want, (got, want)
    want += 1
    print("line", want, file=log, flush=True)
    print("line", want, flush=True)
    a.sendall(b"!")
"""
PIPELINE = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.004; done | grep --line-buffered line | cat"

PROGRAMS = {
    "threads": ("exec /usr/bin/python3 -u p.py", THREADS),
    "sockets": ("exec /usr/bin/python3 -u p.py", SOCKETS),
    "pipeline": (PIPELINE, ""),
}


def begin(shim, name, **start):
    command, text = PROGRAMS[name]
    work = shim.dir / "work"
    work.mkdir(parents=True, exist_ok=True)
    if not start.get("restore_dir"):
        (work / "p.py").write_text(text)
    shim.start(command, spec={"checkpoint": {"driver": "criu"}}, criu=str(BUILD / "criu/criu"),
               own_network=True, **start)


def count(shim):
    lines = re.findall(r"line (\d+)\n", shim.output())
    return int(lines[-1]) if lines else 0


def wait_more(shim, n, timeout=20):
    """Until the guest has counted n further."""
    goal, end = count(shim) + n, time.monotonic() + timeout
    while count(shim) < goal:
        if time.monotonic() > end:
            raise AssertionError(f"stands at {count(shim)}, wants {goal}\n{shim.output()[-500:]}\n{shim.shim_text()}")
        select.select([], [], [], 0.003)


def check_output(shim):
    lines = [int(x) for x in re.findall(r"line (\d+)\n", shim.output())]
    assert lines == list(range(1, len(lines) + 1)), f"lost or doubled near {lines[-5:]}"
    rest = re.sub(r"line \d+\n", "", shim.output())
    assert not rest, rest


def move(shim, name):
    """Dump, next incarnation, restore. Returns it and how long it stood still."""
    began = time.monotonic()
    shim.must("dump", dir=str(shim.dir / "work/.reclaim-dump"), leave_frozen=True)
    dumped = shim.wait("dumped")
    if "error" in dumped:
        log = shim.dir / "criu-dump.log"
        raise AssertionError(dumped["error"] + (log.read_text()[-1500:] if log.exists() else ""))
    fresh = Shim(base=shim.base, job=shim.job, epoch=shim.epoch + 1)
    subprocess.run(["cp", "-a", shim.dir / "work", fresh.dir / "work"], check=True)
    shutil.copy(shim.log, fresh.log)
    begin(fresh, name, restore_dir=str(fresh.dir / "work/.reclaim-dump"))
    took = time.monotonic() - began
    shim.must("kill", reason="moved")
    assert shim.exited()["end"] == "killed"
    shim.close()
    shutil.rmtree(shim.dir)
    return fresh, took


def random_moves(rounds, rng):
    took = []
    for name in PROGRAMS:
        base = tempfile.mkdtemp(prefix="reclaim-job-")
        shim = Shim(base=base)
        try:
            begin(shim, name)
            wait_more(shim, 5)
            for i in range(rounds):
                end = time.monotonic() + rng.random() * 0.05
                while time.monotonic() < end:
                    select.select([], [], [], 0.001)
                shim, s = move(shim, name)
                took.append(s)
                wait_more(shim, 3)
            check_output(shim)
        finally:
            shim.close()
            shutil.rmtree(base, ignore_errors=True)
        print(f"ok   {name}: {rounds} moves", flush=True)
    took.sort()
    print(f"stood still: median {took[len(took) // 2] * 1000:.0f} ms, max {took[-1] * 1000:.0f} ms")


def failed_dump_leaves_it_running():
    """An inotify watch on a file that is gone cannot be saved: the job runs on."""
    with Shim() as s:
        work = s.dir / "work"
        work.mkdir(parents=True)
        # A connection to outside of the sandbox: CRIU has only one end of it.
        (work / "p.py").write_text(
            "import os, socket, time\ns = socket.socket(socket.AF_UNIX)\n"
            "s.connect(os.environ['RECLAIM_SOCKET'])\nk = 0\n"
            "while True:\n time.sleep(0.01)\n k += 1\n print('line', k, flush=True)\n")
        s.start("exec /usr/bin/python3 -u p.py", spec={"checkpoint": {"driver": "criu"}},
                criu=str(BUILD / "criu/criu"))
        wait_more(s, 5)
        s.must("dump", dir=str(s.dir / "work/.reclaim-dump"), leave_frozen=True)
        dumped = s.wait("dumped")
        assert "unix" in dumped["error"], dumped
        assert not (s.dir / "work/.reclaim-dump").exists()
        hello = s.hello()
        assert hello["state"] == "running" and hello["frozen"] is False, hello
        wait_more(s, 10)
        check_output(s)
    print("ok   failed_dump_leaves_it_running")


def cancelled_after_a_dump():
    with Shim() as s:
        begin(s, "threads")
        wait_more(s, 5)
        s.notice(30)
        s.must("dump", dir=str(s.dir / "work/.reclaim-dump"), leave_frozen=True)
        assert "error" not in s.wait("dumped")
        assert s.hello()["frozen"] is True
        s.must("cancel")
        wait_more(s, 10)
        check_output(s)
    print("ok   cancelled_after_a_dump")


def deadline_during_a_dump():
    """T comes while CRIU works: the machine is free all the same."""
    with Shim() as s:
        begin(s, "sockets")
        wait_more(s, 5)
        s.notice(0.3)
        while time.monotonic() < s.deadline - 0.03:
            select.select([], [], [], 0.002)
        s.send("dump", dir=str(s.dir / "work/.reclaim-dump"), leave_frozen=True)
        event = s.exited()
        assert event["end"] == "reclaimed", event
        assert event["_at"] - s.deadline < 1, event["_at"] - s.deadline
        assert not marked_pids(s.job)
    print("ok   deadline_during_a_dump")


def damaged_image_is_not_the_jobs_fault():
    with Shim() as s:
        begin(s, "threads")
        wait_more(s, 3)
        s.must("dump", dir=str(s.dir / "work/.reclaim-dump"), leave_frozen=True)
        s.wait("dumped")
        with Shim(base=s.base, job=s.job, epoch=2) as n:
            subprocess.run(["cp", "-a", s.dir / "work", n.dir / "work"], check=True)
            next((n.dir / "work/.reclaim-dump").glob("core-*.img")).write_bytes(b"x")
            n.start("x", spec={"checkpoint": {"driver": "criu"}}, criu=str(BUILD / "criu/criu"), wait=False,
                    restore_dir=str(n.dir / "work/.reclaim-dump"), own_network=True)
            event = n.exited()
            assert event["end"] == "not_started" and "restore failed" in event["reason"], event
    print("ok   damaged_image_is_not_the_jobs_fault")


def refused_before_the_start():
    """By name: no CRIU, an image of its own, GPUs with the wrong driver."""
    cases = [({"criu": "/no/such/criu"}, {}, "/no/such/criu"),
             ({"image": "/usr"}, {}, "image of its own"),
             ({}, {"slots": {"gpus": "1"}}, "driver cuda")]
    for start, spec, text in cases:
        with Shim() as s:
            start = {"criu": str(BUILD / "criu/criu"), **start}
            s.start("true", spec={"checkpoint": {"driver": "criu"}, **spec}, wait=False, **start)
            event = s.exited()
            assert event["end"] == "not_started" and text in event["reason"], event
    print("ok   refused_before_the_start")


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(3), "big")
    if not ROOT:
        print("skipped: CRIU needs root")
        return 77
    if not (BUILD / "criu/criu").exists():
        print("skipped: no CRIU 4.2 (packaging/build-criu.sh)")
        return 77
    print("seed", seed, flush=True)
    try:
        refused_before_the_start()
        failed_dump_leaves_it_running()
        cancelled_after_a_dump()
        deadline_during_a_dump()
        damaged_image_is_not_the_jobs_fault()
        random_moves(rounds, random.Random(seed))
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        for parent in pathlib.Path("/sys/fs/cgroup").glob(f"*/reclaim-test-job-{os.getpid()}"):
            for child in parent.iterdir():
                if child.is_dir():
                    try:
                        child.rmdir()
                    except OSError as e:
                        print("left behind:", e)
            parent.rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())
