#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input: a clear error naming place and value, nothing lost, nobody crashes."""
import glob
import json
import os
import random
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time

from labkit import Skip, check, main, number, wait_for

SMALL = ["--width", "32", "--layers", "1", "--context", "16"]
SEED = random.SystemRandom().randrange(1 << 32)

TERMS = [  # text, what the answer must name
    ("slots: [{cores: 1}\n", ["terms.yaml"]),
    ("window: 10s\nslots:\n  - {cores: 1}\n  - {cores: 700000}\n", ["terms.yaml:4", "700000", "4096"]),
    ("window: 10s\nslots: [{cores: 1}]\nwindwo: 5s\n", ["terms.yaml:3", "windwo"]),
    ("window: -5s\nslots: [{cores: 1}]\n", ["terms.yaml:1", "-5s"]),
    ("window: 10 parsecs\nslots: [{cores: 1}]\n", ["terms.yaml:1", "10 parsecs"]),
    ("slots: []\n", ["slots"]),
    ("slots: [{cores: 1, memory: 1e99}]\n", ["terms.yaml:1", "memory"]),
    ("slots: [{cores: 1}]\nslots: [{cores: 2}]\n", ["terms.yaml:2", "slots"]),
    ("slots: &a [{cores: 1}]\ncaps: *a\n", ["terms.yaml"]),
    ("slots: [{cores: 1}]\nschedule: {lend: [{days: [someday], from: \"18:00\", to: \"19:00\"}]}\n",
     ["someday"]),
    ("slots: [{cores: 1}]\nschedule: {lend: [{from: \"25:00\", to: \"19:00\"}]}\n", ["25:00"]),
    ("\x00\x01\x02", ["terms.yaml"]),
    ("", ["terms.yaml"]),
]

JOBS = [
    ("command: [echo]\nslots: {cores: banana}\n", ["banana"]),
    ("command: [echo]\nno_such_key: 1\n", ["no_such_key"]),
    ("command: [echo]\nslots: {cores: 99999999}\n", ["99999999"]),
    ("command: [echo]\nsignal: B:NOSUCH@9\n", ["NOSUCH"]),
    ("command: [echo]\ninputs: [{path: /does/not/exist}]\n", ["/does/not/exist"]),
    ("command: [a: b: c\n", ["job.yaml"]),
]


def terms_files(lab):
    """reclaimd --check: every mistake is named by line and value."""
    m = lab.map["machines"][lab.machines[0]]
    with tempfile.TemporaryDirectory(dir=lab.dir) as d:
        path = os.path.join(d, "terms.yaml")
        for text, names in TERMS:
            with open(path, "w") as f:
                f.write(text)
            p = subprocess.run(["reclaimd", "--check", "--config", m["config"], "--terms", path],
                               text=True, capture_output=True, timeout=20)
            check(p.returncode == 1, "%r: exit status %d" % (text, p.returncode))
            for n in names:
                check(n in p.stderr, "%r: %r is not in %r" % (text, n, p.stderr))


def job_files(lab):
    with tempfile.TemporaryDirectory(dir=lab.dir) as d:
        path = os.path.join(d, "job.yaml")
        for text, names in JOBS:
            with open(path, "w") as f:
                f.write(text)
            p = lab.user("submit", path, ok=False)
            check(p.returncode in (1, 2), "%r: exit status %d %s" % (text, p.returncode, p.stdout))
            for n in names:
                check(n in p.stderr, "%r: %r is not in %r" % (text, n, p.stderr))
    check(not [j for j in lab.jobs() if j["state"] not in ("done", "cancelled", "failed")],
          "a job came of it")


def scenario_files(lab):
    with tempfile.TemporaryDirectory(dir=lab.dir) as d:
        path = os.path.join(d, "s.yaml")
        for text, names in (
                ("name: x\ntopology:\n  buildings: [{name: a}]\n  machines: [{name: m, building: b}]\n",
                 ["s.yaml:4", "'b'"]),
                ("name: x\ntopology:\n  buildings: [{name: a}]\nevents:\n  - {do: explode}\n",
                 ["s.yaml:5", "explode"]),
                ("name: x\ntopology: {buildings: [{name: a}]}\nchecks: [{name: luck}]\n", ["luck"])):
            with open(path, "w") as f:
                f.write(text)
            p = subprocess.run(["reclaim", "lab", "run", path], text=True, capture_output=True,
                               timeout=20)
            check(p.returncode == 1, "%r: exit status %d" % (text, p.returncode))
            for n in names:
                check(n in p.stderr, "%r: %r is not in %r" % (text, n, p.stderr))


def garbage(rng):
    """Truncated, random, deep, long and nearly right."""
    good = json.dumps({"v": 1, "cmd": "status"}).encode() + b"\n"
    yield b""
    yield b"\n" * 100
    yield good[:-5]
    yield b'{"v":1,"cmd":"nonsense"}\n'
    yield b'{"v":9999999999999999999,"cmd":"status"}\n'
    yield b'{"v":1,"cmd":"back","window_given":true,"window_ms":"99999999999999999999"}\n'
    yield b"[" * 100000 + b"\n"
    yield b"\xff\xfe" + os.urandom(10) + b"\n"
    yield b"A" * 3_000_000
    for _ in range(20):
        yield rng.randbytes(rng.randint(1, 4000))
    for _ in range(10):
        b = bytearray(good)
        b[rng.randrange(len(b))] = rng.randrange(256)
        yield bytes(b)


