#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for torchrun: starts its workers, forwards SIGTERM, and kills them a fixed
time later whatever they do. usage: launcher.py SECONDS COMMAND..."""
import signal
import subprocess
import sys
import time

patience = float(sys.argv[1])
worker = subprocess.Popen(sys.argv[2:])


def on_term(signo, frame):
    print("launcher: SIGTERM", flush=True)
    worker.send_signal(signal.SIGTERM)
    try:
        worker.wait(patience)
    except subprocess.TimeoutExpired:
        print("launcher: SIGKILL", flush=True)
        worker.kill()
    sys.exit(1)


signal.signal(signal.SIGTERM, on_term)
status = worker.wait()
sys.exit(1 if status else 0)  # any worker that fails makes it exit 1
