# SPDX-License-Identifier: Apache-2.0
"""An installation stands on its own: `meson install` into an empty folder, and from there
a campus on loopback that runs a job, moves it and gives a machine back; manual pages,
help, completion, services, example settings, libreclaim for C and for Python.

    install_test.py SOURCE
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

BUILD = os.environ.get("RECLAIM_BUILD", "build")
SOURCE = sys.argv[1]
CAMPUS = """name: installed
duration: 1h
topology:
  buildings: [{name: a, uplink: 200Mbit}]
  machines: [{name: m1, building: a, link: 200Mbit}, {name: m2, building: a, link: 200Mbit}]
terms: {window: 10s, slots: [{cores: 1, memory: 256MiB}]}
system: {lease: 2s, status: 300ms}
"""
JOB = """#!/bin/sh
#SBATCH --job-name=count
#SBATCH --signal=B:TERM@5
#SBATCH --requeue
command -v scontrol >/dev/null || exit 3
file=$RECLAIM_CHECKPOINT_DIR/count
n=$(cat "$file" 2>/dev/null || echo 0)
[ "$n" -gt 0 ] && echo "went on after $n"
trap 'echo "$n" >"$file.tmp" && mv "$file.tmp" "$file"; exit 85' TERM
while [ "$n" -lt 60 ]; do
	n=$((n + 1))
	echo "counted to $n"
	sleep 0.1
done
"""
# The machine that runs `count` is taken back as soon as the job has printed something.
PLAY = """set -e
reclaim submit count.sh
reclaim logs -f count | head -3 >/dev/null
on count reclaim back
reclaim wait count
reclaim logs count
reclaim show count --json
"""


def run(*argv, **kw):
    p = subprocess.run(argv, text=True, capture_output=True, **kw)
    if p.returncode:
        sys.exit("%s ended with %d\n%s%s" % (" ".join(argv), p.returncode, p.stdout, p.stderr))
    return p.stdout + p.stderr


def check(ok, what):
    print("%s %s" % ("ok    " if ok else "FAILED", what))
    if not ok:
        sys.exit(1)


def pages(root):
    folder = os.path.join(root, "share/man")
    found = [os.path.join(d, f) for d, _, files in os.walk(folder) for f in files]
    check({os.path.basename(f) for f in found} >= {"reclaim.1", "reclaimd.8", "reclaim-sim.1",
                                                   "reclaim-coordinator.8"}, "manual pages")
    if not shutil.which("groff"):
        print("left out: groff is not here to read the manual pages")
        return
    for f in found:
        said = run("groff", "-mandoc", "-Tascii", "-ww", "-z", f)
        check(not said, "%s is clean mdoc %s" % (os.path.basename(f), said[:200]))


def completion(root):
    script = os.path.join(root, "share/bash-completion/completions/reclaim")
    for words, want in (("reclaim ba", "back"), ("reclaim back --n", "--now"),
                        ("reclaim admin stop-all --o", "--off")):
        split = words.split()
        said = run("bash", "-c", ". %s; COMP_WORDS=(%s); COMP_CWORD=%d; _reclaim; "
                   "printf '%%s\\n' \"${COMPREPLY[@]}\"" % (script, words, len(split) - 1))
        check(want in said.split(), "'%s' completes to %s" % (words, want))


def helps(root):
    for program in ("bin/reclaim", "bin/reclaim-coordinator", "bin/reclaim-sim"):
        said = run(os.path.join(root, program), "--help")
        commands = re.findall(r"^  ([a-z][a-z-]*(?: [a-z][a-z-]*)*)  ", said, re.M)
        check(len(commands) > 2, "%s has commands" % program)
        for c in commands:
            said = run(os.path.join(root, program), *c.split(), "--help")
            if not re.match("Usage: %s %s" % (os.path.basename(program), c), said):
                check(False, "%s %s --help: %s" % (program, c, said[:200]))
    said = run(os.path.join(root, "bin/reclaim"), "submit", "--name", "x", "--help")
    check("Usage: reclaim submit" in said, "every command has its help")


def services(root):
    units = os.path.join(root, "lib/systemd/system")
    for name in sorted(os.listdir(units)):
        with open(os.path.join(units, name)) as f:
            text = f.read()
        for program in re.findall(r"^Exec\w+=(\S+)", text, re.M):
            ours = os.path.join(os.path.dirname(root.rstrip("/")),
                                os.path.relpath(program, PREFIX_PARENT))
            # What is the system's own stands in /bin, never below our prefix.
            there = program if os.path.dirname(program) == "/bin" else ours
            check(os.access(there, os.X_OK), "%s calls %s, which is there" % (name, program))
    examples = os.path.join(root, "share/doc/reclaimnet/examples/")
    run(os.path.join(root, "sbin/reclaimd"), "--check", "--config", examples + "agent.yaml",
        "--terms", examples + "terms.yaml")
    run(os.path.join(root, "bin/reclaim-coordinator"), "serve", "--check", "--config",
        examples + "coordinator.yaml")
    check(True, "example settings have no mistakes")


def library(root, top):
    lib = [d for d, _, files in os.walk(root) if "libreclaim.so" in files][0]
    source = os.path.join(top, "guest.c")
    with open(source, "w") as f:
        f.write("#include <reclaim/reclaim.h>\n#include <reclaim/stream.h>\n"
                "int main(void) { return sizeof(struct reclaim_node_options) == 0; }\n")
    run("cc", "-Wall", "-Werror", source, "-I", os.path.join(root, "include"), "-L", lib,
        "-lreclaim", "-o", os.path.join(top, "guest"))
    env = dict(os.environ, LD_LIBRARY_PATH=lib, PYTHONDONTWRITEBYTECODE="1")
    run(os.path.join(top, "guest"), env=env)
    module = [d for d, _, files in os.walk(root) if os.path.basename(d) == "reclaim" and
              "torch.py" in files][0]
    env["PYTHONPATH"] = os.path.dirname(module)
    run("/usr/bin/python3", "-c", "import reclaim, reclaim.stream", env=env)
    check(True, "libreclaim from C and from Python")


def campus(root, top):
    for name, text in (("campus.yaml", CAMPUS), ("count.sh", JOB)):
        with open(os.path.join(top, name), "w") as f:
            f.write(text)
    env = {k: v for k, v in os.environ.items() if k != "RECLAIM_BIN_DIR"}
    said = run(os.path.join(root, "bin/reclaim"), "lab", "shell", "campus.yaml", "--loopback",
               "--command", PLAY, cwd=top, env=env, timeout=200)
    lines = re.findall(r"^counted to (\d+)$", said, re.M)
    check([int(n) for n in lines] == list(range(1, 61)), "a job counts to 60, every line once")
    check(len(re.findall(r"^went on after [1-9]", said, re.M)) == 1, "and went on from what it had saved")
    check(re.search(r'"cause":\s*"reclaim"', said), "after one reclaim")


with tempfile.TemporaryDirectory(prefix="reclaim-install-") as top:
    os.chmod(top, 0o755)
    run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", top)
    # DESTDIR/PREFIX/bin/reclaim
    found = [d for d, _, files in os.walk(top) if "reclaim" in files and d.endswith("/bin")]
    check(len(found) == 1, "installed")
    root = os.path.dirname(found[0])
    PREFIX_PARENT = os.path.dirname("/" + os.path.relpath(root, top))
    pages(root)
    helps(root)
    completion(root)
    services(root)
    library(root, top)
    campus(root, top)
