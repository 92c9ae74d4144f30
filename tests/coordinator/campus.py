# SPDX-License-Identifier: Apache-2.0
"""A coordinator as a process, and agents that a test plays over the wire.

Only the standard library: the WebSocket and the messages are written anew
here, so that a misunderstanding in our own client cannot hide one in the
server. Nothing sleeps to be in step: every wait names what it waits for.
"""
import base64
import http.client
import json
import os
import queue
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time

BUILD = os.environ["RECLAIM_BUILD"]
COORDINATOR = os.path.join(BUILD, "src/coordinator/reclaim-coordinator")
RECLAIM = os.path.join(BUILD, "src/cli/reclaim")
LEASE_S = 1.0
WAIT_S = 30.0


def wait_for(what, fn, limit=WAIT_S):
    """The first true value of fn(), or an error that says what never came."""
    end = time.monotonic() + limit
    pause = threading.Event()
    while True:
        value = fn()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("never came: " + what)
        pause.wait(0.02)


def free_port():
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Refused(Exception):
    def __init__(self, status, what):
        super().__init__("%s: %s" % (status, what))
        self.status = status
        self.what = what


class Campus:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="reclaim-coord-")
        self.state = os.path.join(self.dir, "state")
        self.admin_dir = os.path.join(self.dir, "admin")
        self.port = free_port()
        self.address = "127.0.0.1:%d" % self.port
        self.process = None
        self.log = open(os.path.join(self.dir, "log"), "ab")
        self.closers = []
        subprocess.run([COORDINATOR, "init", "--dir", self.state, "--campus", "test", "--admin",
                        self.admin_dir, "--address", self.address], check=True,
                       stdout=self.log, stderr=self.log)

    def start(self, points=None, hits=None, config=None):
        env = dict(os.environ)
        env.pop("RECLAIM_POINTS", None)
        if points:
            env["RECLAIM_POINTS"] = points
        if hits:
            env["RECLAIM_POINTS_HITS"] = hits
        self.process = subprocess.Popen(
            [COORDINATOR, "serve", "--dir", self.state, "--listen", self.address, "--lease",
             "%dms" % int(LEASE_S * 1000), "--margin", "200ms", "--status-every", "100ms"] +
            (["--config", config] if config else []),
            env=env, stdout=self.log, stderr=self.log)

        def up():
            if self.process.poll() is not None:
                if points:
                    return True  # killed at a point on its way up
                raise AssertionError("the coordinator ended: " + self.log_text())
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return True
            except OSError:
                return False
        wait_for("the coordinator's port", up)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)
        return self.process.returncode if self.process else 0

    def log_text(self):
        with open(os.path.join(self.dir, "log"), errors="replace") as f:
            return f.read()

    def close(self):
        for fn in self.closers:
            fn()
        self.stop()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind:
            print(self.log_text()[-6000:])
        self.close()

    # ---- people ----

    def cli(self, who, *args):
        env = dict(os.environ, RECLAIM_IDENTITY=who)
        return subprocess.run([RECLAIM, *args], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)

    def token(self, role, name, *more):
        r = self.cli(self.admin_dir, "token", "create", "--role", role, "--name", name, *more)
        assert r.returncode == 0, r.stderr
        return r.stdout.strip()

    def enrol(self, role, name, *more):
        where = os.path.join(self.dir, name)
        r = self.cli(where, "enrol", self.token(role, name, *more))
        assert r.returncode == 0, r.stderr
        return where

    def context(self, who):
        ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        ctx.check_hostname = False
        ctx.load_verify_locations(os.path.join(self.admin_dir, "ca.pem"))
        ctx.minimum_version = ssl.TLSVersion.TLSv1_3
        if who:
            ctx.load_cert_chain(os.path.join(who, "cert.pem"), os.path.join(who, "key.pem"))
        return ctx

    def call(self, who, method, path, body=None, raw=None):
        c = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context(who),
                                        timeout=20)
        try:
            data = raw if raw is not None else None if body is None else json.dumps(body)
            if data is None and method in ("POST", "PUT"):
                data = ""
            c.request(method, path, data)
            r = c.getresponse()
            text = r.read()
            kind = r.getheader("content-type") or ""
            value = json.loads(text) if kind.startswith("application/json") and text else text
            if r.status >= 300:
                raise Refused(r.status, value["error"]["what"])
            return value
        finally:
            c.close()

    def refused(self, status, who, method, path, body=None):
        try:
            self.call(who, method, path, body)
        except Refused as e:
            assert e.status == status, (e.status, status, e.what)
            return e.what
        raise AssertionError("%s %s was not refused" % (method, path))

    def job(self, who, job):
        return self.call(who, "GET", "/v1/jobs/" + job)