def throw(connect, rng):
    for bytes_ in garbage(rng):
        try:
            with connect() as s:
                s.settimeout(0.2)
                s.sendall(bytes_)
                try:
                    s.shutdown(socket.SHUT_WR)
                    s.recv(65536)
                except OSError:
                    pass
        except OSError:
            pass  # it hung up on us, which is fine


def running_job(lab):
    job = lab.submit(["train", *SMALL, "--steps", "6000", "--every", "60", "--pace", "20ms"],
                     name="victim")
    lab.wait_state(job, "running")
    lab.wait_durable(job)
    return job, lab.job(job)


def pids(name):
    out = subprocess.run(["pidof", name], text=True, capture_output=True).stdout.split()
    return sorted(map(int, out))


def in_netns(path, fn):
    """fn() in a child inside a network namespace; its exception is ours."""
    if not path:
        return fn()
    pid = os.fork()
    if pid == 0:
        import ctypes
        fd = os.open(path, os.O_RDONLY)
        ok = ctypes.CDLL(None, use_errno=True).setns(fd, 0) == 0
        try:
            fn() if ok else None
        finally:
            os._exit(0 if ok else 1)
    check(os.waitpid(pid, 0)[1] == 0, "a thrower broke")
    return None


def sockets(lab):
    """Random and truncated bytes on every socket there is: all go on working."""
    print("  seed %d" % SEED)
    rng = random.Random(SEED)
    job, j = running_job(lab)
    before = {n: pids(n) for n in ("reclaimd", "reclaim-coordinator", "reclaim-shim")}
    receivers = set(pids("reclaim-transfer"))

    def only_receivers():
        """A sender of a periodic image ends soon; each machine's receiver stays."""
        receivers.intersection_update(pids("reclaim-transfer"))
        return len(receivers) == len(lab.machines)
    wait_for("the senders have ended", only_receivers)
    step = lab.last_step(job)

    def unix(path):
        def connect():
            s = socket.socket(socket.AF_UNIX)
            s.connect(path)
            return s
        return connect

    def tcp(address, port, tls=False):
        def connect():
            s = socket.create_connection((address, port), 1)
            if not tls:
                return s
            c = ssl.create_default_context()
            c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
            return c.wrap_socket(s)
        return connect

    thrown = 0
    for name, m in lab.map["machines"].items():
        for path in glob.glob(m["run"] + "/**/*", recursive=True):
            if os.path.exists(path) and (os.stat(path).st_mode & 0o170000) == 0o140000:
                throw(unix(path), rng)
                thrown += 1
        in_netns(m["netns"], lambda: throw(tcp(m["address"], 7412), rng))
        in_netns(m["netns"], lambda: throw(tcp(m["address"], 7412, True), rng))
    check(thrown >= 2 * len(lab.machines) - 1, "only %d sockets found" % thrown)
    host, port = lab.map["coordinator"].split(":")
    throw(tcp(host, int(port)), rng)
    throw(tcp(host, int(port), True), rng)
    check({n: pids(n) for n in before} == before, "a program was lost: %s, now %s" % (
        before, {n: pids(n) for n in before}))
    check(receivers <= set(pids("reclaim-transfer")), "a receiver was lost")
    lab.wait_step(job, step + 50)
    check(number(lab.job(job)["epoch"]) == number(j["epoch"]), "the job was started anew")
    lab.owner(j["node"], "back")  # and the machinery moves it as ever
    wait_for("it goes on", lambda: lab.job(job)["state"] == "running" and
             lab.job(job)["node"] != j["node"], 30)


def rest(lab, home, path="/v1/jobs", method="GET", body=None, plain=False):
    """A request with another identity by curl; (status, text)."""
    argv = ["curl", "-sk", "-m", "10", "-o", "-", "-w", "\n%{http_code}", "-X", method]
    if home:
        argv += ["--cert", home + "/cert.pem", "--key", home + "/key.pem"]
    if body is not None:
        argv += ["--data-binary", body, "-H", "Content-Type: application/json"]
    p = subprocess.run([*argv, "https://%s%s" % (lab.map["coordinator"], path)], text=True,
                       capture_output=True)
    text, _, code = p.stdout.rpartition("\n")
    return int(code or 0), text


