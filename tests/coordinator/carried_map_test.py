# SPDX-License-Identifier: Apache-2.0
"""`reclaim map` with its volunteers' page and sockets carried by the coordinator."""
import base64
import json
import os
import queue
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from campus import RECLAIM, Campus, wait_for

DOUBLE = "#!/bin/sh\nread -r n\necho $((2 * n))\n"
SLOW = "#!/bin/sh\nread -r n\nsleep 0.1\necho $((2 * n))\n"


class Volunteers:
    """A bare WebSocket on the browsers' side of the port, without a certificate."""

    def __init__(self, port, ca):
        ctx = ssl.create_default_context(cafile=ca)
        self.s = ctx.wrap_socket(socket.create_connection(("127.0.0.1", port), 20),
                                 server_hostname="localhost")
        self.s.sendall(b"GET /v1/volunteer HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                       b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                       b"Sec-WebSocket-Key: " + base64.b64encode(os.urandom(16)) + b"\r\n\r\n")
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.exactly(1)
        assert head.startswith(b"HTTP/1.1 101"), head

    def exactly(self, n):
        out = b""
        while len(out) < n:
            more = self.s.recv(n - len(out))
            if not more:
                raise EOFError
            out += more
        return out

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        head = bytes([0x81]) + (bytes([0x80 | len(data)]) if len(data) < 126 else
                                bytes([0xfe]) + struct.pack(">H", len(data)) if len(data) < 65536 else
                                bytes([0xff]) + struct.pack(">Q", len(data)))
        self.s.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def receive(self):
        """The next text, or None when the other end has closed."""
        try:
            while True:
                op, n = self.exactly(2)
                n = n if n < 126 else struct.unpack(">H", self.exactly(2))[0] if n == 126 else \
                    struct.unpack(">Q", self.exactly(8))[0]
                data = self.exactly(n)
                if op & 15 == 1:
                    return data.decode()
                if op & 15 == 8:
                    return None
        except (EOFError, OSError):
            return None


class CarriedMap(unittest.TestCase):
    def setUp(self):
        self.campus = c = Campus().__enter__()
        self.addCleanup(c.close)
        self.cert = os.path.join(c.dir, "public.pem")
        key = os.path.join(c.dir, "public.key")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", self.cert],
                       check=True, stderr=subprocess.DEVNULL)
        self.config = os.path.join(c.dir, "config.yaml")
        with open(self.config, "w") as f:
            f.write("public: {name: localhost, cert: %s, key: %s}\n" % (self.cert, key))
        c.start(config=self.config)
        self.alice = c.enrol("guest", "alice")
        self.processes = []
        self.addCleanup(self.end_all)

    def end_all(self):
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.wait()
            for pipe in (p.stdout, p.stderr):
                if pipe:
                    pipe.close()

    def program(self, text):
        path = os.path.join(self.campus.dir, "double")
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, 0o755)
        return path

    def map(self, program, *args, who=None, stdin=subprocess.DEVNULL):
        """The command, its address, and its lines as they come."""
        url = os.path.join(self.campus.dir, "url%d" % len(self.processes))
        p = subprocess.Popen([RECLAIM, "map", self.program(program), "--url-file", url, "--no-qr",
                              "--udp-address", "127.0.0.1", *args],
                             env=dict(os.environ, RECLAIM_IDENTITY=who or self.alice),
                             stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(p)

        def there():
            if p.poll() is not None:
                raise AssertionError(p.stderr.read())
            return os.path.exists(url)
        wait_for("the address of the map", there)
        with open(url) as f:
            return p, f.read()

    def volunteer(self, url, *args):
        p = subprocess.Popen([RECLAIM, "volunteer", url, "--ca", self.cert, "--cores", "1",
                              "--udp-address", "127.0.0.1", *args],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = queue.Queue()
        self.processes.append(p)
        threading.Thread(target=lambda: [said.put(x.strip()) for x in p.stderr], daemon=True).start()
        p.said = said
        return p

    def test_volunteers_come_through_the_coordinator(self):
        m, url = self.map(DOUBLE, "-", stdin=subprocess.PIPE)
        self.assertTrue(url.startswith("https://localhost:%d/volunteer/#" % self.campus.port), url)
        direct, relayed = self.volunteer(url), self.volunteer(url, "--relay-only")
        for p, how in (direct, "connected"), (relayed, "relayed"):
            wait_for(how, lambda: how in list(p.said.queue))
        out, err = m.communicate("".join("%d\n" % n for n in range(21)), timeout=60)
        self.assertEqual(m.returncode, 0, err)
        self.assertEqual(out.split(), [str(2 * n) for n in range(21)])
        for p in direct, relayed:
            self.assertEqual(p.wait(20), 0)

    def test_a_name_that_nobody_knows(self):
        p = self.volunteer("https://nobody.invalid:1/volunteer/#" + "x" * 22)
        self.assertIn("nobody.invalid", p.said.get(timeout=20))

    def test_the_coordinator_dies_and_comes_back(self):
        m, url = self.map(SLOW, "0..80", "--unordered")
        for _ in range(2):
            self.volunteer(url)
        seen = [m.stdout.readline() for _ in range(5)]
        self.campus.kill()
        seen += [m.stdout.readline() for _ in range(10)]  # direct channels stand meanwhile
        self.campus.start(config=self.config)
        out, err = m.communicate(timeout=90)
        self.assertEqual(m.returncode, 0, err)
        self.assertIn("trying again", err)
        self.assertIn("there again", err)
        self.assertEqual(sorted(int(x) for x in seen + out.split()), [2 * n for n in range(81)])

    def get(self, path):
        ctx = ssl.create_default_context(cafile=self.cert)
        url = "https://localhost:%d%s" % (self.campus.port, path)
        with urllib.request.urlopen(url, context=ctx, timeout=20) as r:
            return r.read()

    def test_page_and_functions(self):
        self.assertIn(b"Start helping", self.get("/volunteer/"))
        self.assertTrue(self.get("/volunteer/overlay.wasm").startswith(b"\0asm"))
        _, url = self.map(DOUBLE, "0..20")
        invite = url.split("#")[1]
        self.assertEqual(self.get("/v1/volunteer/function/%s/double" % invite).decode(), DOUBLE)
        for path in ("/v1/volunteer/function/%s/double" % ("x" * len(invite)), "/volunteer/x",
                     "/v1/volunteer/function/%s/other" % invite):
            with self.assertRaises(urllib.error.HTTPError) as e:
                self.get(path)
            e.exception.close()
            self.assertEqual(e.exception.code, 404)
        for path in ("/v1/jobs", "/v1/openapi.json"):  # nothing else is on this side
            with self.assertRaises(urllib.error.HTTPError) as e:
                self.get(path)
            e.exception.close()
            self.assertIn(e.exception.code, (401, 403, 404))

    def test_strangers_are_turned_away(self):
        m, url = self.map(DOUBLE, "0..3")
        join = {"type": "join", "version": "1", "token": "t" * 32, "invite": "x" * 22}

        def says_so():  # just after a start it only closes: the map may come back later
            v = Volunteers(self.campus.port, self.cert)
            v.send(json.dumps(join))
            text = v.receive()
            return text and "not valid" in text
        wait_for("the invitation is refused", says_so)
        for first in json.dumps({"type": "leave"}), "no JSON", "[1]", "{" * 3000:
            v = Volunteers(self.campus.port, self.cert)
            v.send(first)
            self.assertEqual(json.loads(v.receive())["type"], "error")
            self.assertIsNone(v.receive())
        v = Volunteers(self.campus.port, self.cert)
        v.send(json.dumps(dict(join, token="y" * 40000)))
        self.assertIsNone(v.receive())
        # An invited one may say what it likes: the map's own master judges it.
        v = Volunteers(self.campus.port, self.cert)
        v.send(json.dumps(dict(join, invite=url.split("#")[1])))
        self.assertEqual(json.loads(v.receive())["type"], "welcome")
        v.send("nonsense")
        while True:
            text = v.receive()
            if text is None or json.loads(text)["type"] == "error":
                break
        self.assertIsNotNone(text)
        self.volunteer(url)
        self.assertEqual(m.communicate(timeout=60)[0].split(), ["0", "2", "4", "6"])

    def test_whose_map_it_is(self):
        _, url = self.map(DOUBLE, "0..3")
        bob = self.campus.enrol("guest", "bob")
        r = self.campus.cli(bob, "map", self.program(DOUBLE), "--invite", url.split("#")[1], "0..3")
        self.assertEqual(r.returncode, 1)
        self.assertIn("somebody else's", r.stderr)
        agent = self.campus.enrol("agent", "n1")
        r = self.campus.cli(agent, "map", self.program(DOUBLE), "0..3")
        self.assertEqual(r.returncode, 1)
        self.assertIn("for people", r.stderr)


class WithoutPublicSide(unittest.TestCase):
    def test_it_says_so(self):
        with Campus() as c:
            c.start()
            alice = c.enrol("guest", "alice")
            r = c.cli(alice, "map", RECLAIM, "0..3")
            self.assertEqual(r.returncode, 1)
            self.assertIn("--here", r.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
