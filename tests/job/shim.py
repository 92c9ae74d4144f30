# SPDX-License-Identifier: Apache-2.0
"""A reclaim-shim under test: starts one, speaks its line JSON, waits for events.

Used by the tests beside it and by bench/guest. Waiting is always for an event or a
state of the kernel, with a time limit; nothing here sleeps to be on time."""
import atexit
import itertools
import json
import os
import pathlib
import select
import shutil
import socket
import subprocess
import tempfile
import time

BUILD = pathlib.Path(os.environ.get("BUILD_DIR", "build")).resolve()
SHIM = BUILD / "src/job/reclaim-shim"
ROOT = os.geteuid() == 0
NS = 1_000_000_000


def boot_ns():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Timeout(Exception):
    pass


CGROUP_PARENT = f"reclaim-test-job-{os.getpid()}"


def remove_groups(children=False):
    """The cgroups above those of this test's guests, once all shims are closed. One that is
    left of a guest is an error, unless the caller wants those gone as well."""
    for parent in pathlib.Path("/sys/fs/cgroup").glob(f"*/{CGROUP_PARENT}"):
        for child in parent.iterdir() if children else ():
            if child.is_dir():
                child.rmdir()
        parent.rmdir()


class Shim:
    """One shim and the folders of one incarnation."""

    numbers = itertools.count(1)  # next() is atomic: tests run in threads
    alive = []

    def __init__(self, base=None, job=None, epoch=1):
        self.own_base = base is None
        self.base = pathlib.Path(base or tempfile.mkdtemp(prefix="reclaim-job-"))
        self.base.chmod(0o755)
        self.job = job or f"job-{os.getpid()}{next(Shim.numbers)}"
        self.epoch = epoch
        self.dir = self.base / "jobs" / self.job / str(epoch)
        self.dir.mkdir(parents=True, exist_ok=True)
        (self.base / "run").mkdir(exist_ok=True)
        self.socket = self.base / "run" / f"{self.job}.{epoch}.sock"
        self.log = self.dir / "output.log"
        self.state_file = self.dir / "shim.json"
        self.events = []
        self.seen = {}  # kind: events of that kind before this index were waited for
        self.buffer = b""
        self.conn = None
        self.next_id = 0
        self.shim_log = open(self.dir / "shim.log", "ab")
        self.process = subprocess.Popen([SHIM, "--socket", self.socket], stderr=self.shim_log,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        start_new_session=True)
        Shim.alive.append(self)
        self.connect()

    # -- words --

    def connect(self, timeout=10):
        end = time.monotonic() + timeout
        while True:
            conn = socket.socket(socket.AF_UNIX)
            try:
                conn.connect(str(self.socket))
                break
            except OSError:
                conn.close()
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                select.select([], [], [], 0.001)
        self.conn = conn
        self.buffer = b""
        return self.wait("hello", timeout)

    def disconnect(self):
        self.conn.close()
        self.conn = None

    def send(self, kind, **fields):
        self.next_id += 1
        msg = {"v": "1", "type": kind, "id": str(self.next_id), **fields}
        self.conn.sendall(json.dumps(msg).encode() + b"\n")
        return str(self.next_id)

    def read(self, timeout):
        """The next event, from the socket."""
        end = time.monotonic() + timeout
        while b"\n" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.conn], [], [], left)[0]:
                raise Timeout(f"no event; the last were {self.events[-5:]}\n" + self.shim_text())
            data = self.conn.recv(1 << 20)
            if not data:
                raise EOFError("the shim closed; " + self.shim_text())
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        event = json.loads(line)
        event["_at"] = time.monotonic()
        self.events.append(event)
        return event

    def wait(self, kind, timeout=20, **want):
        """The next such event, also if it came before we asked."""
        end = time.monotonic() + timeout
        at = self.seen.get(kind, 0)
        while True:
            while at < len(self.events):
                event = self.events[at]
                at += 1
                if event["type"] == kind and all(event.get(k) == v for k, v in want.items()):
                    self.seen[kind] = at
                    return event
            self.read(end - time.monotonic())

    def call(self, kind, **fields):
        ident = self.send(kind, **fields)
        return self.wait("reply", id=ident)

    def must(self, kind, **fields):
        reply = self.call(kind, **fields)
        assert "error" not in reply, reply
        return reply

    def hello(self):
        ident = self.send("status")
        return self.wait("hello", id=ident)

    # -- life --

    def start(self, command=None, script=None, spec=None, wait=True, **start):
        spec = dict(spec or {})
        if command is not None:
            spec["command"] = command if isinstance(command, list) else ["/bin/sh", "-c", command]
        if script is not None:
            spec["script"] = script
        msg = {"job": self.job, "epoch": str(self.epoch), "spec": spec, "dir": str(self.dir),
               "log": str(self.log), "state_file": str(self.state_file), "run_dir": str(self.base / "run")}
        if ROOT:
            msg["cgroup_parent"] = CGROUP_PARENT
        msg.update(start)
        self.must("start", **msg)
        if wait:
            self.wait("state", state="running")
        return self

    def notice(self, window_s, at=None):
        self.deadline = (at or time.monotonic()) + window_s
        deadline_ns = boot_ns() + int(window_s * NS)
        self.deadline_boot = deadline_ns / NS
        self.must("notice", notice_id="n1", reason="owner", deadline_ns=str(deadline_ns),
                  window_ns=str(int(window_s * NS)))

    def exited(self, timeout=30):
        for event in self.events:
            if event["type"] == "exited":
                return event
        return self.wait("exited", timeout)

    def output(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def shim_text(self):
        return (self.dir / "shim.log").read_text(errors="replace")

    def wait_output(self, text, timeout=20):
        """Until the guest has printed text."""
        end = time.monotonic() + timeout
        while text not in self.output():
            if time.monotonic() > end:
                raise Timeout(f"no {text!r} in {self.output()!r}\n{self.shim_text()}")
            select.select([], [], [], 0.005)

    def close(self):
        try:
            if self.conn is None and self.process.poll() is None:
                self.connect()
            if self.process.poll() is None:
                self.send("kill", reason="test over")
                self.send("close")
                end = time.monotonic() + 10
                while self.process.poll() is None and time.monotonic() < end:
                    hello = self.hello()
                    if hello["state"] in ("ended", "waiting"):
                        self.send("close")
                        self.process.wait(10)
        except (EOFError, OSError):
            pass
        if self.process.poll() is None:
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.conn:
            self.conn.close()
        self.shim_log.close()
        if self.own_base:
            shutil.rmtree(self.base, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


@atexit.register
def no_shim_outlives_the_test():
    for shim in Shim.alive:
        if shim.process.poll() is None:
            shim.process.kill()
            shim.process.wait()


def marked_pids(job):
    """Live processes with the job's mark in their environment, seen from outside."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            env = pathlib.Path("/proc", entry, "environ").read_bytes()
            state = pathlib.Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if f"RECLAIM_JOB_ID={job}".encode() in env.split(b"\0") and state not in "ZX":
            found.append(int(entry))
    return found
