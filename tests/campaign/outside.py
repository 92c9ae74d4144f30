# SPDX-License-Identifier: Apache-2.0
"""What the campaign looks at from outside, all the time and after each round.

Watcher, a thread:
  - no guest runs past its lease: each guest's first process (identified by its start
    time), against the end of the lease that its shim last said it had. Past that it
    must be gone or stand still, by its cgroup.
  - never do two incarnations commit: once a job's epoch was seen, no image of an
    older one becomes its durable one, and epochs only grow.

Ground: what is on a machine beyond the guests that its agent knows of.
left_behind(): what is still there once the whole lab is gone.
"""
import collections
import http.client
import json
import os
import socket
import ssl
import subprocess
import threading
import time

# A shim stops its guest a quarter of a second before the end; a machine that is too busy
# to wake it in twice that is not what is tested here.
LATE_NS = 250_000_000


def boot_ns():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def process(pid):
    """(start time, state), or None."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            text = f.read()
    except OSError:
        return None
    rest = text[text.rindex(")") + 2:].split()
    return rest[19], rest[0]


def frozen(cgroup):
    for top in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        try:
            with open("%s/%s/cgroup.events" % (top, cgroup.strip("/"))) as f:
                return "frozen 1" in f.read()
        except OSError:
            pass
    return False


def hello(path):
    """What a shim says of itself on a new connection, or None."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(1)
        try:
            s.connect(path)
            text = b""
            while b"\n" not in text:
                part = s.recv(65536)
                if not part:
                    return None
                text += part
            return json.loads(text.split(b"\n")[0])
        except (OSError, ValueError):
            return None


class Guest:
    def __init__(self, path):
        self.path, self.pid, self.start, self.lease_ns, self.cgroup = path, 0, None, 0, ""

    def update(self):
        h = hello(self.path)
        if not h:
            return
        pid = int(h.get("guest_pid") or 0)
        p = process(pid) if pid else None
        if p and pid != self.pid:
            self.pid, self.start = pid, p[0]
        self.lease_ns = int(h.get("lease_deadline_ns") or 0)
        self.cgroup = h.get("cgroup") or self.cgroup

    def runs(self):
        p = process(self.pid) if self.pid else None
        return bool(p and p[0] == self.start and p[1] not in "ZXTt" and not frozen(self.cgroup))


class Watcher(threading.Thread):
    def __init__(self, lab):
        super().__init__(daemon=True)
        self.lab, self.faults, self.over = lab, [], threading.Event()
        self.guests, self.jobs = {}, {}
        self.leases_ended, self.looks = set(), 0
        home = lab.map["admin"]
        self.tls = ssl.create_default_context(cafile=home + "/ca.pem")
        self.tls.check_hostname = False
        self.tls.load_cert_chain(home + "/cert.pem", home + "/key.pem")
        self.conn = None

    def fault(self, text):
        if text not in self.faults:
            self.faults.append(text)

    def take(self):
        """Faults since the last call."""
        got, self.faults = self.faults, []
        return got

    def run(self):
        while not self.over.wait(0.1):
            try:
                self.leases()
                self.commits()
            except Exception as e:  # a watcher that dies must not look like one that saw nothing
                self.fault("the watcher broke: %r" % e)

    # ---- leases

    def leases(self):
        for m, where in self.lab.map["machines"].items():
            folder = os.path.join(where["run"], "shim")
            try:
                names = [n for n in os.listdir(folder) if n.endswith(".sock")]
            except OSError:
                names = []
            for n in names:
                self.guests.setdefault((m, n[:-5]), Guest(os.path.join(folder, n)))
        for key, g in list(self.guests.items()):
            g.update()
            p = process(g.pid) if g.pid else None
            if not os.path.exists(g.path) and not (p and p[0] == g.start):
                del self.guests[key]
                continue
            self.looks += 1
            if not g.lease_ns or boot_ns() < g.lease_ns + LATE_NS:
                continue
            self.leases_ended.add(key)
            if not g.runs():
                continue
            g.update()  # renewed meanwhile?
            late = boot_ns() - g.lease_ns
            if late >= LATE_NS and g.runs():
                self.fault("%s on %s runs %.0f ms past its lease" % (key[1], key[0], late / 1e6))

    # ---- commits

    def get(self):
        host, port = self.lab.map["coordinator"].split(":")
        try:
            if not self.conn:
                self.conn = http.client.HTTPSConnection(host, int(port), timeout=5,
                                                        context=self.tls)
            self.conn.request("GET", "/v1/jobs?all=1")
            return json.loads(self.conn.getresponse().read())["jobs"]
        except (OSError, ValueError, KeyError, http.client.HTTPException):
            if self.conn:
                self.conn.close()
            self.conn = None
            return []

    def commits(self):
        for j in self.get():
            epoch, durable = int(j["epoch"] or 0), j.get("durable")
            of = int(j.get("durable_epoch") or 0)
            before = self.jobs.get(j["id"])
            if before:
                if epoch < before[0]:
                    self.fault("job %s went back from epoch %d to %d" % (j["id"], before[0], epoch))
                if durable != before[1] and of < before[0]:
                    self.fault("job %s: an image of epoch %d became durable after epoch %d had "
                               "begun" % (j["id"], of, before[0]))
                if before[1] and not durable:
                    self.fault("job %s lost its durable image" % j["id"])
            self.jobs[j["id"]] = (epoch, durable)