class Socket:
    """A WebSocket client (RFC 6455), text messages only."""

    def __init__(self, campus, who, path="/v1/agent"):
        raw = socket.create_connection(("127.0.0.1", campus.port), 10)
        self.s = campus.context(who).wrap_socket(raw)
        key = base64.b64encode(os.urandom(16)).decode()
        self.s.sendall(("GET %s HTTP/1.1\r\nHost: c\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n"
                        % (path, key)).encode())
        head = b""
        while b"\r\n\r\n" not in head:
            part = self.s.recv(1)
            if not part:
                raise ConnectionError("refused: " + head.decode(errors="replace"))
            head += part
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(head.split(b"\r\n")[0].decode())
        self.lock = threading.Lock()

    def send_frame(self, opcode, data):
        n = len(data)
        head = bytes([0x80 | opcode])
        if n < 126:
            head += bytes([0x80 | n])
        elif n < 65536:
            head += bytes([0x80 | 126]) + struct.pack(">H", n)
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", n)
        mask = os.urandom(4)
        masked = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
        with self.lock:
            self.s.sendall(head + mask + masked)

    def send(self, message):
        self.send_frame(1, json.dumps(message).encode())

    def exactly(self, n):
        data = b""
        while len(data) < n:
            part = self.s.recv(n - len(data))
            if not part:
                raise ConnectionError("closed")
            data += part
        return data

    def receive(self):
        text = b""
        while True:
            first, second = self.exactly(2)
            n = second & 0x7f
            if n == 126:
                n = struct.unpack(">H", self.exactly(2))[0]
            elif n == 127:
                n = struct.unpack(">Q", self.exactly(8))[0]
            data = self.exactly(n)
            opcode = first & 0xf
            if opcode == 9:
                self.send_frame(10, data)
            elif opcode == 8:
                raise ConnectionError("closed")
            elif opcode in (0, 1):
                text += data
                if first & 0x80:
                    return json.loads(text)

    def close(self):
        try:
            self.s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.s.close()


class Guest:
    """One incarnation on a played agent."""

    def __init__(self, start):
        self.job = start["job"]
        self.epoch = int(start["epoch"])
        self.start = start
        self.state = "starting"
        self.end = None
        self.status = 0
        self.output = b""
        self.image = None  # newest, digest
        self.image_seq = 0
        self.image_output = 0
        self.final = False
        self.step = None   # for a test that plays its program


