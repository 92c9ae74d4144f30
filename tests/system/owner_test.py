#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Back without a command: login, keyboard, own GPU and CPU use, lid, suspend and shutdown each lead
to FREE within the window, and the guest goes on elsewhere from its last image; no shutdown loses a
durable one. Signs come by what this machine has: utmp, a terminal of the kernel, the logind bus
(played by python3-dbusmock on a bus of its own), an NVML library; else by `reclaim trigger`."""
import json
import os
import pty
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

from labkit import BUILD, Skip, check, main, number, wait_for

M = "m1"
WINDOW_S = 8.0
EVERY = 30  # steps between checkpoints
LOGIN1 = ["org.freedesktop.login1", "/org/freedesktop/login1"]
MANAGER = "org.freedesktop.login1.Manager"


# ---- the world around the agent, made before the lab so that its agents inherit it

def world():
    """A system bus with a logind on it, and a GPU. Returns what is to be ended."""
    top = tempfile.mkdtemp(prefix="reclaim-owner-")
    os.chmod(top, 0o755)
    os.environ["OWNER_WORLD"] = top
    gpus(top, "")
    fake = os.path.join(BUILD, "src/job/libfake-nvml.so")
    os.environ["RECLAIM_NVML"] = os.path.abspath(fake)
    os.environ["FAKE_NVML"] = os.path.join(top, "gpus")
    children = []
    try:
        import dbus  # noqa: F401
        import dbusmock  # noqa: F401
        daemon = shutil.which("dbus-daemon")
    except ImportError:
        daemon = None
    if daemon:
        config = os.path.join(top, "bus.conf")
        with open(config, "w") as f:
            f.write('<busconfig><type>system</type><listen>unix:path=%s/bus</listen>'
                    '<policy context="default"><allow send_destination="*" eavesdrop="true"/>'
                    '<allow eavesdrop="true"/><allow own="*"/><allow user="*"/></policy></busconfig>' % top)
        os.environ["DBUS_SYSTEM_BUS_ADDRESS"] = "unix:path=%s/bus" % top
        children.append(subprocess.Popen([daemon, "--config-file=" + config, "--nofork"]))
        wait_for("a bus", lambda: os.path.exists(top + "/bus"))
        children.append(subprocess.Popen(
            ["/usr/bin/python3", "-m", "dbusmock", "--system", "--template", "logind"],
            stdout=subprocess.DEVNULL))
        wait_for("logind", lambda: bus("--timeout=1", *LOGIN1, MANAGER + ".ListInhibitors", ok=False) is not None)
        bus(*LOGIN1, "org.freedesktop.DBus.Mock.AddProperty", "string:" + MANAGER,
            "string:InhibitDelayMaxUSec", "variant:uint64:6000000")
    return top, children


def bus(*args, ok=True):
    """One call; its answer, or None."""
    timeout = [args[0]] if args[0].startswith("--") else []
    name, path, method, *values = args[len(timeout):]
    p = subprocess.run(["dbus-send", "--system", "--print-reply", "--type=method_call", "--dest=" + name,
                        path, method, *values], capture_output=True, text=True)
    check(not ok or p.returncode == 0, "%s: %s" % (method, p.stderr))
    return p.stdout if p.returncode == 0 else None


def gpus(top, processes):
    with open(os.path.join(top, "gpus.new"), "w") as f:
        f.write("Fake GPU-0 100 8000 %s\n" % processes)
    os.rename(os.path.join(top, "gpus.new"), os.path.join(top, "gpus"))


def need_bus():
    if "DBUS_SYSTEM_BUS_ADDRESS" not in os.environ:
        raise Skip("no dbus-daemon or python3-dbusmock: logind's interface cannot be played")


def signal(name, value):
    """logind says PrepareForShutdown or PrepareForSleep."""
    import dbus
    b = dbus.bus.BusConnection(os.environ["DBUS_SYSTEM_BUS_ADDRESS"])
    mock = dbus.Interface(b.get_object(*LOGIN1), "org.freedesktop.DBus.Mock")
    mock.EmitSignal(MANAGER, name, "b", [value])
    b.close()


def locks():
    out = bus(*LOGIN1, MANAGER + ".ListInhibitors")
    return out.count("ReclaimNet")


# ---- helpers

def where(lab):
    return lab.map["machines"][M]


def sensors(lab):
    """The agent of m1 looks at files and a terminal of ours. Once per lab."""
    if hasattr(lab, "tty"):
        return
    top = os.environ["OWNER_WORLD"]
    lab.utmp, lab.lid = top + "/utmp", top + "/lid"
    lab.master, lab.tty = pty.openpty()
    with open(lab.lid, "w") as f:
        f.write("state:      open\n")
    with open(where(lab)["config"], "a") as f:
        f.write("sensors: {utmp: %s, lid: %s, inputs: [%s], logind: true}\n" %
                (lab.utmp, lab.lid, os.ttyname(lab.tty)))
    restart_agent(lab)


def restart_agent(lab):
    lab.do(do="restart", what="agent", machines=[M])
    wait_for("the agent", lambda: lab.owner(M, "status", ok=False).returncode == 0)


def state(lab):
    return lab.ask(M)["state"]


def lent(lab):
    wait_for(lambda: "m1 lent: %s" % lab.ask(M), lambda: state(lab) == "lent", 20)


def guest(lab):
    """A job that runs on m1 and has a durable image."""
    sensors(lab)
    if state(lab) != "lent":
        wait_for("m1 lends", lambda: lab.owner(M, "lend", ok=False).returncode == 0)
    lent(lab)
    others = [m for m in lab.machines if m != M]
    for m in others:
        lab.owner(m, "pause")
    job = lab.submit(["train", "--width", "32", "--layers", "1", "--context", "16", "--steps", "6000",
                      "--every", str(EVERY), "--pace", "20ms"])
    j = lab.wait_state(job, "running")
    check(j["node"] == M, "it runs on " + j["node"])
    for m in others:
        lab.owner(m, "resume")
    return job, number(lab.wait_durable(job)["epoch"])


def taken(lab, job, epoch, begin, reason, window=WINDOW_S):
    """FREE within the window from begin; the job elsewhere, no step behind its durable image."""
    wait_for(lambda: "a notice: %s" % lab.ask(M),
             lambda: state(lab) != "lent", window)
    s = lab.ask(M)
    check(s.get("reason") == reason, "the reason is %s" % s.get("reason"))
    wait_for("free", lambda: state(lab) == "owned", window)
    took = time.monotonic() - begin
    check(took <= window, "it took %.1f s" % took)
    check(not lab.guests_left(M), "processes are left")
    check(lab.ask(M)["proven_free"], "not proven")
    elsewhere(lab, job, epoch)
    return took


def elsewhere(lab, job, epoch):
    """It runs on another machine, in a later incarnation; the step it went on from."""
    run = wait_for("%s elsewhere" % job, lambda: sorted(
        (r for r in lab.observed() if r["job"] == job and r["epoch"] > epoch and r["first_step"]),
        key=lambda r: r["epoch"]), 40)[0]
    check(run["machine"] != M, "it runs on %s again" % M)
    check(run["first_step"] > 1, "it began anew")
    check(number(lab.job(job)["failures"]) == 0, "a failure was counted")
    return run["first_step"] - 1


def done(lab, job):
    lab.user("cancel", job)


# ---- the tests

def login(lab):
    """A session in utmp takes the machine back; after the quiet period it is lent again."""
    job, epoch = guest(lab)
    begin = time.monotonic()
    with open(lab.utmp, "ab") as f:
        f.write(struct.pack("<hxxi32s4s32s256shhiii4i20x", 7, os.getpid(), b"tty1", b"1", b"olga", b"", 0, 0,
                            0, int(time.time()), 0, 0, 0, 0, 0))
    taken(lab, job, epoch, begin, "login")
    check("been away" in (lab.ask(M).get("lends") or "") or state(lab) == "lent", "it does not say when")
    lent(lab)
    check(time.monotonic() - begin >= 2, "lent again before the quiet period was over")
    done(lab, job)


def login_by_logind(lab):
    """A session that logind announces, where there is no utmp entry; a cron session is nobody's."""
    need_bus()
    job, epoch = guest(lab)
    sessions = "/org/freedesktop/login1/session/"
    for name, kind in (("c7", "background"), ("7", "user")):
        import dbus
        b = dbus.bus.BusConnection(os.environ["DBUS_SYSTEM_BUS_ADDRESS"])
        mock = dbus.Interface(b.get_object(*LOGIN1), "org.freedesktop.DBus.Mock")
        mock.AddObject(sessions + name, "org.freedesktop.login1.Session",
                       {"Class": kind, "Name": "olga", "State": "active"}, [])
        check(state(lab) == "lent", "taken back by a session of cron")
        begin = time.monotonic()
        mock.EmitSignal(MANAGER, "SessionNew", "so", [name, sessions + name])
        if kind == "background":
            # The agent has asked for its class and been answered before the next signal is read.
            wait_for("the question", lambda: lab.ask(M)["state"] == "lent")
        b.close()
    taken(lab, job, epoch, begin, "login")
    done(lab, job)


