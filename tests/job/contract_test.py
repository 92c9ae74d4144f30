#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The guest contract on one machine: reported troubles of comparable systems, each with
its right outcome. Windows are shortened by FACTOR, as are the times of the guests.
usage: contract_test.py [NAME...]"""
import json
import os
import pathlib
import re
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from shim import CGROUP_PARENT, NS, ROOT, Shim, boot_ns, marked_pids, remove_groups  # noqa: E402

FACTOR = 0.05
TRAIN = (HERE / "guests/train.py").read_text()
LAUNCHER = (HERE / "guests/launcher.py").read_text()
TESTS = []


def test(fn):
    TESTS.append(fn)
    return fn


def put(shim, **files):
    """Inputs: files of the working folder."""
    work = shim.dir / "work"
    work.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = work / name.replace("__", ".")
        path.write_text(text)
        path.chmod(0o755)


def train(shim, args, spec=None, prefix="", **start):
    put(shim, train__py=TRAIN, launcher__py=LAUNCHER)
    shim.start(f"{prefix}exec /usr/bin/python3 train.py {args}" if not prefix.endswith(";")
               else f"{prefix} /usr/bin/python3 train.py {args}; exit $?", spec=spec, **start)
    shim.wait_output("ready")
    return shim


def saved_step(shim):
    return json.loads((shim.dir / "ckpt/state.json").read_text())


class Stall(threading.Thread):
    """How late this machine is at the moment: other people's load is not our fault."""

    def __init__(self):
        super().__init__(daemon=True)
        self.worst = 0.0
        self.start()

    def run(self):
        while True:
            before = time.monotonic()
            time.sleep(0.01)
            self.worst = max(self.worst * 0.999, time.monotonic() - before - 0.01)


STALL = Stall()


def free_by_deadline(shim, margin=1.0):
    """The machine is free at most a second after T, and free means that nobody is left."""
    event = shim.exited(timeout=max(0, shim.deadline + margin - time.monotonic()) + 20)
    left = marked_pids(shim.job)
    assert not left, f"reported free with {left}"
    late = int(event["ended_ns"]) / NS - shim.deadline_boot
    assert late <= margin + 4 * STALL.worst, f"free {late:.3f} s after T (stall {STALL.worst:.3f} s)"
    return event


# -- who hears the notice ------------------------------------------------------------


@test
def launcher_that_kills_after_30_s(s):
    """Case 1: save 60 s, the launcher's patience 30 s, W = 120 s."""
    put(s, train__py=TRAIN, launcher__py=LAUNCHER)
    s.start(f"exec /usr/bin/python3 launcher.py {30 * FACTOR} /usr/bin/python3 train.py --burn "
            f"--catch SIGTERM --save-s {60 * FACTOR}", spec={"signal": "TERM"})
    s.wait_output("ready")
    # The launcher's start costs CPU too; the worker has to have worked to be told from it.
    busy = time.monotonic() + 2
    while time.monotonic() < busy:
        select.select([], [], [], 0.1)
    s.notice(120 * FACTOR)
    event = s.exited()
    assert "launcher:" not in s.output(), s.output()
    assert event["end"] == "reclaimed", event
    assert "after it had saved" in event["reason"], event
    assert saved_step(s)["saves"] == 1


@test
def wrapper_turns_85_into_1(s):
    """Case 2: the job committed, its wrapper says 1: no failure."""
    put(s, train__py=TRAIN)
    s.start("/usr/bin/python3 train.py --catch SIGUSR1 || exit 1", spec={"signal": "USR1"})
    s.wait_output("ready")
    s.notice(60 * FACTOR)
    event = s.exited()
    assert event["end"] == "reclaimed" and event["status"] == 1, event
    assert "after it had saved" in event["reason"], event


