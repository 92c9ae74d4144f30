# SPDX-License-Identifier: Apache-2.0
"""A guest's half of the ReclaimNet contract, over libreclaim, without dependencies.

    import reclaim

    while training:
        step()
        if reclaim.notice():
            with reclaim.commit(f"step-{n}", step=n) as folder:
                save_into(folder)
            reclaim.ack()
            raise SystemExit(reclaim.RESTART)

Outside a job everything still works: there is no notice, and commits go to the folder
that is given. ``reclaim.torch`` saves and restores a whole PyTorch training state.
"""
import contextlib
import ctypes
import ctypes.util
import os
import pathlib

RESTART = 85  #: exit status: saved, start me again

NONE, TERMINATE, CHECKPOINT = 0, 1, 2

__all__ = ["RESTART", "NONE", "TERMINATE", "CHECKPOINT", "Notice", "notice", "wait", "fileno",
           "remaining", "ack", "requeue", "checkpoint_dir", "commit", "committed", "latest", "prune",
           "version", "in_job"]


class Notice(ctypes.Structure):
    """What is known of a notice; true when the machine (or a checkpoint) is wanted."""

    _fields_ = [("action", ctypes.c_int), ("remaining_s", ctypes.c_double),
                ("window_s", ctypes.c_double), ("deadline_unix", ctypes.c_double),
                ("epoch", ctypes.c_uint64), ("_id", ctypes.c_char * 128)]

    @property
    def id(self):
        return self._id.decode()

    def __bool__(self):
        return self.action != NONE

    def __repr__(self):
        name = ("none", "terminate", "checkpoint")[self.action]
        return f"Notice({name}, remaining_s={self.remaining_s:.3f}, id={self.id!r})"


def _load():
    here = pathlib.Path(__file__).resolve().parent
    names = [os.environ.get("RECLAIM_LIBRARY"), here / "libreclaim.so", "/reclaim/lib/libreclaim.so",
             here.parent.parent / "build/src/libreclaim/libreclaim.so", "libreclaim.so.0",
             ctypes.util.find_library("reclaim")]
    for name in names:
        if not name:
            continue
        try:
            return ctypes.CDLL(str(name), use_errno=True)
        except OSError:
            continue
    raise ImportError("libreclaim.so was not found; set RECLAIM_LIBRARY to its path")


_lib = _load()
_lib.reclaim_version.restype = ctypes.c_char_p
_lib.reclaim_checkpoint_dir.restype = ctypes.c_char_p
_lib.reclaim_remaining.restype = ctypes.c_double
_lib.reclaim_notice_wait.argtypes = [ctypes.c_int, ctypes.POINTER(Notice)]
_lib.reclaim_commit_begin.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
_lib.reclaim_commit_path.argtypes = [ctypes.c_void_p]
_lib.reclaim_commit_path.restype = ctypes.c_char_p
_lib.reclaim_commit_end.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
_lib.reclaim_commit_abort.argtypes = [ctypes.c_void_p]
_lib.reclaim_commit_abort.restype = None
_lib.reclaim_committed.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
_lib.reclaim_commit_latest.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
_lib.reclaim_commit_prune.argtypes = [ctypes.c_char_p, ctypes.c_uint]


def _check(r, path=None):
    if r < 0:
        raise OSError(-r, os.strerror(-r), path)
    return r


def _dir(path):
    return None if path is None else os.fsencode(path)


def version():
    return _lib.reclaim_version().decode()


def in_job():
    return "RECLAIM_JOB_ID" in os.environ


def wait(timeout=None):
    """The notice after at most `timeout` seconds (None: until one comes); false if none."""
    n = Notice()
    ms = -1 if timeout is None else int(timeout * 1000)
    r = _lib.reclaim_notice_wait(ms, ctypes.byref(n))
    if r < 0 and in_job():
        _check(r)
    return n


def notice():
    """The notice now, without waiting; false if there is none."""
    return wait(0)


def fileno():
    """Readable when notice() may say something new (poll, select, asyncio.add_reader)."""
    return _check(_lib.reclaim_notice_fd())


def remaining():
    """Seconds until the deadline; infinite when there is no notice."""
    r = _lib.reclaim_remaining()
    return float("inf") if r >= 1e9 else r


def ack():
    """Saved; the machine may go. Does nothing outside a job."""
    if in_job():
        _check(_lib.reclaim_ack())


def requeue():
    """Start me again when I have exited, whatever the exit status."""
    if in_job():
        _check(_lib.reclaim_requeue())


def checkpoint_dir(fallback=None):
    path = _lib.reclaim_checkpoint_dir()
    return os.fsdecode(path) if path else fallback


@contextlib.contextmanager
def commit(name, step=0, dir=None):
    """A folder to write a checkpoint into. It appears under `name`, whole, when the block
    ends without an exception, and not at all otherwise."""
    c = ctypes.c_void_p()
    where = _dir(dir)
    _check(_lib.reclaim_commit_begin(where, os.fsencode(name), ctypes.byref(c)), dir)
    try:
        yield pathlib.Path(os.fsdecode(_lib.reclaim_commit_path(c)))
    except BaseException:
        _lib.reclaim_commit_abort(c)
        raise
    _check(_lib.reclaim_commit_end(c, step), name)


def committed(name, step=0):
    """Tells of a file or folder that was renamed into the checkpoint folder by other means."""
    if in_job():
        _check(_lib.reclaim_committed(os.fsencode(name), step))


def latest(dir=None):
    """The newest commit whose digests hold, as a path, or None."""
    buf = ctypes.create_string_buffer(8192)
    if dir is None and checkpoint_dir() is None:
        return None
    found = _check(_lib.reclaim_commit_latest(_dir(dir), buf, len(buf)), dir)
    return pathlib.Path(os.fsdecode(buf.value)) if found else None


def prune(keep=2, dir=None):
    """Removes all but the newest commits; how many went."""
    return _check(_lib.reclaim_commit_prune(_dir(dir), keep), dir)