def keyboard(lab):
    """Somebody types at a terminal of the machine."""
    job, epoch = guest(lab)
    begin = time.monotonic()
    os.write(lab.master, b"x\n")
    os.read(lab.tty, 16)
    taken(lab, job, epoch, begin, "keyboard")
    lent(lab)
    done(lab, job)


def own_gpu(lab):
    """A process that is no guest's opens the lent GPU; a guest's on it is no reason."""
    sensors(lab)
    job, epoch = guest(lab)
    guests = lab.guests_left(M)
    check(guests, "no guest process was found")
    gpus(os.environ["OWNER_WORLD"], " ".join("%d:10" % p for p in guests))
    end = time.monotonic() + 3
    wait_for("three seconds of a guest's own use", lambda: check(state(lab) == "lent", "taken back") or
             time.monotonic() > end, 10)
    begin = time.monotonic()
    gpus(os.environ["OWNER_WORLD"], "%d:500" % os.getpid())
    taken(lab, job, epoch, begin, "gpu", WINDOW_S + 3)  # it is looked at once a second, twice
    gpus(os.environ["OWNER_WORLD"], "")
    lent(lab)
    done(lab, job)


def own_cpu(lab):
    """The owner's own work uses the processor."""
    if not lab.map["root"]:
        raise Skip("no root: the guests' share of the processor is not known")
    job, epoch = guest(lab)
    path = where(lab)["config"].replace("agent.yaml", "terms.yaml")
    with open(path) as f:
        before = f.read()
    terms = json.loads(before)
    terms["triggers"]["cpu"] = 0.3
    with open(path, "w") as f:
        json.dump(terms, f)
    lab.owner(M, "reload")
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        wait_for("a notice", lambda: state(lab) != "lent", 30)
        check(lab.ask(M).get("reason") == "cpu", "the reason is %s" % lab.ask(M).get("reason"))
        wait_for("free", lambda: state(lab) == "owned", WINDOW_S)
        elsewhere(lab, job, epoch)
    finally:
        busy.kill()
        busy.wait()
        with open(path, "w") as f:
            f.write(before)
        lab.owner(M, "reload")
    lent(lab)
    done(lab, job)