# ---- what is left

def folders(top):
    found = []
    for base in ("/sys/fs/cgroup/unified", *("/sys/fs/cgroup/" + c for c in os.listdir(
            "/sys/fs/cgroup"))):
        at = os.path.join(base, "reclaim", top)
        if os.path.isdir(at):
            found += [os.path.join(at, d) for d in os.listdir(at)
                      if os.path.isdir(os.path.join(at, d))]
    return set(found)


def lines(netns, *words):
    return subprocess.run(["nsenter", "--net=" + netns, *words], text=True,
                          capture_output=True).stdout.splitlines()


def mounts():
    found = collections.Counter()
    with open("/proc/self/mounts") as f:
        for line in f:
            found[line.split()[1]] += 1
    return found


def pins(where):
    found = set()
    for folder, _, names in os.walk(os.path.join(where["run"], "bpf")):
        found |= {os.path.join(folder, n) for n in names}
    return found


def shims(where):
    """Job and epoch of every supervisor of this machine that there is."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid) as f:
                words = f.read().split("\0")
        except OSError:
            continue
        if words and words[0].endswith("reclaim-shim"):
            found |= {os.path.basename(w)[:-5] for w in words
                      if w.startswith(where["run"]) and w.endswith(".sock")}
    return found


class Ground:
    """The machines as they were before there was any guest."""
    def __init__(self, lab):
        self.lab = lab
        self.mounts = mounts()
        self.pins = {m: pins(w) for m, w in lab.map["machines"].items()}

    def left(self):
        """What no guest that an agent knows of accounts for: [] is what must come soon."""
        found = []
        for p, n in mounts().items():
            if n > self.mounts[p]:
                found.append("mount " + p)
        for m, where in self.lab.map["machines"].items():
            try:
                guests = self.lab.ask(m).get("guests") or []
            except (OSError, ValueError):
                return ["%s does not answer" % m]
            known = {"%s.%s" % (g["job"], g["epoch"]) for g in guests}
            found += ["%s: supervisor of %s" % (m, s) for s in shims(where) - known]
            run = os.path.join(where["run"], "shim")
            if os.path.isdir(run):
                found += ["%s: %s" % (m, n) for n in os.listdir(run)
                          if n.removesuffix(".sock") not in known]
            found += ["cgroup " + f for f in folders(where["cgroup"])
                      if not any(k in f for k in known)]
            found += ["pin " + p for p in pins(where) - self.pins[m]
                      if not os.path.basename(p).startswith("cc_")]  # once per kernel, by the first
            if not self.lab.map["namespaces"]:
                continue
            links = [l.split(": ")[1].split("@")[0] for l in lines(where["netns"], "ip", "-o", "link")]
            veths = [l for l in links if l.startswith("rg")]
            if len(veths) > len(known):
                found.append("%s: %d links of guests, %d guests" % (m, len(veths), len(known)))
            leaves = [l for l in lines(where["netns"], "tc", "qdisc", "show", "dev", "eth0")
                      if " parent 5243:1" in l and " parent 5243:10 " not in l]
            if len(leaves) > len(known):
                found.append("%s: %d queues of guests, %d guests: %s" % (
                    m, len(leaves), len(known), leaves))
        return found


def left_behind(lab_id):
    """Of this lab; others may be running on the machine."""
    left = []
    for folder, dirs, _ in os.walk("/sys/fs/cgroup"):
        left += [os.path.join(folder, d) for d in dirs if d.startswith("lab-%s-" % lab_id)]
    left += ["/tmp/" + d for d in os.listdir("/tmp") if d == "rlab-" + lab_id]
    with open("/proc/self/mounts") as f:
        left += [l.split()[1] for l in f if "rlab-" + lab_id in l]
    return left
