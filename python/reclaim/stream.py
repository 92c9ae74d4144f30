# SPDX-License-Identifier: Apache-2.0
"""Mobile streams between the named endpoints of a job, over libreclaim.

    from reclaim import stream

    with stream.Node("stage-2") as node:
        out = node.open("stage-3", stream.TOKEN)
        for message in node:             # ends when the name moved away
            out.send(work(message.data))

A node's name is owned by one process at a time; a stream keeps its order and
delivers exactly once while either end moves. See include/reclaim/stream.h.
"""
import ctypes
import os

from . import _load

CONTROL, TOKEN, ACTIVATION, BULK = range(4)
DATA, RECOVERED, CLOSED, ABORTED, DIVERGED, ACTIVE = range(6)
MORE = 1

__all__ = ["Node", "Stream", "Message", "move", "CONTROL", "TOKEN", "ACTIVATION", "BULK", "DATA",
           "RECOVERED", "CLOSED", "ABORTED", "DIVERGED", "ACTIVE", "MORE"]

_SAVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("group", ctypes.c_char_p),
        ("registry", ctypes.c_char_p), ("token", ctypes.c_char_p), ("listen", ctypes.c_char_p),
        ("advertise", ctypes.c_char_p), ("level", ctypes.c_int), ("standby", ctypes.c_bool),
        ("no_takeover", ctypes.c_bool), ("plain", ctypes.c_bool), ("spin", ctypes.c_bool),
        ("cursors_in_registry", ctypes.c_bool), ("retain_max", ctypes.c_uint64),
        ("spill_dir", ctypes.c_char_p), ("spill_max", ctypes.c_uint64),
        ("window", ctypes.c_uint64), ("freeze_ms", ctypes.c_uint32),
        ("open_timeout_ms", ctypes.c_uint32), ("image", ctypes.c_char_p),
        ("image_len", ctypes.c_size_t), ("regions", ctypes.c_void_p),
        ("regions_count", ctypes.c_size_t), ("save", _SAVE), ("load", _LOAD),
        ("arg", ctypes.c_void_p), ("alloc", ctypes.c_void_p), ("unalloc", ctypes.c_void_p),
        ("put", ctypes.c_void_p)]


class _Message(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int), ("cls", ctypes.c_int), ("sender", ctypes.c_char_p),
        ("number", ctypes.c_uint32), ("code", ctypes.c_uint32), ("seq", ctypes.c_uint64),
        ("epoch", ctypes.c_uint64), ("data", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class _StreamOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("number", ctypes.c_uint32),
                ("deterministic", ctypes.c_bool), ("hold", ctypes.c_bool)]


_lib = _load()
if _lib is None or not hasattr(_lib, "reclaim_node_open"):
    raise ImportError("libreclaim with streams was not found; set RECLAIM_LIBRARY")
_lib.free = ctypes.CDLL(None).free
_lib.free.argtypes = [ctypes.c_void_p]
for _name, _types in {
        "reclaim_node_open": [ctypes.POINTER(_Options), ctypes.POINTER(ctypes.c_void_p)],
        "reclaim_node_close": [ctypes.c_void_p],
        "reclaim_node_cancel": [ctypes.c_void_p],
        "reclaim_node_fd": [ctypes.c_void_p],
        "reclaim_recv": [ctypes.c_void_p, ctypes.POINTER(_Message), ctypes.c_int],
        "reclaim_stream_open": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int,
                                ctypes.POINTER(_StreamOptions), ctypes.POINTER(ctypes.c_void_p)],
        "reclaim_send": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint,
                         ctypes.c_int],
        "reclaim_flush": [ctypes.c_void_p],
        "reclaim_drain": [ctypes.c_void_p, ctypes.c_bool, ctypes.c_int],
        "reclaim_stream_close": [ctypes.c_void_p],
        "reclaim_stream_abort": [ctypes.c_void_p, ctypes.c_uint32],
        "reclaim_stable": [ctypes.c_void_p],
        "reclaim_checkpoint": [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64),
                               ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)],
        "reclaim_durable": [ctypes.c_void_p, ctypes.c_uint64],
        "reclaim_sink_write": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t],
        "reclaim_move": [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64],
        "reclaim_node_epoch": [ctypes.c_void_p],
        "reclaim_node_instance": [ctypes.c_void_p],
        "reclaim_node_describe": [ctypes.c_void_p]}.items():
    getattr(_lib, _name).argtypes = _types
_lib.reclaim_node_epoch.restype = _lib.reclaim_node_instance.restype = ctypes.c_uint64
_lib.reclaim_node_describe.restype = ctypes.c_void_p
_lib.reclaim_node_close.restype = _lib.reclaim_stream_abort.restype = None

ESTALE = 116