def lid(lab):
    """The lid is closed, and opened again."""
    job, epoch = guest(lab)
    begin = time.monotonic()
    with open(lab.lid, "w") as f:
        f.write("state:      closed\n")
    taken(lab, job, epoch, begin, "lid")
    check(state(lab) == "owned" and lab.ask(M)["lends"] == "when the machine is up again", str(lab.ask(M)))
    with open(lab.lid, "w") as f:
        f.write("state:      open\n")
    lent(lab)
    done(lab, job)


def suspend(lab):
    """logind is about to suspend: it waits for us, and no longer than until the machine is free."""
    need_bus()
    job, epoch = guest(lab)
    wait_for("our lock", locks)
    begin = time.monotonic()
    signal("PrepareForSleep", True)
    taken(lab, job, epoch, begin, "suspend", 6.0)
    wait_for("the lock is released", lambda: not locks())
    signal("PrepareForSleep", False)
    wait_for("our lock again", locks)
    lent(lab)
    done(lab, job)


def shutdown(lab):
    """logind announces a shutdown: the notice fits what it gives, whatever the terms say."""
    need_bus()
    job, epoch = guest(lab)
    wait_for("our lock", locks)
    begin = time.monotonic()
    signal("PrepareForShutdown", True)
    wait_for("a notice", lambda: state(lab) != "lent")
    left = number(lab.ask(M)["window_ms"])
    check(state(lab) != "notice" or left <= 6000, "a notice of %d ms, and logind waits 6 s" % left)
    taken(lab, job, epoch, begin, "shutdown", 6.0)
    wait_for("the lock is released", lambda: not locks())
    # Off, and on again: the next agent lends, since the owner never asked for the end of it.
    lab.do(do="crash", what="agent", machines=[M])
    restart_agent(lab)
    lent(lab)
    done(lab, job)


