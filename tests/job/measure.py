# SPDX-License-Identifier: Apache-2.0
"""Paired measurements for bench/guest and bench/sandbox."""
import json
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from shim import BUILD, ROOT, Shim  # noqa: E402

SPIN = BUILD / "tests/job/spin"
RUNGS = ["full", "process"] if ROOT else ["userns", "process"]
lines = []


def out(bench, case, metric, value, unit, n, system="reclaim"):
    lines.append((bench, case, system, metric, value, unit, n))
    print(json.dumps({"bench": bench, "case": case, "system": system, "metric": metric, "value": value,
                      "unit": unit, "n": n}), flush=True)


def table():
    print()
    for bench, case, system, metric, value, unit, n in lines:
        shown = f"{value:.4f}" if isinstance(value, float) else value
        print(f"{bench:8} {case:20} {system:10} {metric:16} {shown:>12} {unit:6} n={n}")


def ci95(values):
    """Half the width of the 95 % confidence interval of the mean (normal approximation)."""
    return 1.96 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("inf")


def plain(args, index=1, cwd=None):
    """Runs spin without us; index 0 = wall, 1 = CPU seconds."""
    text = subprocess.run([SPIN, *args], check=True, capture_output=True, text=True, cwd=cwd).stdout
    return float(text.split()[index])


def guest(args, rung, index=1, **start):
    with Shim() as s:
        work = s.dir / "work"
        work.mkdir(parents=True)
        subprocess.run(["cp", SPIN, work / "spin"], check=True)
        s.start(["./spin", *args], wait=False, rung=rung, own_network=ROOT and rung != "process", **start)
        event = s.exited(120)
        assert event["end"] == "done", event
        return float(s.output().split()[index])


def start_times(rung, n):
    """From the decision to start until the guest's program has executed and ended, less the
    same for fork and exec alone; the shim's own start is in it."""
    with_us, without = [], []
    for _ in range(n):
        begin = time.monotonic()
        subprocess.run(["/bin/true"], check=True)
        without.append(time.monotonic() - begin)
        begin = time.monotonic()
        with Shim() as s:
            s.start(["/bin/true"], wait=False, rung=rung, own_network=ROOT and rung != "process")
            s.wait("state", state="running")
            with_us.append(time.monotonic() - begin)
            s.exited()
    return statistics.median(with_us) - statistics.median(without)


def paired(fn_without, fn_with, n):
    """Relative differences of pairs, in alternating order against drift."""
    shares = []
    for i in range(n):
        if i % 2:
            b = fn_with()
            a = fn_without()
        else:
            a = fn_without()
            b = fn_with()
        shares.append(b / a - 1)
    return shares
