#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Fixed against content-defined chunks, on pairs of real images.

    chunking.py OLD_DIR NEW_DIR [NAME]

For each size: of the new image's bytes, how many lie in chunks that the old image lacks, and what
those come to as the transfer would send them: zstd -1, or (fixed cuts only: there a chunk knows
its predecessor by place) zstd -1 of the difference of 32-bit words by byte planes, whichever is
less. Content-defined cuts: a gear hash over the last 32 bytes, its top bits zero; least size a quarter
of the mean, greatest four times. They have the same choice where a base can be found: the old
chunk that covers the same offset of the same file.
"""
import hashlib
import os
import subprocess
import sys

import numpy as np

SIZES = [64 << 10, 256 << 10, 1 << 20]
GEAR = np.random.default_rng(1).integers(0, 1 << 32, 256, dtype=np.uint32)


def fixed(data, size):
    return list(range(0, len(data), size)) + [len(data)]


def defined(data, size):
    if len(data) == 0:
        return [0]
    bits, piece, marks = size.bit_length() - 1, 1 << 24, []
    for at in range(0, len(data), piece):
        lo = max(at - 31, 0)
        g = GEAR[data[lo:at + piece]]
        h = np.zeros(len(g), dtype=np.uint32)
        for k in range(min(32, len(g))):
            h[k:] += g[:len(g) - k] << np.uint32(k)
        hit = np.nonzero(h >> np.uint32(32 - bits) == 0)[0] + lo + 1
        marks.append(hit[hit > at])
    cuts, last = [0], 0
    for m in np.concatenate(marks):
        while m - last > 4 * size:
            last += 4 * size
            cuts.append(last)
        if m - last >= size // 4:
            last = int(m)
            cuts.append(last)
    while len(data) - last > 4 * size:
        last += 4 * size
        cuts.append(last)
    return cuts + [len(data)] if last < len(data) else cuts


def zstd(chunk):
    return len(subprocess.run(["zstd", "-1", "-c"], input=chunk, capture_output=True, check=True).stdout)


def delta(new, old):
    n = min(len(new), len(old)) // 4 * 4
    d = new[:n].view(np.uint32) - old[:n].view(np.uint32)
    z = (d << np.uint32(1)) ^ (0 - (d >> np.uint32(31)))
    planes = z.view(np.uint8).reshape(-1, 4).T.tobytes()
    return zstd(planes + new[n:].tobytes())


def load(folder):
    return {f: np.fromfile(os.path.join(folder, f), dtype=np.uint8) for f in sorted(os.listdir(folder))}


def base_of(cuts, lo, hi):
    """The old chunk that covers most of lo..hi."""
    i = int(np.searchsorted(cuts, (lo + hi) // 2, side="right")) - 1
    return (cuts[i], cuts[i + 1]) if 0 <= i < len(cuts) - 1 else None


def measure(name, how, cut, size, old, new):
    have = set()
    old_cuts = {}
    for f, data in old.items():
        old_cuts[f] = cuts = cut(data, size)
        have.update(hashlib.blake2b(data[a:b], digest_size=16).digest() for a, b in zip(cuts, cuts[1:]))
    total = fresh = sent = count = 0
    for f, data in new.items():
        cuts = cut(data, size)
        for a, b in zip(cuts, cuts[1:]):
            piece = data[a:b]
            total += b - a
            count += 1
            if hashlib.blake2b(piece, digest_size=16).digest() in have or not piece.any():
                continue
            fresh += b - a
            base = base_of(old_cuts[f], a, b) if f in old else None
            best = zstd(piece.tobytes())
            if base:
                best = min(best, delta(piece, old[f][base[0]:base[1]]))
            sent += best
    print(f"{name:<14}{how:<9}{size >> 10:>6} KiB{count:>8} chunks  new {fresh / 1e6:8.2f} MB of {total / 1e6:.2f}"
          f"  sent {sent / 1e6:8.2f} MB", flush=True)


old, new = load(sys.argv[1]), load(sys.argv[2])
for size in SIZES:
    for how, cut in (("fixed", fixed), ("defined", defined)):
        measure(sys.argv[3] if len(sys.argv) > 3 else "", how, cut, size, old, new)
