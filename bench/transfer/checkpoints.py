#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Real training checkpoints for the transfer bench.

Trains a character-level transformer with AdamW on the licence texts that every
Debian machine carries, and saves model, optimiser and generator states with
torch.save at steps K, K+1 and K+100. With --memory it also writes the
process's own writable memory, one file per mapping, at K and K+1: raw memory
images of a real training process, as a transparent checkpoint would see them.

    checkpoints.py OUT_DIR [--step K] [--width D] [--memory]

writes OUT_DIR/step-<n>/model.pt and OUT_DIR/memory-<n>/<address>.
"""
import argparse
import glob
import os
import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads, span):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.full((span, span), float("-inf")).triu(1))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-1, -2) / (c // self.heads) ** 0.5 + self.mask[:t, :t]).softmax(-1)
        x = x + self.out((a @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class CharModel(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, span):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(span, width)
        self.blocks = nn.ModuleList(Block(width, heads, span) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, idx):
        x = self.tok(idx) + self.pos.weight[: idx.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def write_memory(folder):
    """One file per private writable mapping, read back through /proc/self/mem."""
    os.makedirs(folder, exist_ok=True)
    with open("/proc/self/maps") as maps:
        rows = [line.split() for line in maps]
    with open("/proc/self/mem", "rb", buffering=0) as mem:
        for row in rows:
            lo, hi = (int(x, 16) for x in row[0].split("-"))
            if not row[1].startswith("rw-p") or "[vvar" in row[-1]:
                continue
            try:
                with open(os.path.join(folder, row[0].split("-")[0]), "wb", buffering=0) as out:
                    at = lo
                    while at < hi:
                        mem.seek(at)
                        data = mem.read(min(hi - at, 4 << 20))
                        if not data:
                            break
                        if data.count(0) == len(data):
                            out.seek(len(data), os.SEEK_CUR)
                        else:
                            out.write(data)
                        at += len(data)
                    out.truncate(at - lo)
            except OSError:
                pass


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--step", type=int, default=300)
    p.add_argument("--width", type=int, default=192)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--memory", action="store_true")
    a = p.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(7)
    span, batch = 64, 8
    text = "".join(open(f, encoding="utf-8", errors="replace").read()
                   for f in sorted(glob.glob("/usr/share/common-licenses/*")) if not os.path.islink(f))
    symbols = sorted(set(text))
    data = torch.tensor([symbols.index(c) for c in text], dtype=torch.long)
    model = CharModel(len(symbols), a.width, a.layers, 4, span)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    saves = {a.step, a.step + 1, a.step + 100}
    for step in range(1, a.step + 101):
        at = torch.randint(len(data) - span - 1, (batch,))
        x = torch.stack([data[i : i + span] for i in at])
        y = torch.stack([data[i + 1 : i + span + 1] for i in at])
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step in saves:
            folder = os.path.join(a.out, f"step-{step}")
            os.makedirs(folder, exist_ok=True)
            torch.save({"model": model.state_dict(), "optim": opt.state_dict(), "step": step,
                        "rng": torch.get_rng_state()}, os.path.join(folder, "model.pt"))
            print(f"step {step}: loss {loss.item():.3f}", file=sys.stderr)
            if a.memory and step <= a.step + 1:
                write_memory(os.path.join(a.out, f"memory-{step}"))


main()
