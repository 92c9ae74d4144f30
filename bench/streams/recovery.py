#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a communicator that is torn down and made anew costs: gloo with a perfect oracle, and
Open MPI, whose job is started again. Prints lines: SYSTEM OUTAGE_MS.

gloo: three ranks exchange small all-reduces; one is killed; the others know at once (the
oracle), make a new process group with a fresh third rank, and go on. The outage is the time
between the last result before the kill and the first after it, at a survivor.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import time

RANK = '''
import os, sys, time, datetime, torch, torch.distributed as dist
torch.set_num_threads(1)
rank, folder, first = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
gen = first
def join(g):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{g}", rank=rank, world_size=3,
                            timeout=datetime.timedelta(seconds=20))
join(gen)
if rank == 2 and first:
    open(f"{folder}/replaced", "w").close()
last, n = time.monotonic(), 0
while True:
    try:
        t = torch.ones(256)
        dist.all_reduce(t)
        now = time.monotonic()
        if n == -1:
            if rank == 0:
                print((now - last) * 1000, flush=True)
            break
        last = now
        n = 1
        if gen and rank == 2:
            break
    except RuntimeError:
        # The oracle: everybody knows that rank 2 died, and that a new one is coming.
        gen += 1
        n = -1
        dist.destroy_process_group()
        join(gen)
os._exit(0)
'''


def gloo():
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "rank.py")
        with open(script, "w", encoding="ascii") as f:
            f.write(RANK)
        env = dict(os.environ, GLOO_SOCKET_IFNAME="lo")

        def start(rank, gen, **more):
            return subprocess.Popen(["/usr/bin/python3", script, str(rank), folder, str(gen)],
                                    env=env, stderr=subprocess.DEVNULL, **more)
        ranks = [start(0, 0, stdout=subprocess.PIPE), start(1, 0), start(2, 0)]
        # The replacement is warm already, waiting at the next rendezvous.
        spare = start(2, 1)
        time.sleep(8)
        ranks[2].kill()
        try:
            out = ranks[0].communicate(timeout=30)[0].decode().split()
            print("gloo", out[0] if out else "nan", flush=True)
        except subprocess.TimeoutExpired:
            print("gloo nan", flush=True)
        for p in ranks + [spare]:
            p.kill()
            p.wait()


ELASTIC = '''
import os, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, path = dist.get_rank(), os.environ["BENCH_FILE"]
restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
n = 0
while True:
    t = torch.ones(256)
    dist.all_reduce(t)
    if rank == 0:
        with open(path, "a") as f:
            f.write(f"{restart} {time.monotonic()}\\n")
    n += 1
    time.sleep(0.005)
    if restart == 0 and n == 100 and rank == 1:
        os.kill(os.getpid(), 9)
    if restart and n == 20:
        break
'''


def elastic():
    with tempfile.TemporaryDirectory() as folder:
        script, log = os.path.join(folder, "rank.py"), os.path.join(folder, "log")
        with open(script, "w", encoding="ascii") as f:
            f.write(ELASTIC)
        env = dict(os.environ, GLOO_SOCKET_IFNAME="lo", BENCH_FILE=log)
        subprocess.run(["/usr/bin/python3", "-m", "torch.distributed.run", "--nproc_per_node=2",
                        "--max_restarts=2", "--monitor_interval=0.1", "--master_addr=127.0.0.1",
                        "--master_port=29511",
                        # Its own default, 0, and 3 are not found in the enum under Python 3.11.
                        "--redirects=1", "--tee=1", "--log_dir=" + folder, script], env=env, timeout=120, check=False,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = [line.split() for line in open(log, encoding="ascii")]
        before = [float(t) for r, t in rows if r == "0"]
        after = [float(t) for r, t in rows if r != "0"]
        print("torch_elastic", (after[0] - before[-1]) * 1000 if before and after else "nan",
              flush=True)


def openmpi(program):
    """The job dies with its rank; the outage is the time to start it again."""
    from_s = time.monotonic()
    subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "--mca", "btl",
                    "self,tcp", "--mca", "btl_tcp_if_include", "lo", program, "pingpong", "64",
                    "0.001"], check=False, timeout=60, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    print("openmpi_tcp", (time.monotonic() - from_s - 0.2) * 1000, flush=True)


def main():
    for what in (gloo, elastic):
        try:
            what()
        except (OSError, subprocess.SubprocessError, ValueError) as e:
            print(f"{what.__name__} skipped: {e}", file=sys.stderr)
    if len(sys.argv) > 1 and shutil.which("mpirun"):
        openmpi(sys.argv[1])


main()
