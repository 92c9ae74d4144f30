#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Counts packets of an interface of the present network namespace that hold a text.
usage: sniff.py IFNAME TEXT; prints "ready", and at the end of its stdin the counts as JSON."""
import json
import os
import select
import socket
import sys

ifname, text = sys.argv[1], sys.argv[2].encode()
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
s.bind((ifname, 0))
s.setblocking(False)
print("ready", flush=True)
packets = found = tunnel = 0
over = False
while True:
    ready, _, _ = select.select([s] if over else [s, 0], [], [], 0 if over else None)
    if 0 in ready:
        over = not os.read(0, 1)
    try:
        while True:
            p = s.recv(65536)
            packets += 1
            found += text in p
            # IPv4, UDP, to a port of the tunnels
            tunnel += (p[12:14] == b"\x08\x00" and p[23] == 17 and
                       24000 <= int.from_bytes(p[36:38], "big") < 25024)
    except BlockingIOError:
        pass
    if over:
        break
print(json.dumps({"packets": packets, "found": found, "tunnel": tunnel}))
