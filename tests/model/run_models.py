#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the stream models with SPIN, exhaustively.

Every variant must hold and every mutant, a rule left out, must fail: a mutant
that passes means that the model no longer sees what the rule is for.
Usage: run_models.py [--jobs N]. Exit 77 when spin is not installed.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

# model, defines, must it hold
CASES = [
    ("handover", [], True),
    ("handover", ["RESET"], True),
    ("handover", ["CRASH_C"], True),
    ("handover", ["CRASH_T"], True),
    ("handover", ["CRASH_S", "TAKEOVER"], True),
    ("handover", ["CRASH_S", "TAKEOVER", "CHECKPOINT"], True),
    ("handover", ["CRASH_T", "TAKEOVER", "CHECKPOINT"], True),
    ("handover", ["CRASH_C", "CRASH_S", "TAKEOVER", "RESET"], True),
    ("handover", ["BUG_DUAL"], False),
    ("handover", ["BUG_UNFREEZE"], False),
    ("handover", ["BUG_COMMIT", "CRASH_T"], False),
    ("handover", ["BUG_ABA", "CRASH_T", "CRASH_C"], False),
    ("handover", ["BUG_TRIM", "TAKEOVER", "CHECKPOINT"], False),
    ("handover", ["BUG_FENCE", "TAKEOVER", "CHECKPOINT"], False),
    ("handover", ["BUG_LEASE", "TAKEOVER"], False),
    ("credits", [], True),
    ("credits", ["STUCK"], True),
    ("credits", ["BUG_INCR"], False),
    ("credits", ["BUG_POOL", "STUCK"], False),
    ("credits", ["BUG_CARRY"], False),
    ("lease", [], True),
    ("lease", ["BUG_REPLY"], False),
    ("lease", ["BUG_MARGIN"], False),
    ("lease", ["BUG_ROUTE"], False),
    ("producer", [], True),
    ("producer", ["HOLD"], True),
    ("producer", ["BUG_FENCE"], False),
    ("producer", ["BUG_CURSOR"], False),
    ("producer", ["HOLD", "BUG_HOLD"], False),
]


def check(model, defines):
    """Returns (holds, states, what SPIN said)."""
    with tempfile.TemporaryDirectory() as tmp:
        src = os.path.join(HERE, model + ".pml")
        flags = ["-D" + d for d in defines]
        subprocess.run(["spin", "-a"] + flags + [src], cwd=tmp, check=True,
                       stdout=subprocess.DEVNULL)
        subprocess.run(["cc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=3000", "-o", "pan",
                        "pan.c"], cwd=tmp, check=True)
        out = subprocess.run(["./pan", "-m200000", "-w24"], cwd=tmp, check=False,
                             capture_output=True, text=True).stdout
    states = re.search(r"(\d+) states, stored", out)
    errors = re.search(r"errors: (\d+)", out)
    if not states or not errors or "search not completed" in out and errors.group(1) == "0":
        sys.exit(f"{model} {defines}: SPIN did not finish:\n{out}")
    if "max search depth too small" in out:
        sys.exit(f"{model} {defines}: search depth too small")
    said = re.search(r"pan:\d+: (.*?) \(at", out)
    return errors.group(1) == "0", int(states.group(1)), said.group(1) if said else ""


def main():
    if not shutil.which("spin"):
        print("SKIP: spin is not installed")
        return 77
    bad = 0
    for model, defines, holds in CASES:
        got, states, said = check(model, defines)
        ok = got == holds
        bad += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {model:9} {' '.join(defines) or '-':40} "
              f"{states:>9} states  {'holds' if got else 'fails: ' + said}", flush=True)
    print(f"{len(CASES) - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