@test
def shell_without_exec(s):
    """Case 3: sh -c 'python train' without exec, W = 60: the trainer gets it in a second."""
    train(s, "--catch SIGTERM", prefix="true;", spec={"signal": "TERM"})
    at = boot_ns()
    s.notice(60 * FACTOR)
    s.wait_output("signal SIGTERM")
    heard = float(re.search(r"signal SIGTERM at ([\d.]+)", s.output()).group(1))
    assert heard - at / NS < 1, heard - at / NS
    assert s.exited()["end"] == "reclaimed"
    assert saved_step(s)["saves"] == 1


@test
def blocked_signal_is_heard_by_file(s):
    """Case 4: a library blocks SIGUSR1; the job learns of it by file within a second."""
    train(s, "--block SIGUSR1 --poll file", spec={"signal": "USR1"})
    at = boot_ns()
    s.notice(60 * FACTOR)
    s.wait_output("noticed by file")
    heard = float(re.search(r"noticed by file at ([\d.]+)", s.output()).group(1))
    assert heard - at / NS < 1, heard - at / NS
    assert s.exited()["end"] == "reclaimed" and saved_step(s)["saves"] == 1


@test
def blocked_signal_is_heard_by_http(s):
    """Case 4, by the cloud spot path."""
    train(s, "--block SIGUSR1 --poll http", spec={"signal": "USR1"}, own_network=ROOT)
    at = boot_ns()
    s.notice(60 * FACTOR)
    s.wait_output("noticed by http")
    heard = float(re.search(r"noticed by http at ([\d.]+)", s.output()).group(1))
    assert heard - at / NS < 1, heard - at / NS
    assert s.exited()["end"] == "reclaimed"


@test
def term_ignored_usr1_saves_once(s):
    """Case 5: saved, and once, although the window is long enough for a second signal."""
    train(s, "--ignore SIGTERM --catch SIGUSR1 --after go-on", spec={"signal": "USR1@90"})
    s.notice(6)
    s.wait("state", why="state.json")
    event = free_by_deadline(s)
    assert event["end"] == "reclaimed", event
    assert saved_step(s)["saves"] == 1, saved_step(s)
    assert s.output().count("signal SIGUSR1") == 1, s.output()


@test
def second_signal_when_nothing_was_saved(s):
    """Told again near the end if the first signal came to nothing."""
    put(s, g__py="import os,signal,time\ndef h(*a):\n os.write(1, b'signal\\n')\n"
        "signal.signal(signal.SIGTERM, h)\nos.write(1, b'ready\\n')\nwhile True: time.sleep(1)\n")
    s.start("exec /usr/bin/python3 g.py", spec={"signal": "TERM"})
    s.wait_output("ready")
    s.notice(6)
    free_by_deadline(s)
    assert s.output().count("signal") == 2, s.output()


@test
def batch_only_signal(s):
    """B: the batch shell alone; its child must not get it."""
    put(s, train__py=TRAIN)
    s.start(script="#!/bin/bash\n#SBATCH --signal=B:USR1@60\ntrap 'echo shell heard' USR1\n"
            "/usr/bin/python3 train.py --catch SIGUSR1 &\nchild=$!\nwait $child\nwait $child\n",
            spec={"signal": "B:USR1@60"})
    s.wait_output("ready")
    s.notice(3)
    s.wait_output("shell heard")
    free_by_deadline(s)
    assert "signal SIGUSR1" not in s.output(), s.output()


@test
def no_signal_to_one_who_does_not_catch_it(s):
    """driver auto: a program without a handler is not killed by the request to save."""
    train(s, "--every 5 --step-s 0.05", spec={})
    s.notice(3)
    event = free_by_deadline(s)
    assert event["end"] == "reclaimed", event
    # Held until T and killed there, not at the notice.
    assert int(event["ended_ns"]) / NS >= s.deadline_boot, event


# -- the window ----------------------------------------------------------------------


@test
def deadlocked_save_handler(s):
    """Case 6: free by T + 1 s."""
    train(s, "--catch SIGTERM --every 10 --save-s 0 --deadlock", spec={"signal": "TERM"})
    s.wait_output("saved")
    s.notice(2)
    event = free_by_deadline(s)
    assert event["end"] == "reclaimed", event
    step = saved_step(s)["step"]
    assert step >= 10 and step % 10 == 0