def foreign_certificates(lab):
    """No certificate, one of another campus, one that has expired: refused, and said so."""
    if not shutil.which("curl") or not shutil.which("openssl"):
        raise Skip("curl or openssl is not here")
    status, text = rest(lab, None)
    check(status in (401, 403, 0), "without a certificate: %d %s" % (status, text[:200]))
    other = os.path.join(lab.dir, "other")
    shutil.rmtree(other, ignore_errors=True)
    subprocess.run(["reclaim-coordinator", "init", "--dir", other, "--campus", "elsewhere",
                    "--admin", other + "-admin", "--address", "127.0.0.1:1"], check=True,
                   stdout=subprocess.DEVNULL)
    status, text = rest(lab, other + "-admin")
    check(status in (401, 403, 0), "another campus: %d %s" % (status, text[:200]))
    old = os.path.join(lab.dir, "old-admin")
    shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(lab.map["admin"], old)
    ca = next(iter(glob.glob(lab.map["coordinator_dir"] + "/**/ca.key", recursive=True)), None)
    check(ca, "where is the CA's key?")
    pem = os.path.join(os.path.dirname(ca), "ca.pem")
    subprocess.run("openssl req -new -key {0}/key.pem -subj '/O=admin/CN=admin' -out {0}/r.csr && "
                   "mkdir -p {0}/db && : > {0}/db/index && echo 77 > {0}/db/serial && "
                   "printf '[ca]\\ndefault_ca=d\\n[d]\\ndatabase={0}/db/index\\nserial={0}/db/serial\\n"
                   "new_certs_dir={0}/db\\ndefault_md=sha256\\npolicy=p\\n[p]\\norganizationName="
                   "supplied\\ncommonName=supplied\\n' > {0}/c.cnf && openssl ca -batch -config "
                   "{0}/c.cnf -cert {1} -keyfile {2} -in {0}/r.csr -out {0}/cert.pem -startdate "
                   "200101000000Z -enddate 210101000000Z -notext".format(old, pem, ca), shell=True,
                   check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    status, text = rest(lab, old)
    check(status in (401, 403, 0), "an expired certificate: %d %s" % (status, text[:200]))
    status, _ = rest(lab, lab.map["admin"])
    check(status == 200, "the real administrator gets %d" % status)


def rest_bodies(lab):
    """Nonsense in bodies and paths: 4xx, and the coordinator lives."""
    if not shutil.which("curl"):
        raise Skip("curl is not here")
    before = pids("reclaim-coordinator")
    home = lab.map["admin"]
    for method, path, body in (
            ("POST", "/v1/jobs", "{"), ("POST", "/v1/jobs", "[]"),
            ("POST", "/v1/jobs", '{"spec": 7}'), ("POST", "/v1/jobs", '{"spec": {"command": []}}'),
            ("POST", "/v1/jobs", '{"spec": {"command": ["x"], "slots": {"cores": "-1"}}}'),
            ("POST", "/v1/jobs", "[" * 100000), ("GET", "/v1/jobs/" + "a" * 5000, None),
            ("GET", "/v1/jobs/%00%ff/logs?offset=-1", None), ("GET", "/v1/../../etc/passwd", None),
            ("DELETE", "/v1/jobs", None), ("POST", "/v1/tokens", '{"role": "king"}'),
            ("POST", "/v1/enroll", '{"token": "x", "csr": "y"}'), ("BREW", "/v1/jobs", None)):
        status, text = rest(lab, home, path, method, body)
        check(400 <= status < 500 or status == 501, "%s %s %s: %d %s" % (
            method, path[:60], (body or "")[:60], status, text[:200]))
    check(pids("reclaim-coordinator") == before, "the coordinator was lost")


def full_disk(lab):
    """The destination's disk is full: a named error, the job goes on, on another or later here."""
    if not lab.map["root"]:
        raise Skip("no root: no small file system can be mounted")
    source, dest, third = lab.machines
    for m in (dest, third):
        lab.owner(m, "back", "--now")
    job, j = running_job_on(lab, source)
    images = os.path.join(lab.map["machines"][dest]["state"], "images")
    lab.do(do="crash", what="agent", machines=[dest])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "full", images], check=True)
    try:
        lab.do(do="restart", what="agent", machines=[dest])
        wait_for("agent", lambda: lab.owner(dest, "lend", ok=False).returncode == 0, 20)
        epoch, step = number(j["epoch"]), lab.last_step(job)
        lab.owner(source, "back", "--in", "4s")
        lab.owner(third, "lend")
        wait_for("it goes on elsewhere", lambda: any(
            r["job"] == job and r["epoch"] > epoch and r["first_step"] for r in lab.observed()), 40)
        check(number(lab.job(job)["failures"]) == 0, "a failure was counted")
        check(lab.last_step(job) >= step - 120, "more than was durable is lost")
    finally:
        lab.do(do="crash", what="agent", machines=[dest])
        subprocess.run(["umount", "-l", images], check=True)
        lab.do(do="restart", what="agent", machines=[dest])


def running_job_on(lab, node):
    job = lab.submit(["train", *SMALL, "--steps", "6000", "--every", "60", "--pace", "20ms"],
                     name="victim")
    j = lab.wait_state(job, "running")
    check(j["node"] == node, "it runs on %s" % j["node"])
    lab.wait_step(job, 130)
    return job, lab.job(job)


if __name__ == "__main__":
    main([terms_files, job_files, scenario_files, sockets, foreign_certificates, rest_bodies,
          full_disk])
