#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The owner's page: a lab's machine, a guest that stays until it is made to leave, real Chromium."""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from labkit import BUILD, Skip, check, main, wait_for  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
M = "m1"


def page(lab):
    if not shutil.which("node") or not os.path.exists("/usr/bin/chromium"):
        raise Skip("no node or no /usr/bin/chromium")
    if not os.path.isdir(os.path.join(HERE, "node_modules/playwright-core")):
        p = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=HERE, check=False)
        if p.returncode:
            raise Skip("npm ci failed")
    for m in lab.machines:
        if m != M:
            lab.owner(m, "pause")
    lab.submit(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"], name="stubborn")
    run = lab.map["machines"][M]["run"]
    urls, servers = [], []
    for more in (["--service", "--group", "reclaim-owner"], []):
        out = os.path.join(lab.dir, "out", "url%d" % len(urls))
        os.chmod(os.path.dirname(out), 0o777)  # the page's server is not root
        on = ["on", M] if more else []  # the second is for the user who runs it: us
        servers.append(subprocess.Popen([*on, "reclaim", "page", "--run", run, "--port", "0", "--quiet",
                                         "--url-file", out, *more]))
        urls.append(wait_for("the page's address", lambda: os.path.exists(out) and open(out).read()))
    check("#" in urls[1] and "#" not in urls[0], str(urls))
    try:
        p = subprocess.run(["node", os.path.join(HERE, "owner_test.mjs"), *urls, M,
                            os.path.abspath(os.path.join(BUILD, "browser-shots"))], timeout=240, check=False)
        check(p.returncode == 0, "the page's tests ended with %d" % p.returncode)
    finally:
        for s in servers:
            s.terminate()
            s.wait()
        for m in lab.machines:
            lab.owner(m, "resume", ok=False)


main([page], scenario=os.path.join(HERE, "owner.yaml"), loopback=True)
