# SPDX-License-Identifier: Apache-2.0
"""Everything that a PyTorch training needs to go on bit for bit, saved atomically.

    state = reclaim.torch.State(model=model, optimizer=opt, scheduler=sched, sampler=sampler)
    state.load()                       # the newest whole checkpoint, if there is one
    while state.step < steps:
        train_one_step()
        state.step += 1
        state.maybe_save(every=100)    # saves and leaves with 85 when the machine is wanted

In a gang every rank does the same; maybe_save() then agrees with the other ranks on the step
(one small all_reduce per call), since only commits of the same name fit together.

Anything with state_dict() and load_state_dict() may be given; other values are saved as
they are and found again under ``state.extra``. Random states of Python, NumPy (if it was
imported), torch and every GPU go along.
"""
import random
import sys

import torch

import reclaim

__all__ = ["State"]


class State:
    def __init__(self, dir=None, keep=2, **parts):
        self.dir = dir
        self.keep = keep
        self.step = 0
        self.extra = {k: v for k, v in parts.items() if not hasattr(v, "state_dict")}
        self.parts = {k: v for k, v in parts.items() if hasattr(v, "state_dict")}

    # -- what is saved --

    def _random(self):
        state = {"python": random.getstate(), "torch": torch.get_rng_state()}
        if "numpy" in sys.modules:
            state["numpy"] = sys.modules["numpy"].random.get_state()
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def _set_random(self, state):
        random.setstate(state["python"])
        torch.set_rng_state(state["torch"])
        if "numpy" in state:
            import numpy
            numpy.random.set_state(state["numpy"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])

    def save(self):
        """One commit named by the step. Returns its name."""
        name = f"step-{self.step:09d}"
        with reclaim.commit(name, step=self.step, dir=self.dir) as folder:
            for key, part in self.parts.items():
                torch.save(part.state_dict(), folder / f"{key}.pt")
            torch.save({"step": self.step, "extra": self.extra, "random": self._random()},
                       folder / "state.pt")
        reclaim.prune(self.keep, dir=self.dir)
        return name

    def load(self, map_location="cpu"):
        """Restores the newest commit that holds. True if there was one."""
        folder = reclaim.latest(self.dir)
        if folder is None:
            return False
        for key, part in self.parts.items():
            part.load_state_dict(torch.load(folder / f"{key}.pt", map_location=map_location))
        state = torch.load(folder / "state.pt", map_location="cpu")
        self.step = state["step"]
        self.extra.update(state["extra"])
        self._set_random(state["random"])
        return True

    # -- in the loop --

    @staticmethod
    def action(group=None):
        """What the notice asks for; of all ranks the most urgent, the same on each."""
        mine = {reclaim.NONE: 0, reclaim.CHECKPOINT: 1, reclaim.TERMINATE: 2}[reclaim.notice().action]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            flag = torch.tensor([mine])
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, group=group)
            mine = int(flag.item())
        return (reclaim.NONE, reclaim.CHECKPOINT, reclaim.TERMINATE)[mine]

    def maybe_save(self, every=0, leave=True, group=None):
        """Saves when the machine is wanted, when a checkpoint is asked for, and every so
        many steps. On a notice it then acknowledges and, with leave, exits with 85. In a
        gang every rank must call it at every step; group: a gloo group for the agreement,
        where the default group's backend has no tensors in main memory."""
        action = self.action(group)
        if action == reclaim.TERMINATE:
            self.save()
            reclaim.ack()
            if leave:
                raise SystemExit(reclaim.RESTART)
            return True
        if action == reclaim.CHECKPOINT or (every and self.step % every == 0):
            self.save()
            return True
        return False