class Agent:
    """Plays an agent: keeps what a real one keeps, connects again by itself, and says anew what
    holds on each connection. The test moves its guests."""

    def __init__(self, campus, name, owner=None, slots=1):
        self.campus = campus
        self.name = name
        self.who = campus.enrol("agent", name, *(["--owner", owner] if owner else []))
        self.slots = slots
        self.owner_state = "lent"
        self.notice_fields = {}
        self.deadline = 0
        self.guests = {}   # job -> Guest, newest epoch
        self.images = {}   # digest -> {"job", "epoch", "seq", ...}
        self.got = []      # every message of the coordinator
        self.refused = None
        self.lock = threading.RLock()
        self.ws = None
        self.welcomed = False
        self.closed = False
        self.seq = 0
        self.cut = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        self.ticker = threading.Thread(target=self.tick, daemon=True)
        self.ticker.start()
        campus.closers.append(self.close)

    def close(self):
        self.closed = True
        self.cut.set()
        if self.ws:
            self.ws.close()

    # ---- the connection ----

    def say(self, kind, **fields):
        ws = self.ws
        if ws and (self.welcomed or kind == "hello"):
            try:
                ws.send(dict(v=1, type=kind, **fields))
            except (OSError, ValueError):
                pass

    def report(self, g):
        r = {"job": g.job, "epoch": str(g.epoch), "state": g.state, "ran_ms": "1000",
             "output_offset": str(len(g.output))}
        if g.image:
            r.update(image=g.image, image_seq=str(g.image_seq), image_bytes="1000",
                     image_output=str(g.image_output))
        return r

    def remaining(self):
        return str(max(0, int((self.deadline - time.monotonic()) * 1000)))

    def hello(self):
        self.say("hello", node=self.name, owner_state=self.owner_state, transfer_port=7000,
                 host="127.0.0.1", shadow_keep=True, disk_free="1000000000000", window_ms="10000",
                 arch=os.uname().machine,
                 slots=[{"name": "s%d" % i, "cores_milli": "1000"} for i in range(self.slots)],
                 remaining_ms=self.remaining(), **self.notice_fields,
                 jobs=[self.report(g) for g in self.guests.values()],
                 images=[dict(v, image=k) for k, v in self.images.items()])

    def run(self):
        while not self.closed:
            try:
                self.welcomed = False
                self.ws = Socket(self.campus, self.who)
                with self.lock:
                    self.hello()
                while True:
                    self.handle(self.ws.receive())
            except (OSError, ValueError, ConnectionError):
                self.welcomed = False
                if self.ws:
                    self.ws.close()
                self.ws = None
                self.cut.wait(0.05)

    def tick(self):
        while not self.closed:
            with self.lock:
                self.seq += 1
                self.say("status", seq=str(self.seq), owner_state=self.owner_state,
                         remaining_ms=self.remaining(),
                         disk_free="1000000000000",
                         jobs=[self.report(g) for g in self.guests.values()])
            self.cut.wait(0.1)

    def handle(self, m):
        with self.lock:
            self.got.append(m)
            kind = m["type"]
            if kind == "welcome":
                self.welcomed = True
                for g in self.guests.values():
                    self.say_job(g)
                    self.say_output(g)
            elif kind == "start":
                known = self.guests.get(m["job"])
                if not known or known.epoch < int(m["epoch"]):
                    self.guests[m["job"]] = Guest(m)
            elif kind == "stop":
                g = self.guests.get(m["job"])
                if g and g.epoch <= int(m["epoch"]):
                    if g.end:
                        del self.guests[m["job"]]
                    else:
                        self.ended(g, m.get("end", "killed"))
            elif kind == "keep":
                g = self.guests.get(m["job"])
                if g and g.end and g.epoch <= int(m["epoch"]):
                    del self.guests[m["job"]]
                if m.get("forget"):
                    self.images = {k: v for k, v in self.images.items() if v["job"] != m["job"]}
            elif kind == "lease":
                for lease in m.get("leases", []):
                    g = self.guests.get(lease["job"])
                    if g and g.epoch == int(lease["epoch"]) and lease["remaining_ms"] in ("0", 0):
                        if not g.end:
                            self.ended(g, "lease")
            elif kind == "refused":
                self.refused = m["reason"]

    # ---- what the test makes it say ----

    def say_job(self, g):
        fields = {"job": g.job, "epoch": str(g.epoch), "state": g.state,
                  "output_offset": str(len(g.output))}
        if g.end:
            fields.update(end=g.end, status=g.status)
        self.say("job", **fields)

    def say_output(self, g):
        if g.output:
            self.say("output", job=g.job, epoch=str(g.epoch), offset="0",
                     data=base64.b64encode(g.output).decode())

    def running(self, g):
        with self.lock:
            g.state = "running"
            self.say_job(g)

    def write(self, g, text):
        with self.lock:
            offset = len(g.output)
            g.output += text.encode()
            self.say("output", job=g.job, epoch=str(g.epoch), offset=str(offset),
                     data=base64.b64encode(text.encode()).decode())

    def saved(self, g, digest, final=False):
        with self.lock:
            g.image = digest
            g.image_seq += 1
            g.image_output = len(g.output)
            g.final = final
            self.images[digest] = {"job": g.job, "epoch": str(g.epoch), "seq": str(g.image_seq),
                                   "bytes": "1000", "output_offset": str(len(g.output))}
            self.say("saved", job=g.job, epoch=str(g.epoch), seq=str(g.image_seq), image=digest,
                     bytes="1000", new_bytes="1000", output_offset=str(len(g.output)), final=final)

    def received(self, job, epoch, seq, digest, output=0):
        with self.lock:
            self.images[digest] = {"job": job, "epoch": str(epoch), "seq": str(seq), "bytes": "1000",
                                   "output_offset": str(output)}
            self.say("received", job=job, epoch=str(epoch), seq=str(seq), image=digest,
                     bytes_wire="1000", ms="10", output_offset=str(output))

    def ended(self, g, end, status=0):
        with self.lock:
            g.state = "ended"
            g.end = end
            g.status = status
            self.say_job(g)

    def notice(self, window_ms=10000):
        with self.lock:
            self.owner_state = "notice"
            self.notice_fields = {"mode": "notice", "notice_id": "n-1"}
            self.deadline = time.monotonic() + window_ms / 1000
            for g in self.guests.values():
                if g.state == "running":
                    g.state = "noticed"
            self.say("owner", state="notice", mode="notice", notice_id="n-1",
                     remaining_ms=str(window_ms), window_ms=str(window_ms),
                     jobs=[dict(self.report(g), unsaved_ms="500") for g in self.guests.values()])

    def owned(self):
        with self.lock:
            self.owner_state = "owned"
            self.notice_fields = {}
            self.say("owner", state="owned")

    def guest(self, job, epoch):
        with self.lock:
            g = self.guests.get(job)
            return g if g and g.epoch == epoch else None

    def find(self, kind, **fields):
        with self.lock:
            for m in reversed(self.got):
                if m["type"] == kind and all(str(m.get(k)) == str(v) for k, v in fields.items()):
                    return m
        return None