def shutdown_by_command(lab):
    """Without logind: the command that an init script runs returns when the machine is free."""
    job, epoch = guest(lab)
    begin = time.monotonic()
    lab.owner(M, "trigger", "shutdown")
    took = time.monotonic() - begin
    check(state(lab) == "owned" and took <= WINDOW_S, "%s after %.1f s" % (state(lab), took))
    check(not lab.guests_left(M), "processes are left")
    elsewhere(lab, job, epoch)
    lab.owner(M, "trigger", "stays")
    lent(lab)
    done(lab, job)


def shutdown_without_agent(lab):
    """The same with the agent dead: the window is the declared one."""
    job, epoch = guest(lab)
    lab.do(do="crash", what="agent", machines=[M])
    begin = time.monotonic()
    p = lab.owner(M, "trigger", "shutdown", timeout=30)
    took = time.monotonic() - begin
    check(took <= WINDOW_S + 1, "it took %.1f s" % took)
    check("within 8.0 s" in p.stdout, p.stdout)
    check(not lab.guests_left(M), "processes are left")
    elsewhere(lab, job, epoch)
    restart_agent(lab)
    lab.owner(M, "lend", ok=False)
    done(lab, job)


def power_lost_at_shutdown(lab):
    """The machine loses its power at random moments of a shutdown: what was durable is what resumes."""
    if not lab.map["namespaces"]:
        raise Skip("no namespaces: cables cannot be cut")
    rng = random.Random(7)
    for _ in range(4):
        job, epoch = guest(lab)
        durable = lab.job(job)
        step = lab.last_step(job)
        p = lab.start_owner(M, "trigger", "shutdown")
        wait_for("a notice", lambda: state(lab) != "lent")
        time.sleep(rng.random() * 0.6)  # the moment is what is drawn; nothing waits for it
        lab.do(do="cut", machines=[M])
        lab.do(do="crash", what="agent", machines=[M])
        for pid in lab.guests_left(M):
            try:
                os.kill(pid, 9)
            except OSError:
                pass
        p.kill()
        p.communicate()
        at = elsewhere(lab, job, epoch)
        now = number(lab.job(job)["durable_seq"])
        check(now >= number(durable["durable_seq"]), "image %d is durable now, %s was" %
              (now, durable["durable_seq"]))
        # The newest durable image is at most two checkpoints old, and one may be under way.
        check(at >= step - 3 * EVERY, "went on from %d, was at %d" % (at, step))
        lab.do(do="restore", machines=[M])
        restart_agent(lab)
        done(lab, job)


def one_that_is_off(lab):
    """A sign that the terms do not want takes nothing back, and is the owner's idle time all the same."""
    sensors(lab)
    m2 = lambda: lab.ask("m2")
    check(m2()["state"] == "lent", "m2 is not lent")
    lab.owner("m2", "trigger", "keyboard")
    # Counted in whole milliseconds, and 0 as long as nobody was ever seen.
    idle = wait_for("an idle time that counts", lambda: number(m2().get("idle_ms")), 5)
    check(idle < 5000, "idle for %d ms" % idle)
    check(m2()["state"] == "lent", "taken back by a keyboard that the terms leave out")


TESTS = [login, login_by_logind, keyboard, own_gpu, own_cpu, lid, suspend, shutdown, shutdown_by_command,
         shutdown_without_agent, power_lost_at_shutdown, one_that_is_off]

if "LAB_DIR" not in os.environ:
    made, to_end = world()
    pid = os.fork()
    if pid == 0:
        main(TESTS, scenario=os.path.join(os.path.dirname(os.path.abspath(__file__)), "owner.yaml"))
    _, status = os.waitpid(pid, 0)
    for child in reversed(to_end):
        child.kill()
        child.wait()
    shutil.rmtree(made, ignore_errors=True)
    sys.exit(os.waitstatus_to_exitcode(status))
main(TESTS)
