#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Escapes: what a guest tries, inside the sandbox and without it. Each row must succeed
without (else it proves nothing) and be refused or bounded inside; refused system calls are
logged with the job's id. usage: escape_test.py [--json] [RUNG]"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from shim import BUILD, ROOT, Shim, remove_groups  # noqa: E402

ESCAPE = BUILD / "tests/job/escape"
MIB = 1 << 20


class Outside:
    """What belongs to others: a file of another user, the owner's home, another guest with
    files, a socket and memory, services on the machine's loopback and on a campus address."""

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="reclaim-owner-"))
        self.dir.chmod(0o755)
        self.home = self.dir / "home"
        self.home.mkdir()
        self.secret = self.home / "secret"
        self.secret.write_text("private")
        # Readable by all: only what the sandbox shows decides.
        self.secret.chmod(0o644)
        self.other = Shim()
        self.other.start("echo other > file; echo ready; exec sleep 1000")
        self.other.wait_output("ready")
        self.other_pid = int(self.other.hello()["guest_pid"])
        self.tcp = socket.socket()
        self.tcp.bind(("127.0.0.1", 0))
        self.tcp.listen(64)
        self.unix = socket.socket(socket.AF_UNIX)
        self.agent_path = str(self.dir / "agent.sock")
        self.unix.bind(self.agent_path)
        self.unix.listen(64)
        os.chmod(self.agent_path, 0o666)
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract_name = f"@reclaim-escape-{os.getpid()}"
        self.abstract.bind("\0" + self.abstract_name[1:])
        self.abstract.listen(64)
        # The machine's own address on the campus, if it has one.
        self.campus = None
        found = subprocess.run(["hostname", "-I"], check=False, capture_output=True, text=True).stdout.split()
        for address in found:
            if ":" in address:
                continue
            try:
                self.campus = socket.socket()
                self.campus.bind((address, 0))
                self.campus.listen(64)
                break
            except OSError:
                self.campus = None

    def close(self):
        for s in (self.tcp, self.unix, self.abstract, self.campus):
            if s:
                s.close()
        self.other.close()
        subprocess.run(["rm", "-rf", str(self.dir)], check=False)


def rows(o):
    """(name, arguments, the system call that the log names or None, rungs it needs)."""
    boxed = ("full", "namespaces", "userns")
    own_net = ("full", "namespaces")
    every = boxed + ("process",)
    all_rows = [
        ("another user's file", ["read", str(o.secret)], None, every),
        ("write into the owner's home", ["write", str(o.home / "planted")], None, every),
        ("another guest's file", ["read", str(o.other.dir / "work/file")], None, every),
        ("another guest's socket", ["unix", str(o.other.base / "run" / f"{o.other.job}.1/guest.sock")], None,
         boxed),
        ("another guest's memory", ["memory-of", str(o.other_pid)], None, boxed),
        ("a signal to another guest", ["signal", str(o.other_pid)], None, every),
        ("a signal to the machine", ["signal", str(os.getpid())], None, every),
        ("/proc of the machine", ["read", f"/proc/{os.getpid()}/status"], None, boxed),
        ("the agent's socket", ["unix", o.agent_path], None, boxed),
        ("an abstract socket of the machine", ["unix", o.abstract_name], None, every),
        ("a device node of its own", ["mknod"], "mknod", every),
        ("a device that is not lent", ["read", "/dev/kmsg"], None, every),
        ("mount", ["mount"], "mount", every),
        ("unmount", ["umount", "/proc"], "umount", boxed),
        ("new user namespace", ["namespace"], "unshare", every),
        ("setuid(0)", ["setuid"], None, every),
        ("a setuid program", ["setuid-file"], None, every),
        ("chroot", ["chroot"], "chroot", every),
        ("ptrace", ["ptrace"], "ptrace", every),
        ("raw socket", ["raw"], "socket", every),
        ("packet socket", ["packet"], "socket", every),
        ("netlink: audit", ["netlink", "9"], "socket", every),
        ("netlink: kernel events", ["netlink", "15"], "socket", every),
        ("a spoofed source address", ["address"], None, every),
        ("bpf", ["bpf"], "bpf", every),
        ("userfaultfd", ["userfaultfd"], "userfaultfd", every),
        ("kernel keyring", ["keyring"], "add_key", every),
        ("io_uring", ["iouring"], "io_uring_setup", every),
        ("host name", ["hostname"], "sethostname", every),
        ("a better priority", ["nice"], None, every),
        ("write to the system", ["write", "/usr/share/.reclaim-planted"], None, every),
        ("write to /proc/sys", ["write", "/proc/sys/kernel/core_pattern"], None, every),
        ("a service on the machine's loopback", ["connect", "127.0.0.1", str(o.tcp.getsockname()[1])], None,
         own_net),
        ("fork bomb", ["forks", "400"], None, own_net),
        ("memory bomb", ["memory", "300"], None, own_net),
    ]
    if o.campus:
        all_rows.append(("a campus address", ["connect", *map(str, o.campus.getsockname())], None,
                         own_net))
    all_rows += [("disk bomb", ["disk", "400"], None, every), ("100,000 files", ["files", "100000"], None, every)]
    return all_rows