@test
def commit_after_the_notice_counts(s):
    """Case 8: the shim says that it is saved, and the folder holds that commit."""
    train(s, "--catch SIGTERM --every 10 --save-s 0.2 --after go-on", spec={"signal": "TERM"})
    s.wait_output("saved 10")
    before = saved_step(s)["step"]
    s.notice(3)
    s.wait("state", why="state.json")
    assert s.hello()["saved"] is True
    assert saved_step(s)["step"] > before
    free_by_deadline(s)


@test
def reclaim_before_any_checkpoint(s):
    """Case 9: requeued from the start with that reason, not failed."""
    train(s, "--step-s 1", spec={"signal": "TERM"})
    s.notice(1)
    event = free_by_deadline(s)
    assert event["end"] == "reclaimed" and "before any checkpoint" in event["reason"], event


@test
def acknowledged_save_ends_the_window(s):
    """Case 12: W = 120, the save takes 90: no early kill, released when acknowledged."""
    train(s, f"--catch SIGTERM --save-s {90 * FACTOR} --after ack", spec={"signal": "TERM"})
    begin = time.monotonic()
    s.notice(120 * FACTOR)
    s.wait("acked", timeout=120 * FACTOR)
    took = time.monotonic() - begin
    assert took >= 90 * FACTOR, took
    assert marked_pids(s.job), "killed although the agent has not taken the image yet"
    # Nobody is there to take it: the window ends at once, not at T.
    s.disconnect()
    s.connect()
    event = s.hello()["exited"]
    if event["end"] == "none":
        event = s.exited()
    assert event["end"] == "reclaimed", event
    assert time.monotonic() < s.deadline, "held to T"
    assert not marked_pids(s.job)


@test
def cancelled_at_half_time(s):
    """Case 13: the job goes on in place, no step lost, nothing ends at T."""
    train(s, "--poll file --after go-on", spec={"checkpoint": {"driver": "poll"}})
    s.notice(2)
    s.wait_output("noticed by file")
    pid = s.hello()["guest_pid"]
    s.must("cancel")
    s.wait("state", state="running")
    notice = json.loads((s.base / "run" / f"{s.job}.1" / "notice.json").read_text())
    assert notice["action"] == "none", notice
    while time.monotonic() < s.deadline + 0.3:
        select.select([], [], [], 0.1)
    hello = s.hello()
    assert hello["state"] == "running" and hello["guest_pid"] == pid, hello


@test
def freeze_thaw_and_cancel(s):
    """A frozen guest does not move; cancel thaws it."""
    train(s, "", spec={"checkpoint": {"driver": "poll"}})
    s.notice(30)
    s.must("freeze")
    first = cpu(s)
    until = time.monotonic() + 0.4
    while time.monotonic() < until:
        select.select([], [], [], 0.1)
    assert cpu(s) == first, "a frozen guest used CPU"
    assert s.hello()["frozen"] is True
    s.must("cancel")
    assert s.hello()["frozen"] is False
    until = time.monotonic() + 10
    while cpu(s) == first and time.monotonic() < until:
        select.select([], [], [], 0.02)
    assert cpu(s) > first, "did not go on"


def cpu(s):
    total = 0
    for pid in marked_pids(s.job):
        total += int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return total


@test
def moved_deadline(s):
    """A second notice moves T and does not signal again."""
    train(s, "--catch SIGTERM --after go-on --save-s 0", spec={"signal": "TERM"})
    s.notice(30)
    s.wait_output("saved")
    s.notice(0.5)
    free_by_deadline(s)
    assert s.output().count("signal SIGTERM") == 1, s.output()


# -- guests that will not go ---------------------------------------------------------

