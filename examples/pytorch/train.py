#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A small character model in PyTorch that goes on bit for bit wherever it is moved.

    reclaim run examples/pytorch/job.yaml

All that the contract needs is `state.load()` and `state.maybe_save()`."""
import argparse
import hashlib
import pathlib

import torch
from torch import nn

import reclaim.torch

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=200)
p.add_argument("--every", type=int, default=50, help="save every so many steps")
p.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
p.add_argument("--dir", default=None, help="where to keep checkpoints outside a job")
a = p.parse_args()

torch.manual_seed(1)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)

text = pathlib.Path(a.text).read_text(errors="replace")
letters = sorted(set(text))
data = torch.tensor([letters.index(c) for c in text])


class Model(nn.Module):
    def __init__(self, n, width=64):
        super().__init__()
        self.embed = nn.Embedding(n, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(width, n)

    def forward(self, x):
        return self.out(self.drop(self.rnn(self.embed(x))[0]))


model = Model(len(letters))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, a.steps)
state = reclaim.torch.State(dir=a.dir, model=model, optimizer=optimizer, scheduler=scheduler)
if state.load():
    print("resumed at step", state.step, flush=True)

while state.step < a.steps:
    at = torch.randint(0, len(data) - 65, (8,))
    x = torch.stack([data[i:i + 64] for i in at])
    y = torch.stack([data[i + 1:i + 65] for i in at])
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    state.step += 1
    print(f"step {state.step} loss {loss.item():.9f}", flush=True)
    state.maybe_save(every=a.every)

digest = hashlib.sha256()
for name, value in sorted(model.state_dict().items()):
    digest.update(name.encode() + value.numpy().tobytes())
print("digest", digest.hexdigest(), flush=True)
