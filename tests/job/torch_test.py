#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""examples/pytorch moved three times: loss curve and final weights are bit for bit those of
a run that nobody disturbed. usage: torch_test.py [STEPS]"""
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from shim import BUILD, Shim, remove_groups  # noqa: E402

TOP = HERE.parent.parent
ENV = {"PYTHONPATH": ".", "RECLAIM_LIBRARY": "./libreclaim.so"}


def inputs(folder):
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(TOP / "examples/pytorch/train.py", folder)
    shutil.copytree(TOP / "python/reclaim", folder / "reclaim", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(BUILD / "src/libreclaim/libreclaim.so", folder / "libreclaim.so")


def begin(base, epoch, steps):
    shim = Shim(base=base, job="job-9", epoch=epoch)
    inputs(shim.dir / "work")
    return shim, lambda: shim.start(
        ["/usr/bin/python3", "train.py", "--steps", str(steps), "--every", "7"],
        spec={"env": ENV, "checkpoint": {"driver": "poll", "format": "manifest"}})


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    probe = subprocess.run(["/usr/bin/python3", "-c", "import torch"], check=False, capture_output=True)
    if probe.returncode:
        print("skipped: no PyTorch (python3-torch)")
        return 77
    base = tempfile.mkdtemp(prefix="reclaim-job-")
    os.chmod(base, 0o755)
    shim = None
    try:
        alone = pathlib.Path(base, "alone")
        inputs(alone)
        (alone / "ckpt").mkdir()
        want = subprocess.run(["/usr/bin/python3", "train.py", "--steps", str(steps), "--dir", "ckpt"], cwd=alone,
                              env={**os.environ, **ENV, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True, text=True).stdout
        rng = random.Random(1)
        losses, resumed, digest = {}, [], None
        moves = sorted(rng.sample(range(3, steps - 5), 3))
        for epoch in range(1, 5):
            shim, start = begin(base, epoch, steps)
            if epoch > 1:
                shutil.copytree(pathlib.Path(base, f"jobs/job-9/{epoch - 1}/ckpt"), shim.dir / "ckpt")
            start()
            if epoch <= 3:
                shim.wait_output(f"step {moves[epoch - 1]} loss", timeout=120)
                shim.notice(60)
            event = shim.exited(120)
            assert event["end"] == ("reclaimed" if epoch <= 3 else "done"), (event, shim.output()[-2000:])
            for step, loss in re.findall(r"step (\d+) loss (\S+)", shim.output()):
                assert losses.setdefault(step, loss) == loss, f"step {step} gave another loss again"
            resumed += re.findall(r"resumed at step (\d+)", shim.output())
            found = re.search(r"digest (\w+)", shim.output())
            digest = found.group(1) if found else digest
            if epoch <= 3:
                assert event["acked"], event
            shim.close()
        assert len(resumed) == 3, resumed
        curve = dict(re.findall(r"step (\d+) loss (\S+)", want))
        differs = [(k, losses.get(k), curve[k]) for k in curve if losses.get(k) != curve[k]]
        assert losses == curve, f"the loss curve differs: {differs[:3]}"
        assert digest == re.search(r"digest (\w+)", want).group(1), "the final weights differ"
        print(f"ok   moved at steps {moves}: loss curve and weights bit-identical ({digest[:16]})")
        return 0
    except Exception:
        traceback.print_exc()
        if shim:
            print(shim.output()[-1500:], shim.shim_text()[-1500:])
        return 1
    finally:
        if shim:
            shim.close()
        shutil.rmtree(base, ignore_errors=True)
        remove_groups()


if __name__ == "__main__":
    sys.exit(main())
