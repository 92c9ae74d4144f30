#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`reclaim back` with no agent: what it says of supervisors that cannot be asked."""
import os
import socket
import subprocess
import sys
import tempfile


def back(reclaim, run):
    return subprocess.run([reclaim, "back", "--run", run, "--in", "1s"], capture_output=True,
                          text=True, timeout=20)


def main():
    reclaim = sys.argv[1]
    with tempfile.TemporaryDirectory() as run:
        p = back(reclaim, run)
        assert p.returncode == 1 and "no agent answers" in p.stderr, p
        os.mkdir(run + "/shim")
        p = back(reclaim, run)
        assert p.returncode == 0 and "no guest process is left" in p.stdout, p
        # A supervisor that was killed leaves its socket behind, and proves nothing.
        s = socket.socket(socket.AF_UNIX)
        s.bind(run + "/shim/job.1.sock")
        s.close()
        p = back(reclaim, run)
        assert p.returncode == 1 and "not proven" in p.stderr, p
        assert "no guest process is left" not in p.stdout, p


main()
