# SPDX-License-Identifier: Apache-2.0
"""The coordinator as a whole, over the wire."""
import json
import os
import ssl
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from campus import COORDINATOR, LEASE_S, Agent, Campus, Refused, Socket, wait_for

A, B, C = "a" * 64, "b" * 64, "c" * 64
SPEC = {"name": "train", "command": ["true"], "failure_limit": 3}


class Whole(unittest.TestCase):
    def setUp(self):
        self.campus = Campus().__enter__()
        self.campus.start()
        self.addCleanup(self.campus.close)

    def submit(self, who, **more):
        return self.campus.call(who, "POST", "/v1/jobs", dict({"spec": SPEC}, **more))["id"]

    def state_is(self, who, job, *states):
        return wait_for("%s %s" % (job, states),
                        lambda: self.campus.job(who, job)["state"] in states and
                        self.campus.job(who, job))

    def log_of(self, who, job):
        return self.campus.call(who, "GET", "/v1/jobs/%s/logs" % job).decode()

    def test_a_life_with_a_move(self):
        c = self.campus
        alice = c.enrol("guest", "alice")
        n1 = Agent(c, "n1")
        job = self.submit(alice)
        g = wait_for("start on n1", lambda: n1.guest(job, 1))
        self.assertEqual(len(g.start["key"]), 64)
        n2 = Agent(c, "n2")
        wait_for("n2 welcomed", lambda: n2.welcomed)
        n1.running(g)
        self.state_is(alice, job, "running")
        said = c.cli(alice, "why", job).stdout
        self.assertIn("running on n1", said)
        self.assertIn("n2", said)
        n1.write(g, "step 1\nstep 2\n")
        n1.saved(g, A)
        wait_for("saved", lambda: c.job(alice, job).get("saved") == A)
        self.assertIsNone(c.job(alice, job).get("durable"))  # saved is not durable
        wait_for("stage to n2", lambda: n1.find("move", job=job, use="stage"))
        n2.received(job, 1, 1, A)
        wait_for("durable", lambda: c.job(alice, job).get("durable") == A)
        wait_for("n1 told", lambda: n1.find("durable", job=job, image=A))

        n1.notice()
        move = wait_for("move", lambda: n1.find("move", job=job, use="notice"))
        self.assertEqual(move["to"]["node"], "n2")
        self.assertTrue(move["to"]["ticket"].startswith("rt1."))
        n1.write(g, "step 3\n")
        n1.saved(g, B, final=True)
        n1.write(g, "step 4\n")  # after its last image: will be made again
        n2.received(job, 1, 2, B)
        wait_for("durable B", lambda: c.job(alice, job).get("durable") == B)
        wait_for("output", lambda: self.log_of(alice, job).endswith("step 4\n"))
        self.assertIsNone(n2.guest(job, 2))  # the old incarnation stands still
        n1.ended(g, "reclaimed")
        g2 = wait_for("start on n2", lambda: n2.guest(job, 2))
        self.assertEqual(g2.start["image"], B)
        self.assertEqual(g2.start["key"], g.start["key"])
        n2.running(g2)
        n2.write(g2, "step 4\nstep 5\n")
        n2.ended(g2, "done", 3)
        end = self.state_is(alice, job, "done")
        self.assertEqual(end["exit_status"], 3)
        self.assertEqual(int(end["reclaims"]), 1)
        self.assertEqual(int(end["failures"]), 0)
        self.assertEqual(self.log_of(alice, job), "step 1\nstep 2\nstep 3\nstep 4\nstep 5\n")

    def test_streams_end_with_the_job(self):
        c = self.campus
        alice = c.enrol("guest", "alice")
        n1 = Agent(c, "n1")
        job = self.submit(alice)
        g = wait_for("start", lambda: n1.guest(job, 1))
        got = {}

        def follow(what):
            got[what] = c.call(alice, "GET", "/v1/jobs/%s/%s" % (job, what))
        threads = [threading.Thread(target=follow, args=(w,)) for w in ("logs?follow=1", "events")]
        for t in threads:
            t.start()
        n1.running(g)
        text = "".join("line %d\n" % i for i in range(20000))
        for i in range(0, len(text), 20000):
            n1.write(g, text[i:i + 20000])
        n1.ended(g, "done")
        for t in threads:
            t.join(30)
            self.assertFalse(t.is_alive())
        self.assertEqual(got["logs?follow=1"].decode(), text)
        lines = [json.loads(line) for line in got["events"].decode().splitlines()]
        self.assertEqual(lines[-1]["state"], "done")
        self.assertIn("running", [line["state"] for line in lines])

    def test_fencing_and_restart(self):
        c = self.campus
        alice = c.enrol("guest", "alice")
        n1 = Agent(c, "n1")
        job = self.submit(alice)
        g = wait_for("start", lambda: n1.guest(job, 1))
        n1.running(g)
        self.state_is(alice, job, "running")
        n2 = Agent(c, "n2")
        wait_for("n2 welcomed", lambda: n2.welcomed)
        # The coordinator dies; the machine with it. A next incarnation waits for a whole lease.
        c.kill()
        n1.close()
        began = time.monotonic()
        c.start()
        wait_for("second incarnation", lambda: n2.guest(job, 2))
        self.assertGreaterEqual(time.monotonic() - began, LEASE_S)
        n2.running(n2.guest(job, 2))
        self.state_is(alice, job, "running")
        # The first machine comes back with its old incarnation: it gets no lease, and its images
        # are no longer wanted.
        back = Socket(c, n1.who)
        back.send({"v": 1, "type": "hello", "node": "n1", "owner_state": "lent",
                   "slots": [{"name": "s0", "cores_milli": "1000"}],
                   "jobs": [{"job": job, "epoch": "1", "state": "running"}]})
        back.send({"v": 1, "type": "status", "seq": "1", "owner_state": "lent",
                   "jobs": [{"job": job, "epoch": "1", "state": "running"}]})
        back.send({"v": 1, "type": "received", "job": job, "epoch": "1", "seq": "9", "image": C})
        back.send({"v": 1, "type": "output", "job": job, "epoch": "1", "offset": "0",
                   "data": "b2xkCg=="})
        stopped = False
        while not stopped:
            m = back.receive()
            if m["type"] == "stop" and m["job"] == job:
                stopped = True
            elif m["type"] == "lease":
                stopped = any(x["job"] == job and str(x["remaining_ms"]) == "0"
                              for x in m.get("leases", []))
        back.close()
        self.assertIsNone(c.job(alice, job).get("durable"))
        self.assertEqual(self.log_of(alice, job), "")
        n2.ended(n2.guest(job, 2), "done")
        self.state_is(alice, job, "done")

    def test_adopted_after_a_restart(self):
        c = self.campus
        alice = c.enrol("guest", "alice")
        n1 = Agent(c, "n1")
        job = self.submit(alice)
        g = wait_for("start", lambda: n1.guest(job, 1))
        n1.running(g)
        self.state_is(alice, job, "running")
        c.kill()
        c.start()
        wait_for("welcome again", lambda: n1.welcomed)
        n1.ended(g, "done", 5)
        end = self.state_is(alice, job, "done")
        self.assertEqual((int(end["epoch"]), end["exit_status"]), (1, 5))

    def test_roles(self):
        c = self.campus
        alice, bob = c.enrol("guest", "alice"), c.enrol("guest", "bob")
        olga = c.enrol("owner", "olga")
        n1, n2 = Agent(c, "n1", owner="olga"), Agent(c, "n2", owner="otto")
        wait_for("both", lambda: n1.welcomed and n2.welcomed)
        job = self.submit(alice)
        for path in ("", "/logs", "/events", "/why", "/inputs", "/results"):
            self.assertIn(job, c.refused(404, bob, "GET", "/v1/jobs/%s%s" % (job, path)))
        c.refused(404, bob, "POST", "/v1/jobs/%s/cancel" % job)
        self.assertEqual(c.call(bob, "GET", "/v1/jobs?all=1&user=alice")["jobs"], [])
        self.assertEqual(len(c.call(c.admin_dir, "GET", "/v1/jobs?all=1")["jobs"]), 1)
        c.refused(403, olga, "GET", "/v1/jobs")
        c.refused(403, olga, "POST", "/v1/jobs", {"spec": SPEC})
        c.refused(403, alice, "POST", "/v1/tokens", {"role": "admin", "name": "alice"})
        c.refused(403, alice, "POST", "/v1/admin/stop-all", {"on": True})
        names = [n["name"] for n in c.call(olga, "GET", "/v1/nodes")["nodes"]]
        self.assertEqual(names, ["n1"])
        self.assertEqual(len(c.call(c.admin_dir, "GET", "/v1/nodes")["nodes"]), 2)
        # Nobody without a certificate, and no guest in an agent's place.
        c.refused(401, None, "GET", "/v1/jobs")
        with self.assertRaises((ConnectionError, ssl.SSLError)):
            Socket(c, None)
        ws = Socket(c, alice)
        self.assertEqual(ws.receive()["type"], "refused")
        # An agent speaks for itself only.
        ws = Socket(c, n2.who)
        ws.send({"v": 1, "type": "hello", "node": "n1", "owner_state": "lent", "slots": []})
        with self.assertRaises((ConnectionError, OSError)):
            while ws.receive()["type"] != "refused":
                pass
            ws.receive()
            ws.receive()

    def test_tokens_and_revocation(self):
        c = self.campus
        token = c.token("guest", "carol")
        carol = os.path.join(c.dir, "carol")
        self.assertEqual(c.cli(carol, "enrol", token).returncode, 0)
        again = c.cli(os.path.join(c.dir, "thief"), "enrol", token)
        self.assertEqual(again.returncode, 1)
        self.assertIn("used", again.stderr)
        # A false coordinator is recognised by the fingerprint in the token.
        secret, print_, rest = token.split(".")[1], token.split(".")[2], token.split("@")[1]
        false = "rj1.%s.%s@%s" % (secret, "0" * 64, rest)
        r = c.cli(os.path.join(c.dir, "thief"), "enrol", false)
        self.assertIn("not our coordinator", r.stderr)
        self.assertEqual(print_.split("@")[0], self.fingerprint())
        # Joining again makes a new key; a refused token leaves the old identity as it was.
        def key_of(who):
            with open(os.path.join(who, "key.pem")) as f:
                return f.read()
        old = key_of(carol)
        self.assertEqual(c.cli(carol, "enrol", token).returncode, 1)
        self.assertEqual(key_of(carol), old)
        c.call(carol, "GET", "/v1/jobs")
        self.assertEqual(c.cli(carol, "enrol", c.token("guest", "carol")).returncode, 0)
        self.assertNotEqual(key_of(carol), old)
        self.assertEqual(sorted(os.listdir(carol)), ["ca.pem", "cert.pem", "coordinator", "key.pem"])
        # Old tokens are worth nothing.
        stale = c.token("guest", "dave", "--valid", "1s")
        wait_for("expiry", lambda: b"out of date" in self.try_enrol(stale), 10)
        # Revocation works at once, also on open connections.
        n1 = Agent(c, "n1")
        wait_for("n1", lambda: n1.welcomed)
        job = self.submit(carol)
        g = wait_for("start", lambda: n1.guest(job, 1))
        n1.running(g)
        self.state_is(carol, job, "running")
        self.assertEqual(c.cli(c.admin_dir, "admin", "revoke", "n1").returncode, 0)
        wait_for("n1 cut off", lambda: not n1.welcomed)
        n2 = Agent(c, "n2")
        wait_for("moved on", lambda: n2.guest(job, 2), 10 * LEASE_S)
        c.cli(c.admin_dir, "admin", "revoke", "carol")
        self.assertIn("revoked", c.refused(403, carol, "GET", "/v1/jobs"))
        c.kill()
        c.start()
        self.assertIn("revoked", c.refused(403, carol, "GET", "/v1/jobs"))

    def fingerprint(self):
        import base64
        import hashlib
        with open(os.path.join(self.campus.admin_dir, "ca.pem")) as f:
            body = "".join(f.read().split("-----")[2].split())
        return hashlib.sha256(base64.b64decode(body)).hexdigest()

    def try_enrol(self, token):
        # The secret with a request that is none: the token is judged first.
        try:
            self.campus.call(None, "POST", "/v1/enroll",
                             {"token": token.split(".")[1], "csr": "none"})
        except Refused as e:
            return e.what.encode()
        return b""

    def test_inputs_results_and_repeats(self):
        c = self.campus
        alice = c.enrol("guest", "alice")
        n1 = Agent(c, "n1")
        wait_for("n1", lambda: n1.welcomed)
        data = os.urandom(3 << 20)
        job = self.submit(alice, inputs=True, request_id="r1")
        self.assertEqual(self.submit(alice, inputs=True, request_id="r1"), job)
        self.assertEqual(c.job(alice, job)["state"], "staging")
        c.kill()
        c.start()
        self.assertEqual(self.submit(alice, inputs=True, request_id="r1"), job)
        c.call(alice, "PUT", "/v1/jobs/%s/inputs" % job, raw=data)
        c.refused(409, alice, "PUT", "/v1/jobs/%s/inputs" % job)
        g = wait_for("start", lambda: n1.guest(job, 1))
        self.assertTrue(g.start["inputs"])
        self.assertEqual(c.call(n1.who, "GET", "/v1/jobs/%s/inputs?epoch=1" % job), data)
        n1.running(g)
        c.call(n1.who, "PUT", "/v1/jobs/%s/results?epoch=1" % job, raw=data[:1000])
        c.refused(410, n1.who, "PUT", "/v1/jobs/%s/results?epoch=7" % job)
        n1.ended(g, "done")
        self.state_is(alice, job, "done")
        self.assertEqual(c.call(alice, "GET", "/v1/jobs/%s/results" % job), data[:1000])

    def test_rubbish(self):
        c = self.campus
        alice = c.enrol("guest", "alice")
        self.assertIn("missing", c.refused(400, alice, "POST", "/v1/jobs", None))
        for raw in (b"{", b"[]", b'{"spec": 1}', b'{"spec": {}, "nonsense": 1}', b"\xff\xfe", b"1" * 100):
            with self.assertRaises(Refused) as e:
                c.call(alice, "POST", "/v1/jobs", raw=raw)
            self.assertEqual(e.exception.status, 400)
        with self.assertRaises(Refused) as e:
            c.call(alice, "POST", "/v1/jobs", raw=b" " * (5 << 20))
        self.assertEqual(e.exception.status, 413)
        n1 = c.enrol("agent", "n1")
        for rubbish in (b"{", b"[]", b'{"v":1,"type":"nonsense"}', b'{"v":99,"type":"hello"}',
                        b'{"v":1,"type":"hello","node":7}', os.urandom(200),
                        b'{"v":1,"type":"output","job":"x","epoch":"1","offset":"0","data":"!"}',
                        b'{"v":1,"type":"start","job":"x"}'):
            ws = Socket(c, n1)
            ws.send_frame(1, rubbish)
            try:
                while ws.receive()["type"] != "refused":
                    pass
            except (ConnectionError, OSError):
                pass
            ws.close()
        ws = Socket(c, n1)
        with self.assertRaises((ConnectionError, OSError)):
            ws.send_frame(1, b"x" * (2 << 20))
            while True:
                ws.receive()
        self.assertEqual(c.call(alice, "GET", "/v1/jobs")["jobs"], [])
        self.assertEqual(c.stop(), 0)

    def test_settings_survive(self):
        c = self.campus
        n1 = Agent(c, "n1")
        wait_for("n1", lambda: n1.welcomed)
        self.assertEqual(c.cli(c.admin_dir, "admin", "stop-all").returncode, 0)
        wait_for("n1 is told", lambda: n1.find("rates", stop_all=True))
        c.cli(c.admin_dir, "admin", "cap", "123Mbit")
        c.cli(c.admin_dir, "admin", "blackout", "mon-fri 08:00-18:00")
        self.assertIn("mon", c.cli(c.admin_dir, "admin", "settings").stdout)
        r = c.cli(c.admin_dir, "admin", "blackout", "mon-fri 8-18")
        self.assertEqual(r.returncode, 1)
        c.kill()
        c.start()
        s = c.call(c.admin_dir, "GET", "/v1/admin/settings")
        self.assertEqual((s["stop_all"], s["floor_cap"], s["blackout"][0]["from"]),
                         (True, "123000000", "08:00"))

    def test_groups_of_users(self):
        c = self.campus
        r = c.cli(c.admin_dir, "admin", "group", "physics", "ada", "alan")
        self.assertEqual(r.returncode, 0, r.stderr)
        c.cli(c.admin_dir, "admin", "group", "chemistry", "marie")
        c.cli(c.admin_dir, "admin", "blackout", "mon-fri 08:00-18:00")
        r = c.cli(c.admin_dir, "admin", "group", "physics", "not a name")
        self.assertEqual(r.returncode, 1)
        self.assertIn("not a name", r.stderr)
        c.cli(c.admin_dir, "admin", "group", "chemistry", "none")
        c.kill()
        c.start()
        s = c.call(c.admin_dir, "GET", "/v1/admin/settings")
        self.assertEqual(s["groups"], [{"name": "physics", "people": ["ada", "alan"]}])
        self.assertEqual(len(s["blackout"]), 1)

    def test_jobs_long_over_are_forgotten(self):
        c = self.campus
        c.kill()
        config = os.path.join(c.dir, "config.yaml")
        with open(config, "w") as f:
            f.write("keep: 2s\n")
        c.start(config=config)
        alice = c.enrol("guest", "alice")
        job = self.submit(alice, request_id="r1")
        c.call(alice, "POST", "/v1/jobs/%s/cancel" % job)
        self.state_is(alice, job, "cancelled")
        c.kill()
        time.sleep(2.1)  # its age is wall-clock time
        c.start(config=config)
        wait_for("it is forgotten", lambda: not c.call(alice, "GET", "/v1/jobs?all=1")["jobs"])
        # Nor is its request id known any more: the same again is a new job.
        self.assertNotEqual(self.submit(alice, request_id="r1"), job)

    def test_settings_file_is_checked(self):
        c = self.campus
        path = os.path.join(c.dir, "settings.yaml")

        def check(text):
            with open(path, "w") as f:
                f.write(text)
            return subprocess.run([COORDINATOR, "serve", "--dir", c.state, "--check", "--config", path],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        good = check("listen: 127.0.0.1:7070\nlease: 4s\nstatus_every: 1s\nfloors: 500Mbit\n")
        self.assertEqual((good.returncode, good.stderr), (0, ""))
        for text, says in (("listen: 127.0.0.1:7070\nleese: 4s\n", ":2"),
                           ("lease: 4s\nstatus_every: 3s\n", "half of lease"),
                           ("lease: soon\n", ":1"), ("lease: 1ms\n", ":1"), ("a: [\n", "settings.yaml"),
                           ("jobs_max: 99999999999\n", ":1"), ("listen: nowhere\n", "ADDRESS:PORT"),
                           ("public: {name: x}\n", "cert")):
            bad = check(text)
            self.assertEqual(bad.returncode, 1, text)
            self.assertIn(says, bad.stderr, text)

    def test_forecasts_remember(self):
        c = self.campus
        olga = c.enrol("owner", "olga")
        n1, n2 = Agent(c, "n1", owner="olga"), Agent(c, "n2", owner="otto")
        wait_for("both", lambda: n1.welcomed and n2.welcomed)
        before = c.call(olga, "GET", "/v1/nodes/n1/forecast?horizon_s=3600")
        self.assertEqual((before["state"], before["reclaims"]), ("lent", 0))
        self.assertAlmostEqual(before["p_reclaim"] + before["p_off"] + before["survival"], 1, 6)
        c.refused(404, olga, "GET", "/v1/nodes/n2/forecast")
        c.refused(404, c.admin_dir, "GET", "/v1/nodes/nowhere/forecast")
        n1.notice()
        n1.owned()
        wait_for("counted", lambda: c.call(olga, "GET", "/v1/nodes/n1/forecast")["reclaims"] == 1)
        c.kill()
        c.start()
        after = c.call(olga, "GET", "/v1/nodes/n1/forecast")
        self.assertEqual(after["reclaims"], 1)
        self.assertIn("1 reclaims", c.cli(olga, "forecast", "n1").stdout)

    def test_openapi_is_what_it_serves(self):
        c = self.campus
        with open(os.path.join(os.environ["RECLAIM_SOURCE"], "docs/openapi.json")) as f:
            doc = json.load(f)
        served = c.call(c.admin_dir, "GET", "/v1/openapi.json")
        self.assertEqual(doc, served, "run: reclaim-coordinator openapi > docs/openapi.json")
        # Each operation is there, and refuses who has no certificate unless it says otherwise.
        for path, operations in doc["paths"].items():
            real = path.replace("{id}", "x").replace("{name}", "x")
            for method, operation in operations.items():
                if operation.get("security") == []:
                    continue
                c.refused(401, None, method.upper(), real)
                for role in ("owner", "guest", "admin", "agent"):
                    if role in operation["x-roles"]:
                        continue
                    who = os.path.join(c.dir, "as-" + role)
                    if not os.path.exists(who):
                        c.enrol(role, "as-" + role)
                    c.refused(403, who, method.upper(), real)


if __name__ == "__main__":
    unittest.main()
