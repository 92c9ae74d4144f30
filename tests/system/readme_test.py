#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Types the README's fenced commands, as they are written, into a shell.

The clone's address is the project's; git is told to take it from this working
tree's repository instead. Nothing else is changed.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def fenced():
    with open(os.path.join(ROOT, "README.md")) as f:
        blocks = re.findall(r"^```sh\n(.*?)^```$", f.read(), re.M | re.S)
    return [line for b in blocks for line in b.splitlines() if line.strip()]


def fail(what, output):
    print(output[-6000:])
    sys.exit("FAILED: " + what)


def main():
    if os.geteuid() != 0:
        print("skipped: needs root")
        sys.exit(77)
    if not os.path.exists(os.path.join(ROOT, ".git")):
        print("skipped: this is no git working tree, there is nothing to clone")
        sys.exit(77)
    commands = fenced()
    if not 1 <= len(commands) <= 5:
        sys.exit("FAILED: %d commands, five at most" % len(commands))
    url = re.search(r"git clone (\S+)", commands[0]).group(1)
    top = tempfile.mkdtemp(prefix="readme-test-")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RECLAIM", "LAB", "MESON", "NINJA",
                                                                     "MAKE", "MFLAGS", "GIT"))}
    env.update(GIT_CONFIG_COUNT="2", GIT_CONFIG_KEY_0="url.%s.insteadOf" % ROOT,
               GIT_CONFIG_VALUE_0=url, GIT_CONFIG_KEY_1="safe.directory", GIT_CONFIG_VALUE_1="*",
               SHELL="/bin/bash")
    try:
        p = subprocess.run(["bash"], input="".join(c + "\n" for c in commands), text=True, cwd=top,
                           env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=540)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    out = p.stdout
    if p.returncode:
        fail("the last command ended with %d" % p.returncode, out)
    counted = [int(n) for n in re.findall(r"^counted to (\d+)$", out, re.M)]
    if counted != list(range(1, 201)):
        fail("the output lost or repeated lines: %d lines, %d distinct" % (
            len(counted), len(set(counted))), out)
    if not re.search(r"is yours", out):
        fail("nobody got a machine back", out)
    print("ok: %d commands, as written" % len(commands))


if __name__ == "__main__":
    main()
