#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Lent GPUs, played by a fake NVML: a job gets one of the type it asks for; the machine is handed
back proven free, or with an alarm that names what is left on a GPU."""
import os
import subprocess
import sys
import tempfile
import time

from labkit import BUILD, check, main, wait_for

TOP = os.path.dirname(os.path.abspath(__file__))
FREE = ["TypeA GPU-a 100 80000", "TypeB GPU-b 50 40000"]


def gpus(lines):
    """The world as NVML tells it from now on; the agent sees the old or the new, never half."""
    path = os.environ["FAKE_NVML"]
    with open(path + ".new", "w") as f:
        f.write("\n".join(lines) + "\n")
    os.rename(path + ".new", path)


def submit(lab, kind):
    """A job with one GPU of that type, which has said what it got: its id."""
    job = lab.submit(["sh", "-c", "echo device=$CUDA_VISIBLE_DEVICES; exec sleep 1000"], name=kind,
                     extra={"slots": {"gpus": 1, "gpu_type": kind}})
    lab.wait_state(job, "running")
    wait_for("its first line", lambda: "device=" in lab.logs(job))
    return job


def back(lab, window="2s"):
    """Takes m1 back: (seconds until it was handed back, its status)."""
    begin = time.monotonic()
    lab.owner("m1", "back", "--in", window, ok=False)
    took = time.monotonic() - begin
    status = lab.status("m1")
    check(status["state"] in ("owned", "free"), "m1 is %s" % status["state"])
    return took, status


def proof(lab, left, words, proven):
    """A guest leaves the GPU as `left` says; what the owner is told."""
    gpus(FREE)
    lab.lend("m1")
    job = submit(lab, "TypeA")
    gpus(left)
    took, status = back(lab)
    alarm = status.get("alarm") or ""
    check(status["proven_free"] == proven, "proven_free is %s: %s" % (status["proven_free"], alarm))
    check(all(w in alarm for w in words) and bool(alarm) == bool(words),
          "the alarm '%s' does not say %s" % (alarm, words))
    check(took < 2 + 1 + 3, "handed back after %.1f s" % took)
    gpus(FREE)
    lab.user("cancel", job, ok=False)


def a_gpu_that_is_as_before_is_proven_free(lab):
    proof(lab, FREE, [], True)


def memory_that_lingers_is_an_alarm(lab):
    proof(lab, ["TypeA GPU-a 2148 80000", FREE[1]], ["GPU-a", "2148 MiB", "100 MiB before"], False)


def a_dead_process_that_holds_a_context_is_named(lab):
    p = subprocess.Popen(["true"])
    p.wait()  # nobody has this number now
    proof(lab, ["TypeA GPU-a 600 80000 %d:500" % p.pid, FREE[1]], ["pid %d" % p.pid, "dead", "500 MiB"], False)


def a_lost_gpu_is_an_alarm(lab):
    proof(lab, ["TypeA GPU-a 100 80000 lost", FREE[1]], ["lost"], False)


def what_the_owner_runs_there_is_no_alarm(lab):
    proof(lab, ["TypeA GPU-a 9000 80000 %d:8900" % os.getpid(), FREE[1]], [], True)


def a_gpu_no_guest_had_is_not_looked_at(lab):
    proof(lab, [FREE[0], "TypeB GPU-b 30000 40000"], [], True)


def jobs_get_the_type_they_ask_for(lab):
    """Two types, each with its own name for CUDA; a slot whose GPU is not there is not lent."""
    gpus(FREE)
    lab.lend("m1")
    a, b = submit(lab, "TypeA"), submit(lab, "typeb")
    check("device=GPU-a" in lab.logs(a), lab.logs(a))
    check("device=GPU-b" in lab.logs(b), lab.logs(b))
    node = next(n for n in lab.nodes() if n["name"] == "m1")
    check(int(node["slots"]) == 3, "m1 lends %s slots" % node["slots"])
    cpu = lab.submit(["sh", "-c", "echo device=$CUDA_VISIBLE_DEVICES."], name="cpu")
    lab.wait_state(cpu, "done")
    wait_for("its output", lambda: "device=." in lab.logs(cpu))


if __name__ == "__main__":
    if "LAB_DIR" not in os.environ:
        fake = os.path.abspath(os.path.join(BUILD, "src/job/libfake-nvml.so"))
        if not os.path.exists(fake):
            print("skipped: the fake NVML is not built")
            sys.exit(77)
        top = tempfile.mkdtemp(prefix="reclaim-gpu-")
        os.chmod(top, 0o755)
        os.environ["RECLAIM_NVML"] = fake
        os.environ["FAKE_NVML"] = os.path.join(top, "gpus")
        gpus(FREE)
    main([jobs_get_the_type_they_ask_for, a_gpu_that_is_as_before_is_proven_free,
          memory_that_lingers_is_an_alarm, a_dead_process_that_holds_a_context_is_named,
          a_lost_gpu_is_an_alarm, what_the_owner_runs_there_is_no_alarm,
          a_gpu_no_guest_had_is_not_looked_at], scenario=os.path.join(TOP, "gpu.yaml"), need_root=True)
