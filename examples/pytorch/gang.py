#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Two or more ranks of one training, over gloo, each on a machine of its own.

    reclaim submit examples/pytorch/gang.yaml

torch finds MASTER_ADDR, RANK and WORLD_SIZE in the environment as anywhere else. When one
machine is wanted back all ranks hear of it, agree on a step, save it and leave; the one
that must is moved, and all go on from that step."""
import argparse
import hashlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn

import reclaim.torch

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=200)
p.add_argument("--every", type=int, default=50, help="save every so many steps")
p.add_argument("--pace", type=float, default=0, help="seconds to wait after each step")
p.add_argument("--say", default="", help="text that each rank sends to the others at every step")
a = p.parse_args()

torch.manual_seed(1)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = reclaim.torch.State(model=model, optimizer=optimizer)
torch.manual_seed(2 + rank)  # each rank draws data of its own
resumed = state.load()
print(f"rank {rank} of {ranks} at {os.environ.get('MASTER_ADDR')}: "
      f"{'resumed at' if resumed else 'begins with'} step {state.step}", flush=True)

said = torch.tensor(list(a.say.encode()) or [0], dtype=torch.uint8)
heard = [torch.zeros_like(said) for _ in range(ranks)]
while state.step < a.steps:
    x = torch.randn(16, 32)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    for w in model.parameters():
        dist.all_reduce(w.grad)
        w.grad /= ranks
    optimizer.step()
    dist.all_gather(heard, said)
    assert all(torch.equal(h, said) for h in heard)
    state.step += 1
    print(f"step {state.step} loss {loss.item():.9f}", flush=True)
    if a.pace:
        time.sleep(a.pace)
    state.maybe_save(every=a.every)

digest = hashlib.sha256()
for name, value in sorted(model.state_dict().items()):
    digest.update(name.encode() + value.numpy().tobytes())
print("digest", digest.hexdigest(), flush=True)