SETUID = "setuid-file"


def outside(args, scratch):
    """The same attempt without a sandbox. As root it could do harm to the machine, so it gets
    copies of the mounts, the host name and, where it changes addresses, the network: things
    that it may spoil. Everything else is the machine's own, as it is for any process."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    if args[0] == SETUID:
        return subprocess.run([str(scratch / "suid"), "euid"], cwd=scratch, env=env, stdout=subprocess.DEVNULL,
                              user=65534 if ROOT else None).returncode
    command = [str(ESCAPE), *args]
    if ROOT:
        command = ["unshare", "--mount", "--uts", "--propagation", "private",
                   *(["--net"] if args[0] == "address" else []), *command]
    return subprocess.run(command, cwd=scratch, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          start_new_session=True).returncode


def inside(args, rung, scratch):
    with Shim() as s:
        work = s.dir / "work"
        work.mkdir(parents=True)
        subprocess.run(["cp", str(ESCAPE), str(work / "escape")], check=True)
        command = ["./escape", *args]
        binds = []
        if args[0] == SETUID:
            binds = [{"path": str(scratch), "to": "/suid" if rung != "process" else str(scratch)}]
            command = [("/suid" if rung != "process" else str(scratch)) + "/suid", "euid"]
        s.start(command, wait=False, rung=rung, own_network=ROOT and rung != "process", pids_max="100",
                memory_max=str(128 * MIB), disk_max=str(100 * MIB), files_max="20000", binds=binds)
        event = s.exited(60)
        return event, s.output(), s.shim_text()


def has(rung):
    """Whether this machine can give a guest the rung; the shim refuses one that it cannot."""
    with Shim() as s:
        s.start(["/bin/true"], wait=False, rung=rung, own_network=ROOT and rung != "process")
        event = s.exited(60)
        if event["end"] == "not_started" and "this machine gets to" in event["reason"]:
            print(f"skip {rung:10} {event['reason']}", file=sys.stderr)
            return False
        return True


def run(rung, as_json):
    o = Outside()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="reclaim-escape-"))
    scratch.chmod(0o777)
    subprocess.run(["cp", str(ESCAPE), str(scratch / "suid")], check=True)
    if ROOT:
        os.chmod(scratch / "suid", 0o4755)
    tried = refused = 0
    bad, skipped = [], []
    try:
        for name, args, call, rungs in rows(o):
            if rung not in rungs:
                continue
            without = outside(args, scratch)
            if without != 0:
                skipped.append(f"{name} (does not succeed outside either: proves nothing here)")
                continue
            event, output, log = inside(args, rung, scratch)
            tried += 1
            held = event["end"] == "failed" and event["status"] != 0
            logged = not call or f"refused {call}" in log or rung == "process" and "refused" not in log
            if held and event["status"] in (0, 2, 126, 127):
                held = False
            if held and logged:
                refused += 1
            else:
                bad.append(f"{name}: {'escaped' if not held else 'not logged'}: "
                           f"{event['end']} {event['status']} {event['reason']} {output!r}")
            if not as_json:
                print(f"{'ok  ' if held and logged else 'FAIL'} {rung:10} {name:40} {output.strip()[-60:]}", flush=True)
    finally:
        o.close()
        subprocess.run(["rm", "-rf", str(scratch)], check=False)
    for text in skipped:
        print(f"skip {rung:10} {text}", file=sys.stderr)
    for text in bad:
        print("FAIL", text, file=sys.stderr)
    return tried, refused, bad


def main():
    args = [a for a in sys.argv[1:] if a != "--json"]
    as_json = "--json" in sys.argv
    if args and args != ["best"]:
        rungs = args
    else:
        ladder = ("full", "namespaces") if ROOT else ("userns",)
        best = next((rung for rung in ladder if has(rung)), "process")
        rungs = [best] if args or best == "process" else [best, "process"]
    failed = False
    for rung in rungs:
        tried, refused, bad = run(rung, as_json)
        failed = failed or bool(bad) or tried == 0
        if as_json:
            for metric, value in (("tried", tried), ("refused", refused)):
                print(json.dumps({"bench": "sandbox", "case": f"escapes_{rung}", "system": "reclaim",
                                  "metric": metric, "value": value, "unit": "", "n": 1}))
        else:
            print(f"{rung}: {refused} of {tried} refused or bounded")
    remove_groups()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