STUBBORN = {
    "ignores_everything": "trap '' TERM INT HUP USR1 USR2; echo ready; while :; do sleep 1; done",
    "double_forked": "(setsid sh -c 'trap \"\" TERM; echo ready; while :; do sleep 1; done' &) ; sleep 0.2; "
                     "exec sleep 1000",
    "stopped": "echo ready; kill -STOP $$; sleep 1000",
    "core_dumping": "ulimit -c unlimited 2>/dev/null; trap 'kill -SEGV $$' TERM; echo ready; "
                    "while :; do sleep 0.1; done",
    "many_processes": "for i in $(seq 150); do sleep 1000 & done; echo ready; wait",
    "forks_while_dying": "f() { trap '' TERM; while :; do sleep 0.02 & wait; done; }; for i in 1 2 3 4 5; do "
                         "f & done; echo ready; wait",
    "orphan_with_open_output": "(sh -c 'exec sleep 1000' &); echo ready; exit 0",
}


def make_stubborn(name, script, **start):
    def run(s):
        s.start(script, wait=False, **start)
        s.wait_output("ready")
        if s.hello()["exited"]["end"] != "none" or name.startswith("orphan"):
            s.exited()
            assert not marked_pids(s.job)
            return
        s.notice(1)
        event = free_by_deadline(s)
        assert event["end"] in ("reclaimed", "done"), event
        assert not list(s.dir.glob("work/core*")), "a core was written"

    run.__name__ = name
    run.__doc__ = "Free at T + 1 s"
    TESTS.append(run)


for _name, _script in STUBBORN.items():
    make_stubborn(f"stubborn_{_name}", _script)
    make_stubborn(f"orphan_process_rung_{_name}" if "orphan" in _name else f"stubborn_process_rung_{_name}",
                  _script, rung="process")
    if ROOT:
        make_stubborn(f"orphan_no_cgroup_{_name}" if "orphan" in _name else f"stubborn_no_cgroup_{_name}",
                      _script, rung="process", cgroup_parent=None)


@test
def take_back_now(s):
    """--now: a deadline that is past kills at once."""
    train(s, "--catch SIGTERM")
    s.notice(0)
    event = free_by_deadline(s)
    assert event["end"] == "reclaimed", event
    assert "signal" not in s.output()


# -- exits ---------------------------------------------------------------------------


def ends(s, script, end, status, spec=None, text=None):
    s.start(script, spec=spec, wait=False)
    event = s.exited()
    assert event["end"] == end and event["status"] == status, event
    assert not text or text in event["reason"], event
    assert event["pids_left"] == "0"


@test
def exit_0(s):
    ends(s, "echo out; echo err >&2", "done", 0)
    assert sorted(s.output().split()) == ["err", "out"]


@test
def exit_3(s):
    ends(s, "exit 3", "failed", 3)


@test
def killed_by_itself(s):
    ends(s, "kill -9 $$", "failed", 137, text="SIGKILL")


@test
def exit_85(s):
    ends(s, "exit 85", "restart", 85)


@test
def command_not_found(s):
    s.start(["no-such-program"], wait=False)
    event = s.exited()
    assert event["end"] == "failed" and event["status"] == 127, event


@test
def command_not_found_process_rung(s):
    s.start(["no-such-program"], wait=False, rung="process")
    event = s.exited()
    assert event["end"] == "failed" and event["status"] == 127, event


@test
def requeue_by_scontrol(s):
    ends(s, "scontrol requeue $SLURM_JOB_ID", "restart", 0, text="requeued")


@test
def exit_0_in_a_notice_with_checkpoints(s):
    """Saved and left with 0: not finished, it goes on elsewhere."""
    train(s, "--catch SIGTERM --after exit0", spec={"signal": "TERM"})
    s.notice(3)
    event = s.exited()
    assert event["end"] == "reclaimed", event


@test
def exit_0_in_a_notice_when_that_means_done(s):
    train(s, "--catch SIGTERM --after exit0", spec={"signal": "TERM", "done_on_notice_exit": True})
    s.notice(3)
    assert s.exited()["end"] == "done"


