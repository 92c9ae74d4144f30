#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""However a lab ends, nothing of it is left: Ctrl-C, SIGTERM, kill -9 of each of its processes."""
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(os.environ.get("RECLAIM_BUILD", "build"))
RECLAIM = os.path.join(BUILD, "src", "cli", "reclaim")
# A job runs in it, so that there are cgroups, guests, pins and qdiscs to leave behind.
SCRIPT = ("reclaim submit -- sh -c 'while :; do echo x; sleep 0.1; done' >/dev/null; "
          "until reclaim ps | grep -q running; do sleep 0.1; done; echo up $LAB_DIR; exec sleep 600")


def processes():
    """pid -> (parent, command line) of all there are."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid) as f:
                text = f.read()
            with open("/proc/%s/cmdline" % pid) as f:
                line = f.read().replace("\0", " ")
            rest = text[text.rindex(")") + 2:].split()
            if rest[0] != "Z":
                found[int(pid)] = (int(rest[1]), line or text[text.index("("):])
        except OSError:
            pass
    return found


def below(top):
    procs = processes()
    tree, grew = {top}, True
    while grew:
        more = {p for p, (parent, _) in procs.items() if parent in tree} - tree
        tree |= more
        grew = bool(more)
    return tree & set(procs)


def leftovers(lab_dir):
    name = os.path.basename(lab_dir)[len("rlab-"):]
    left = []
    if os.path.exists(lab_dir):
        left.append(lab_dir)
    for folder, dirs, _ in os.walk("/sys/fs/cgroup"):
        left += [os.path.join(folder, d) for d in dirs if name in d]
    with open("/proc/self/mounts") as f:
        left += [line.split()[1] for line in f if lab_dir in line]
    left += [line for _, line in processes().values() if lab_dir in line]
    return left


def gone(what, fn, timeout=15):
    end = time.monotonic() + timeout
    while True:
        left = fn()
        if not left:
            return
        if time.monotonic() > end:
            sys.exit("FAILED: %s: left: %s" % (what, left))
        time.sleep(0.05)


def start():
    p = subprocess.Popen([RECLAIM, "lab", "shell", "-q", os.path.join(HERE, "campus.yaml"), "-c",
                          SCRIPT], stdout=subprocess.PIPE, text=True, start_new_session=True)
    line = p.stdout.readline()
    if not line.startswith("up "):
        sys.exit("FAILED: the campus did not come up: %r" % line)
    return p, line.split()[1]


def child_of(p, want):
    """The guardian (a session of its own), or the lab's first process."""
    kids = [k for k, (parent, line) in processes().items() if parent == p.pid]
    guardians = [k for k in kids if os.getsid(k) == k]
    return guardians[0] if want == "guardian" else [k for k in kids if k not in guardians][0]


def main():
    for how in ("SIGINT to all", "SIGTERM", "kill -9 of the command", "kill -9 of the campus",
                "kill -9 of command and guardian"):
        p, lab_dir = start()
        tree = below(p.pid)
        if len(tree) < 10:
            sys.exit("FAILED: only %d processes in the lab" % len(tree))
        if how == "SIGINT to all":
            os.killpg(p.pid, signal.SIGINT)
        elif how == "SIGTERM":
            p.terminate()
        elif how == "kill -9 of the command":
            p.kill()
        elif how == "kill -9 of the campus":
            os.kill(child_of(p, "campus"), signal.SIGKILL)
        else:
            os.kill(child_of(p, "guardian"), signal.SIGKILL)
            p.kill()
        p.wait(timeout=30)
        gone(how + ": processes", lambda: [x for x in tree if x in processes() and x != os.getpid()])
        if how.endswith("guardian"):
            # Nobody is left to clean: the next one does.
            subprocess.run([RECLAIM, "lab", "clean"], check=True, stdout=subprocess.DEVNULL)
        gone(how, lambda: leftovers(lab_dir))
        print("ok      %s" % how, flush=True)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: needs root")
        sys.exit(77)
    main()
