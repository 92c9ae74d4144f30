#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`reclaim back` with no agent: what it says of supervisors that cannot be asked."""
import os
import socket
import subprocess
import sys
import tempfile


def back(reclaim, run, *args):
    return subprocess.run([reclaim, "back", "--run", run, *(args or ("--in", "1s"))], capture_output=True,
                          text=True, timeout=20)


def main():
    reclaim = sys.argv[1]
    with tempfile.TemporaryDirectory() as run:
        p = back(reclaim, run)
        assert p.returncode == 1 and "no agent answers" in p.stderr, p
        os.mkdir(run + "/shim")
        p = back(reclaim, run)
        assert p.returncode == 0 and "no guest process is left" in p.stdout, p
        # The window is what the agent last declared, where it did and where it makes sense.
        for text, said in ((None, "60.0 s"), ("1500\n", "1.5 s"), ("90000000000\n", "60.0 s"), ("x\n", "60.0 s")):
            if text:
                with open(run + "/window", "w") as f:
                    f.write(text)
            p = back(reclaim, run, "--no-wait")
            assert p.returncode == 0 and "within " + said in p.stdout, (text, p)
        # A supervisor that was killed leaves its socket behind, and proves nothing.
        s = socket.socket(socket.AF_UNIX)
        s.bind(run + "/shim/job.1.sock")
        s.close()
        p = back(reclaim, run)
        assert p.returncode == 1 and "not proven" in p.stderr, p
        assert "no guest process is left" not in p.stdout, p


main()