@test
def exit_0_in_a_notice_without_checkpoints(s):
    s.start("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done", spec={"signal": "TERM"})
    s.wait_output("ready")
    s.notice(3)
    assert s.exited()["end"] == "done"


@test
def time_limit(s):
    s.start("trap 'echo told; exit 1' TERM; while :; do sleep 0.05; done", spec={"time_limit": "1s"})
    event = s.exited()
    assert event["end"] == "time_limit", event
    assert "told" in s.output()


@test
def cannot_start_here(s):
    """A machine's fault is not the job's: an image that is not there."""
    s.start("true", wait=False, image="/no/such/image")
    event = s.exited()
    assert event["end"] in ("not_started",) or not ROOT, event


# -- shim, agent, lease ----------------------------------------------------------------


@test
def deadline_fires_without_the_agent(s):
    train(s, "--ignore SIGTERM")
    s.notice(1.5)
    s.disconnect()
    while marked_pids(s.job) and time.monotonic() < s.deadline + 20:
        select.select([], [], [], 0.01)
    assert not marked_pids(s.job)
    hello = s.connect()
    assert hello["exited"]["end"] in ("reclaimed", "none"), hello
    late = int((hello["exited"] if hello["state"] == "ended" else s.exited())["ended_ns"]) / NS - s.deadline_boot
    assert late <= 1 + 4 * STALL.worst, late
    record = json.loads(s.state_file.read_text())
    assert record["hello"]["exited"]["end"] == "reclaimed", record


@test
def agent_comes_again(s):
    train(s, "")
    before = s.hello()
    s.disconnect()
    after = s.connect()
    assert after["state"] == "running" and after["guest_pid"] == before["guest_pid"]
    assert after["rung"] == before["rung"] and after["epoch"] == "1"


@test
def shim_killed(s):
    """kill -9 of the shim takes the guest with it."""
    train(s, "--ignore SIGTERM")
    assert marked_pids(s.job)
    s.process.send_signal(signal.SIGKILL)
    end = time.monotonic() + 1
    while marked_pids(s.job) and time.monotonic() < end:
        select.select([], [], [], 0.005)
    assert not marked_pids(s.job)


