# SPDX-License-Identifier: Apache-2.0
"""Whole-system tests run inside a campus: this starts it and speaks to it.

A test file calls main(tests): outside of a lab it runs itself inside one
(`reclaim lab shell SCENARIO -c ...`), inside it runs its functions one after
the other, each on an idle campus, and ends with 0, 1 or 77 (skipped).
Everything waits for conditions, never for time alone.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback

BUILD = os.environ.get("RECLAIM_BUILD", "build")


class Skip(Exception):
    """What this machine lacks, by name."""


class Failed(Exception):
    pass


def check(ok, what):
    if not ok:
        raise Failed(what)


def wait_for(what, fn, timeout=30.0, every=0.05):
    """Polls fn until it returns something true, which is returned."""
    end = time.monotonic() + timeout
    while True:
        got = fn()
        if got:
            return got
        if time.monotonic() > end:
            raise Failed("not within %.0f s: %s" % (timeout, what() if callable(what) else what))
        time.sleep(every)


class Lab:
    def __init__(self):
        self.dir = os.environ["LAB_DIR"]
        with open(os.path.join(self.dir, "campus.json")) as f:
            self.map = json.load(f)
        self.machines = list(self.map["machines"])
        self.train = os.path.join(self.dir, "bin", "train")

    # ---- events: as in a scenario

    def do(self, **event):
        p = subprocess.run(["reclaim", "lab", "do", json.dumps(event)], text=True,
                           capture_output=True)
        if p.returncode:
            raise Failed("%s: %s" % (event, p.stderr.strip()))

    def observed(self):
        """Every incarnation with its steps and times, as the lab saw them from outside."""
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(os.path.join(self.dir, "lab.sock"))
            s.sendall(b'{"runs": true}\n')
            text = b""
            while True:
                part = s.recv(1 << 20)
                if not part:
                    break
                text += part
        return json.loads(json.loads(text)["why"])

    # ---- people

    def owner(self, machine, *args, timeout=60, ok=True):
        """An owner's command, as that owner, without root."""
        return self._run(["on", machine, "reclaim", *args], timeout, ok)

    def start_owner(self, machine, *args):
        return subprocess.Popen(["on", machine, "reclaim", *args], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def user(self, *args, timeout=60, ok=True, name=None, **kw):
        env = dict(os.environ)
        if name:
            env["RECLAIM_IDENTITY"] = os.path.join(self.dir, "home", name)
        return self._run(["reclaim", *args], timeout, ok, env=env, **kw)

    def admin(self, *args, timeout=60, ok=True, **kw):
        env = dict(os.environ, RECLAIM_IDENTITY=self.map["admin"])
        return self._run(["reclaim", *args], timeout, ok, env=env, **kw)

    @staticmethod
    def _run(argv, timeout, ok, **kw):
        p = subprocess.run(argv, text=True, capture_output=True, timeout=timeout, **kw)
        if ok and p.returncode:
            raise Failed("%s ended with %d: %s%s" % (" ".join(argv), p.returncode, p.stdout,
                                                     p.stderr))
        return p

    # ---- machines

    def status(self, machine):
        return json.loads(self.owner(machine, "status", "--json").stdout)

    def ask(self, machine):
        """The same by the agent's socket directly: faster than a command."""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            s.connect(os.path.join(self.map["machines"][machine]["run"], "agent.sock"))
            s.sendall(b'{"v": 1, "cmd": "status"}\n')
            text = b""
            while b"\n" not in text:
                part = s.recv(65536)
                if not part:
                    break
                text += part
        return json.loads(text)

    def lend(self, *machines):
        for m in machines or self.machines:
            wait_for("%s lends" % m, lambda: self.owner(m, "lend", ok=False).returncode == 0)

    def nodes(self):
        return json.loads(self.admin("nodes", "--json").stdout)["nodes"]

    def mend(self):
        """Whatever a test left dead or cut."""
        for m in self.machines:
            if self.map["namespaces"]:
                self.do(do="restore", machines=[m])
            if self.owner(m, "status", ok=False).returncode:
                self.do(do="restart", what="agent", machines=[m])
        if self.admin("ps", ok=False).returncode:
            self.do(do="restart", what="coordinator")

    # ---- jobs

    def submit(self, command, name="job", inputs=(), results=(), extra=None, user=None):
        spec = {"name": name, "command": list(command)}
        if command[0] == "train":
            spec["command"][0] = "./train"
            inputs = [*inputs, {"path": self.train, "to": "train", "executable": True}]
        if inputs:
            spec["inputs"] = list(inputs)
        if results:
            spec["results"] = list(results)
        spec.update(extra or {})
        path = os.path.join(self.dir, "out", "%s-%d.yaml" % (name, time.monotonic_ns()))
        with open(path, "w") as f:
            json.dump(spec, f)
        return json.loads(self.user("submit", "--json", path, name=user).stdout)["id"]

    def job(self, job):
        return json.loads(self.admin("show", "--json", job).stdout)

    def jobs(self):
        return json.loads(self.admin("ps", "--all", "--json").stdout)["jobs"]

    def cancel_all(self):
        for j in self.jobs():
            if not final(j["state"]):
                self.admin("cancel", j["id"], ok=False)
        wait_for("all jobs over", lambda: all(final(j["state"]) for j in self.jobs()))

    def wait_state(self, job, *states, timeout=40.0):
        seen = {}

        def look():
            seen["now"] = self.job(job)
            if final(seen["now"]["state"]) and seen["now"]["state"] not in states:
                raise Failed("job %s is %s (%s), wanted %s" % (
                    job, seen["now"]["state"], seen["now"].get("reason"), "/".join(states)))
            return seen["now"]["state"] in states and seen["now"]

        return wait_for(lambda: "job %s is %s (%s), wanted %s" % (
            job, seen["now"]["state"], seen["now"].get("reason"), "/".join(states)), look, timeout)

    def wait_durable(self, job, epoch=None, timeout=40.0):
        """Its newest saved image has a commit record."""
        def look():
            j = self.job(job)
            return (j.get("durable") and j.get("durable") == j.get("saved") and
                    (epoch is None or number(j["durable_epoch"]) >= epoch) and j)
        return wait_for(lambda: "no durable image of %s: %s" % (job, self.job(job)), look, timeout)

    def logs(self, job):
        return self.admin("logs", job).stdout

    # ---- what really happens, by the guests' own files

    def runs(self, job):
        """{epoch: (machine, lines)} of the output as captured on each machine."""
        out = {}
        for m, where in self.map["machines"].items():
            top = os.path.join(where["state"], "jobs", job)
            try:
                epochs = os.listdir(top)
            except OSError:
                continue
            for e in epochs:
                try:
                    with open(os.path.join(top, e, "output.log"), errors="replace") as f:
                        out[int(e)] = (m, f.read().splitlines())
                except (OSError, ValueError):
                    pass
        return out

    def last_step(self, job):
        return max((r["last_step"] for r in self.observed() if r["job"] == job), default=0)

    def wait_step(self, job, step, timeout=40.0):
        return wait_for(lambda: "step %d of %s, now %d" % (step, job, self.last_step(job)),
                        lambda: self.last_step(job) >= step, timeout)

    def guests_left(self, machine):
        """Processes below a reclaim-shim whose folders are this machine's, by /proc."""
        parents, names, lines = {}, {}, {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/stat" % pid) as f:
                    text = f.read()
                rest = text[text.rindex(")") + 2:].split()
                if rest[0] == "Z":
                    continue
                os.readlink("/proc/%s/exe" % pid)  # none: it has given up all it had, and is ending
                parents[int(pid)] = int(rest[1])
                names[int(pid)] = text[text.index("(") + 1:text.rindex(")")]
                with open("/proc/%s/cmdline" % pid) as f:
                    lines[int(pid)] = f.read()
            except OSError:
                pass
        where = self.map["machines"][machine]
        shims = {p for p, n in names.items() if n.startswith("reclaim-shim") and
                 (where["state"] in lines.get(p, "") or where["run"] in lines.get(p, ""))}
        left = []
        for p in parents:
            at = parents[p]
            while at > 1 and at not in shims:
                at = parents.get(at, 0)
            if at in shims:
                left.append(p)
        return left


def sanitizer_reports(top):
    """First lines of what AddressSanitizer and its like wrote into the programs' logs below top."""
    found = []
    for folder, _, names in os.walk(top):
        for n in names:
            if not n.endswith(".log"):
                continue
            try:
                with open(os.path.join(folder, n), errors="replace") as f:
                    found += ["%s: %s" % (n, line.strip()) for line in f
                              if "Sanitizer:" in line or "runtime error:" in line]
            except OSError:
                pass
    return found


def need_torch():
    p = subprocess.run(["/usr/bin/python3", "-c", "import torch.distributed as d; "
                        "raise SystemExit(not d.is_available())"], check=False, capture_output=True)
    if p.returncode:
        raise Skip("python3-torch with torch.distributed is not here")


def number(value):
    return int(value or 0)


def final(state):
    return state in ("done", "failed", "cancelled")


def step_of(line):
    if line.startswith("step "):
        try:
            return int(line.split()[1])
        except (IndexError, ValueError):
            return None
    return None


def reference(args, folder):
    """Digest of an uninterrupted run with these arguments of train."""
    os.makedirs(folder, exist_ok=True)
    env = dict(os.environ, RECLAIM_CHECKPOINT_DIR=os.path.join(folder, "ckpt"))
    env.pop("RECLAIM_NOTICE_FILE", None)
    args = [a for i, a in enumerate(args) if a != "--pace" and (i == 0 or args[i - 1] != "--pace")]
    train = os.path.join(os.environ["LAB_DIR"], "bin", "train")
    subprocess.run([train, *args], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(folder, "result.json")) as f:
        return json.load(f)["digest"]


def main(tests, scenario=None, loopback=False, need_root=False):
    if "LAB_DIR" not in os.environ:
        if need_root and os.geteuid() != 0:
            print("skipped: needs root")
            sys.exit(77)
        here = os.path.dirname(os.path.abspath(__file__))
        scenario = scenario or os.path.join(here, "campus.yaml")
        reclaim = os.path.abspath(os.path.join(BUILD, "src", "cli", "reclaim"))
        keep = os.path.abspath(os.path.join(
            BUILD, "logs", os.path.splitext(os.path.basename(sys.argv[0]))[0]))
        argv = [reclaim, "lab", "shell", "-q", "--keep", keep]
        argv += ["--loopback"] if loopback else []
        script = " ".join(["exec", sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]])
        os.execv(reclaim, [*argv, scenario, "-c", script])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    wanted = sys.argv[1:]
    lab, bad, skipped = Lab(), 0, 0
    chosen = [t for t in tests if not wanted or t.__name__ in wanted]
    for t in chosen:
        start = time.monotonic()
        try:
            lab.lend()
            t(lab)
            print("ok      %-40s %5.1f s" % (t.__name__, time.monotonic() - start), flush=True)
        except Skip as e:
            skipped += 1
            print("skipped %-40s %s" % (t.__name__, e), flush=True)
        except Exception as e:  # a test that breaks is a test that fails
            bad += 1
            print("FAILED  %-40s %s" % (t.__name__, e), flush=True)
            if not isinstance(e, Failed):
                traceback.print_exc()
        try:
            reports = sanitizer_reports(lab.dir)
            check(not reports, "after %s: %s" % (t.__name__, reports[:3]))
            lab.mend()
            lab.cancel_all()
        except Exception as e:
            bad += 1
            print("FAILED  clearing up after %s: %s" % (t.__name__, e), flush=True)
            break
    print("%d passed, %d failed, %d skipped" % (len(chosen) - bad - skipped, bad, skipped))
    sys.exit(1 if bad else 77 if skipped == len(chosen) else 0)