def _check(r):
    if r < 0:
        raise OSError(-r, os.strerror(-r))
    return r


def _ms(timeout):
    return -1 if timeout is None else int(timeout * 1000)


def _text(value):
    return value.encode() if isinstance(value, str) else value


class Message:
    """What arrived: ``kind`` (DATA or an event), ``data``, ``sender``, ``seq``, ``epoch``."""

    __slots__ = ("kind", "cls", "sender", "number", "code", "seq", "epoch", "data")

    def __init__(self, m):
        self.kind, self.cls, self.sender = m.kind, m.cls, m.sender.decode()
        self.number, self.code, self.seq, self.epoch = m.number, m.code, m.seq, m.epoch
        self.data = ctypes.string_at(m.data, m.len) if m.len else b""


class Stream:
    """Output to a name. Opened with ``Node.open``."""

    def __init__(self, node, handle):
        self._node, self._handle = node, handle

    def send(self, data, flags=0, timeout=None):
        data = bytes(data)
        _check(_lib.reclaim_send(self._handle, data, len(data), flags, _ms(timeout)))

    def flush(self):
        _check(_lib.reclaim_flush(self._handle))

    def drain(self, stable=False, timeout=None):
        """Waits until all is taken, or with ``stable`` until it will never be asked for again."""
        _check(_lib.reclaim_drain(self._handle, stable, _ms(timeout)))

    def close(self):
        _check(_lib.reclaim_stream_close(self._handle))

    def abort(self, code=0):
        handle, self._handle = self._handle, None
        _lib.reclaim_stream_abort(handle, code)


class Node:
    """A named endpoint. Options as in ``struct reclaim_node_options``; ``save`` returns bytes,
    ``load`` is given them at the new place."""

    def __init__(self, name=None, *, save=None, load=None, image=None, **options):
        o = _Options(size=ctypes.sizeof(_Options), level=-1)
        o.name = _text(name)
        for key, value in options.items():
            setattr(o, key, _text(value))
        if image is not None:
            o.image, o.image_len = image, len(image)

        def on_save(_arg, sink):
            data = save()
            return _lib.reclaim_sink_write(sink, data, len(data))

        def on_load(_arg, data, length):
            load(ctypes.string_at(data, length))
            return 0

        if save:
            o.save = _SAVE(on_save)
        if load:
            o.load = _LOAD(on_load)
        self._options = o  # the callbacks live as long as the node
        self._handle = ctypes.c_void_p()
        _check(_lib.reclaim_node_open(ctypes.byref(o), ctypes.byref(self._handle)))

    def open(self, to, cls=ACTIVATION, *, number=0, deterministic=False, hold=False):
        o = _StreamOptions(ctypes.sizeof(_StreamOptions), number, deterministic, hold)
        handle = ctypes.c_void_p()
        _check(_lib.reclaim_stream_open(self._handle, _text(to), cls, ctypes.byref(o),
                                        ctypes.byref(handle)))
        return Stream(self, handle)

    def recv(self, timeout=None):
        """The next message or event; None after the timeout. OSError ESTALE: moved away."""
        m = _Message()
        return Message(m) if _check(_lib.reclaim_recv(self._handle, ctypes.byref(m),
                                                      _ms(timeout))) else None

    def __iter__(self):
        while True:
            try:
                m = self.recv()
            except OSError as e:
                if e.errno == ESTALE:
                    return
                raise
            if m.kind == DATA:
                yield m

    def fileno(self):
        return _lib.reclaim_node_fd(self._handle)

    def stable(self):
        _check(_lib.reclaim_stable(self._handle))

    def checkpoint(self):
        """(id, image): save the image with your own state, then call durable(id)."""
        ident, image, length = ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_size_t()
        _check(_lib.reclaim_checkpoint(self._handle, ctypes.byref(ident), ctypes.byref(image),
                                       ctypes.byref(length)))
        data = ctypes.string_at(image, length.value)
        _lib.free(image)
        return ident.value, data

    def durable(self, ident):
        _check(_lib.reclaim_durable(self._handle, ident))

    def cancel(self):
        _lib.reclaim_node_cancel(self._handle)

    @property
    def epoch(self):
        return _lib.reclaim_node_epoch(self._handle)

    @property
    def instance(self):
        return _lib.reclaim_node_instance(self._handle)

    def describe(self):
        text = _lib.reclaim_node_describe(self._handle)
        data = ctypes.string_at(text).decode()
        _lib.free(text)
        return data

    def close(self):
        handle, self._handle = self._handle, None
        if handle:
            _lib.reclaim_node_close(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def move(registry, token, name, instance):
    """Asks for the name to be moved to the standby with that instance number."""
    _check(_lib.reclaim_move(_text(registry), _text(token), _text(name), instance))