@test
def lease_end_freezes_and_a_new_lease_thaws(s):
    train(s, "", lease_deadline_ns=str(boot_ns() + 4 * NS), lease_margin_ns=str(3 * NS // 2))
    event = s.wait("state", lease_frozen=True)
    assert event["_at"] < time.monotonic() + int(s.hello()["lease_deadline_ns"]) / NS - boot_ns() / NS, "late"
    used = cpu(s)
    reply = s.call("thaw")
    assert "error" in reply, reply
    s.must("lease", lease_deadline_ns=str(boot_ns() + 3600 * NS))
    s.wait("state", lease_frozen=False)
    end = time.monotonic() + 5
    while cpu(s) == used and time.monotonic() < end:
        select.select([], [], [], 0.02)
    assert cpu(s) > used
    assert event["frozen"] is True


@test
def lease_end_kills(s):
    deadline = boot_ns() + 4 * NS
    train(s, "", lease_deadline_ns=str(deadline), lease_margin_ns=str(3 * NS // 2), lease_action="kill")
    event = s.exited()
    assert event["end"] == "lease", event
    assert int(event["ended_ns"]) <= deadline, "outlived its lease"


@test
def start_waits_for_go(s):
    s.start("echo started", wait=False, wait_go=True, own_network=ROOT)
    ready = s.wait("ready")
    assert not s.output()
    if ROOT:
        assert os.path.exists(ready["netns"]), ready
        assert os.readlink(ready["netns"]) != os.readlink("/proc/self/ns/net")
    s.must("go")
    assert s.exited()["end"] == "done" and "started" in s.output()


@test
def reclaimed_before_it_started(s):
    s.start("echo started", wait=False, wait_go=True)
    s.wait("ready")
    s.notice(1)
    event = s.exited()
    assert event["end"] == "reclaimed", event
    assert "started" not in s.output()


@test
def owner_may_say_little(s):
    """Another user with access to the socket may take back, but not start or dump."""
    if not ROOT:
        return
    train(s, "")
    os.chmod(s.socket, 0o666)
    s.base.chmod(0o755)
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            s.connect()
            refused = "error" in s.call("freeze") and "error" in s.call("close")
            s.must("kill", reason="owner")
            os.write(w, b"ok" if refused else b"no")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(w)
    assert os.read(r, 2) == b"ok"
    assert s.exited()["end"] == "killed"


@test
def log_flood_is_bounded(s):
    s.start("yes 0123456789abcdef | head -c 40000000; echo done >&2", log_max=str(1 << 20))
    event = s.exited(60)
    assert event["end"] == "done", event
    assert s.log.stat().st_size < (1 << 20) + 4096
    assert int(event["log_dropped"]) > 38_000_000
    assert "limit of 1048576 bytes" in s.output()


@test
def secrets_in_memory_only(s):
    s.start("cat $RECLAIM_SECRETS_DIR/token; stat -f -c %T $RECLAIM_SECRETS_DIR/token; "
            "echo x > $RECLAIM_SECRETS_DIR/token; echo again",
            secrets=[{"name": "token", "value": "s3cr3t-value"}])
    s.exited()
    assert "s3cr3t-value" in s.output() and "tmpfs" in s.output()
    for path in s.dir.rglob("*"):
        if path.is_file() and path != s.log:
            assert b"s3cr3t-value" not in path.read_bytes(), path
    assert b"s3cr3t-value" not in s.state_file.read_bytes()


@test
def checkpoint_dir_is_a_link(s):
    s.start("echo 1 > out/ckpts/a; ls $RECLAIM_CHECKPOINT_DIR", spec={"checkpoint": {"dir": "out/ckpts"}})
    assert s.exited()["end"] == "done"
    assert (s.dir / "ckpt/a").exists()


@test
def nothing_is_left(s):
    s.start("sleep 0.1 & sleep 0.2")
    s.exited()
    s.must("close")
    s.process.wait(10)
    assert not (s.base / "run" / f"{s.job}.1").exists()
    assert not s.socket.exists()
    if ROOT:
        for mount in ("unified", "memory", "pids", "cpu", "devices", "."):
            group = pathlib.Path("/sys/fs/cgroup", mount, CGROUP_PARENT, f"{s.job}.1")
            assert not group.exists(), group


def run_one(fn):
    begin = time.monotonic()
    with Shim() as s:
        try:
            fn(s)
        except Exception:
            return f"{traceback.format_exc()}{s.output()[-2000:]}\n{s.shim_text()[-3000:]}\nFAIL {fn.__name__}"
    return f"ok   {fn.__name__} ({time.monotonic() - begin:.2f} s)"


def main():
    names = sys.argv[1:]
    failed = []
    print(f"windows and times shortened by {FACTOR}", flush=True)
    chosen = [fn for fn in TESTS if not names or fn.__name__ in names]
    # Most of a test is waiting for a deadline; those that fork are better alone.
    alone = [fn for fn in chosen if fn is owner_may_say_little]
    for fn in alone:
        text = run_one(fn)
        print(text, flush=True)
        failed += [fn.__name__] if "FAIL" in text else []
    with ThreadPoolExecutor(3) as pool:
        rest = [fn for fn in chosen if fn not in alone]
        for fn, text in zip(rest, pool.map(run_one, rest)):
            print(text, flush=True)
            failed += [fn.__name__] if text.rsplit("\n", 1)[-1].startswith("FAIL") else []
    try:
        remove_groups(children=True)
    except OSError as e:
        print("groups left behind:", e)
        failed.append("groups")
    print(f"{len(failed)} failed" + (": " + " ".join(failed) if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
