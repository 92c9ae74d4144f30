#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The cable between two machines is pulled for 5 s ten times in one transfer.

The real transfer program at both ends, TLS, a link of 40 Mbit/s. What must hold: the image
arrives whole and opens to the very bytes that were taken, and what had arrived is not sent again.
"""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

BUILD = os.path.abspath(os.environ.get("RECLAIM_BUILD", "build"))
DRIVE = os.path.join(BUILD, "bench/transfer/transfer-drive")
MIB, CUTS, CUT_S = 64, 10, 5
# Per cut: what the sender's kernel holds of three connections and the wire lost, and new handshakes.
IN_FLIGHT = 3 * (1 << 20)
NS = "cuts%d" % os.getpid()


def sh(*cmd, ns=None, **kw):
    cmd = (["ip", "netns", "exec", NS + ns] if ns else []) + [str(c) for c in cmd]
    return subprocess.run(cmd, check=True, text=True, capture_output=True, **kw).stdout


def link_make():
    for side in "ab":
        sh("ip", "netns", "add", NS + side)
    sh("ip", "link", "add", "c-a", "netns", NS + "a", "type", "veth", "peer", "name", "c-b", "netns", NS + "b")
    for n, side in enumerate("ab"):
        dev = "c-" + side
        sh("ip", "addr", "add", "10.99.8.%d/24" % (n + 1), "dev", dev, ns=side)
        sh("ip", "link", "set", "dev", "lo", "up", ns=side)
        sh("ip", "link", "set", "dev", dev, "up", ns=side)
        sh("tc", "qdisc", "add", "dev", dev, "root", "tbf", "rate", "40mbit", "burst", "64k",
           "latency", "50ms", ns=side)


def tree_digest(top):
    whole = hashlib.sha256()
    for folder, names, files in os.walk(top):
        names.sort()
        for f in sorted(files):
            path = os.path.join(folder, f)
            whole.update(os.path.relpath(path, top).encode())
            with open(path, "rb") as data:
                whole.update(data.read())
    return whole.hexdigest()


def sent_bytes():
    return int(sh("cat", "/sys/class/net/c-a/statistics/tx_bytes", ns="a"))


def arrived_bytes():
    return int(sh("cat", "/sys/class/net/c-b/statistics/rx_bytes", ns="b"))


def cut_and_mend(sender, stored):
    """Ten cuts, spread over the transfer by what has arrived. Returns how many there were."""
    for n in range(CUTS):
        at = stored * (n + 1) // (CUTS + 2)
        while arrived_bytes() < at:
            if sender.poll() is not None:
                return n
            time.sleep(0.02)
        sh("ip", "link", "set", "dev", "c-b", "down", ns="b")
        time.sleep(CUT_S)  # not a wait for anything: the length of the cut is the case
        sh("ip", "link", "set", "dev", "c-b", "up", ns="b")
    return CUTS


def run(work):
    src, far, back = (os.path.join(work, n) for n in ("src", "far", "back"))
    os.mkdir(src)
    for n in range(4):
        with open(os.path.join(src, "part%d" % n), "wb") as f:
            f.write(os.urandom(MIB * (1 << 20) // 4))
    sh(DRIVE, "campus", work + "/ca")
    image = json.loads(sh(DRIVE, "take", work + "/ca", work + "/near", src, 1))
    stored = image["stored_bytes"]
    receiver = subprocess.Popen(
        ["ip", "netns", "exec", NS + "b", DRIVE, "receive", work + "/ca", far, "10.99.8.2", "0"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    port = json.loads(receiver.stdout.readline())["port"]
    sender = subprocess.Popen(
        ["ip", "netns", "exec", NS + "a", DRIVE, "send", work + "/ca", work + "/near", "10.99.8.2",
         str(port), image["image"], "deadline", "0", "3", "60000"], stdout=subprocess.PIPE, text=True)
    try:
        cuts = cut_and_mend(sender, stored)
        out, _ = sender.communicate(timeout=120)
        end = json.loads(out.splitlines()[-1])
    finally:
        sender.kill()
        sender.wait()
        receiver.stdin.close()
        receiver.wait()
    sent = sent_bytes()
    print("%d cuts of %d s, %d new sessions; %.1f MB stored, %.1f given to TLS, %.1f on the wire, %.1f s" % (
        cuts, CUT_S, end.get("reconnects", -1), stored / 1e6, end.get("bytes_wire", 0) / 1e6, sent / 1e6,
        end.get("ms", 0) / 1e3))
    assert end["event"] == "done", end
    assert cuts == CUTS, "only %d cuts fell into the transfer" % cuts
    assert end["bytes_wire"] < stored + stored // 100 + CUTS * IN_FLIGHT, "what had arrived was sent again"
    assert sent < stored + stored // 20 + CUTS * IN_FLIGHT, "what had arrived was sent again"
    sh(DRIVE, "restore", far, image["image"], back)
    assert tree_digest(back) == tree_digest(src), "other bytes arrived"


def main():
    os.environ["RECLAIM_TRANSFER"] = os.path.join(BUILD, "src/transfer/reclaim-transfer")
    if os.geteuid() != 0 or subprocess.run(["ip", "netns", "add", NS + "p"], capture_output=True).returncode:
        print("skipped: needs root and network namespaces")
        sys.exit(77)
    work = tempfile.mkdtemp(prefix="reclaim-cuts-")
    try:
        sh("ip", "netns", "del", NS + "p")
        link_make()
        run(work)
    finally:
        for side in "ab":
            subprocess.run(["ip", "netns", "del", NS + side], capture_output=True)
        shutil.rmtree(work, ignore_errors=True)


main()
