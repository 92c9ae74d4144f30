# SPDX-License-Identifier: Apache-2.0
"""The Python module over libreclaim.so: send, receive, move with state, restart from an image."""
import os
import subprocess
import sys
import threading

LIB, REGISTRY, SOURCE = sys.argv[1:4]
os.environ["RECLAIM_LIBRARY"] = LIB
sys.path.insert(0, os.path.join(SOURCE, "python"))

server = subprocess.Popen([REGISTRY, "tcp:127.0.0.1:0", "job", "tok", "2000"],
                          stdout=subprocess.PIPE, text=True)
try:
    address = server.stdout.readline().strip()
    from reclaim import stream

    common = dict(registry=address, token="tok", open_timeout_ms=20000)
    client = stream.Node("client", **common)
    out = client.open("sink", stream.TOKEN)
    state = {"old": 0, "new": 0}

    def run(node, key, until):
        for m in node:
            state[key] += 1
            assert int(m.data) == state[key] == m.seq, (m.data, state, m.seq)
            if state[key] == until:
                node.stable()
                return

    old = stream.Node("sink", save=lambda: str(state["old"]).encode(), **common)
    new = stream.Node("sink", standby=True, no_takeover=True,
                      load=lambda b: state.update(new=int(b)), **common)
    threads = [threading.Thread(target=run, args=(old, "old", 100000)),
               threading.Thread(target=run, args=(new, "new", 2000))]
    for t in threads:
        t.start()
    for i in range(1, 2001):
        out.send(str(i).encode())
        if i == 1000:
            out.drain(timeout=20)
            stream.move(address, "tok", "sink", new.instance)
            threads[0].join()
    threads[1].join()
    assert state["new"] == 2000 and 0 < state["old"] < 2000, state
    out.drain(stable=True, timeout=20)
    ident, image = new.checkpoint()
    new.durable(ident)
    new.close()
    out.send(b"2001")
    with stream.Node("sink", image=image, **common) as third:
        m = third.recv(timeout=20)
        while m.kind != stream.DATA:
            m = third.recv(timeout=20)
        assert m.data == b"2001" and m.seq == 2001 and third.epoch == 3
    old.close()
    client.close()
    print("1 passed, 0 failed")
finally:
    server.kill()
