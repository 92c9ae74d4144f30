# SPDX-License-Identifier: Apache-2.0
"""Programs as they are found in the wild, through the real system: a script with their own
marks is submitted, its machine is taken back while it computes, and it must go on
elsewhere after the very step it had reached. What each kind listens to and how it
ends is in docs/job-contract.md; the stand-ins are tests/job/guests."""
import os
import re

from labkit import check, main, number, wait_for

GUESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "job", "guests")
KINDS = {
    "slurm": ("#SBATCH --signal=USR1@90 --requeue", "--catch SIGUSR1 --after requeue"),
    "lightning": ("#SBATCH --signal=SIGUSR1@90",
                  "--lightning --catch SIGUSR1 --ignore SIGTERM --after requeue"),
    "submitit": ("#SBATCH --signal=USR2@90",
                 "--catch SIGUSR2 --ignore SIGTERM --ignore SIGCONT --after requeue255"),
    "condor": ("#RECLAIM signal: TERM", "--catch SIGTERM --after exit85"),
    "torchrun": ("#RECLAIM signal: TERM", "--catch SIGTERM --burn --after exit1"),
    "spot": ("#RECLAIM checkpoint: {driver: poll}", "--poll http --after exit0"),
    "files": ("#RECLAIM signal: TERM", "--catch SIGTERM --every 7 --after ack"),
}
STEPS = 150


def play(lab, kind):
    marks, args = KINDS[kind]
    train = "/usr/bin/python3 train.py %s --log --steps %d --step-s 0.04 --save-s 0.2" % (args, STEPS)
    if kind == "torchrun":
        train = "/usr/bin/python3 launcher.py 30 " + train
    script = os.path.join(lab.dir, "out", kind + ".sh")
    with open(script, "w") as f:
        f.write("#!/bin/sh\n%s\n%s\nexit $?\n" % (marks, train))
    said = lab.user("submit", "--name", kind, "--input", os.path.join(GUESTS, "train.py"),
                    "--input", os.path.join(GUESTS, "launcher.py"), script)
    job = said.stdout.split()[-1]
    j = lab.wait_state(job, "running")
    wait_for("%s computes" % kind, lambda: lab.logs(job).count("\nstep ") >= 20)
    lab.owner(j["node"], "back")
    end = lab.wait_state(job, "done", timeout=60)
    places = [m["to"] for m in end["moves"]]
    check(len(places) == 2 and places[0] != places[1], "it ran on %s" % ", ".join(places))
    check(number(end["failures"]) == 0, "%s failures were counted" % end["failures"])
    text = lab.logs(job)
    check(re.findall(r"^step (\d+)$", text, re.M) == [str(n) for n in range(1, STEPS + 1)],
          "every step is in the log, once, in order")
    before, _, rest = text.partition("resumed at ")
    check(rest, "it began anew")
    done = re.findall(r"^step (\d+)$", before, re.M)[-1]
    check(rest.split()[0] == done, "went on after step %s, had done %s" % (rest.split()[0], done))


def test(kind):
    def run(lab):
        play(lab, kind)
    run.__name__ = "program_" + kind
    return run


if __name__ == "__main__":
    main([test(k) for k in KINDS], loopback=os.geteuid() != 0)
