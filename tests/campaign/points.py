# SPDX-License-Identifier: Apache-2.0
"""Protocol points: where they stand in the source, and how a round gets a program to pass one.

A recipe says on which side the program to be killed stands and what happens then:

  source       the agent of a machine with a guest of that kind (and what it starts)
  target       the agent of a machine that a guest is about to come to
  coordinator

The other machines are paused in rounds on the target's side, so that the guest has
nowhere else to go.
"""
import collections
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Hits:
    """What the programs noted at RECLAIM_POINTS_HITS: a line for a pass, with '!' for a kill."""

    def __init__(self, path):
        self.path = path

    def count(self):
        hits, kills = collections.Counter(), collections.Counter()
        try:
            with open(self.path) as f:
                for line in f:
                    line = line.strip()
                    if line.endswith("!"):
                        kills[line[:-1]] += 1
                    else:
                        hits[line] += 1
        except OSError:
            pass
        return hits, kills


class Recipe:
    def __init__(self, side, acts, kind=None, criu=False, often=False):
        self.side, self.acts, self.kind, self.criu = side, acts.split(), kind, criu
        self.often = often  # passed many times in a round: not always killed at the first


def source(acts, kind=None, **kw):
    return Recipe("source", acts, kind, **kw)


def target(acts, kind=None, **kw):
    return Recipe("target", acts, kind, **kw)


def coordinator(acts, kind=None, **kw):
    return Recipe("coordinator", acts, kind, **kw)


RECIPES = {
    "agent.adopted": source("save back now"),
    "agent.commit.seen": source("save back", "saves"),
    "agent.take.begin": source("save back", "saves"),
    "agent.take.sealed": source("save back", "saves"),
    "agent.take.before_told": source("save back", "saves"),
    "agent.take.told": source("save back", "saves"),
    "agent.final.ready": source("back", "saves"),
    "agent.dump.begin": source("back", "plain", criu=True),
    "agent.dump.done": source("back", "plain", criu=True),
    "agent.restore.begin": target("arrive", "saves"),
    "agent.restore.done": target("arrive", "saves"),
    "agent.start.received": target("arrive submit"),
    "agent.start.recorded": target("arrive submit"),
    "agent.launch.before_shim": target("arrive submit"),
    "agent.launch.after_shim": target("arrive submit"),
    "agent.launch.ready": target("arrive submit"),
    "agent.launch.go": target("arrive submit"),
    "agent.inputs.downloaded": target("arrive submit"),
    "agent.shim.exited": source("back now"),
    "agent.end.before_told": source("back now"),
    "agent.end.told": source("back now"),
    "agent.move.begin": source("back save", "saves"),
    "agent.move.known": source("back", "saves"),
    "agent.move.sent": source("back save", "saves"),
    "agent.move.standby": source("alone", "saves"),
    "agent.durable.known": source("back save", "saves"),
    "agent.gang.tunnel": target("gang"),
    "agent.gang.noticed": source("back_other", "gang"),
    "agent.fetch.done": target("fetch", "saves"),
    "agent.received.before_told": target("arrive", "saves"),
    "agent.received.told": target("arrive", "saves"),
    "agent.results.packed": target("submit"),
    "agent.results.sent": target("submit"),
    "agent.owner.notice": source("back cancel"),
    "agent.owner.notice_told": source("back cancel"),
    "agent.owner.after_cut": source("now"),
    "agent.owner.free": source("back now"),
    "agent.owner.cancelled": source("cancel"),
    "agent.owner.lent": source("lend"),
    "agent.journal.before_save": source("back now cancel lend"),
    "agent.journal.after_save": source("back now cancel lend"),
    "image.take.before_index": source("save back", "saves"),
    "image.take.before_commit": source("save back", "saves"),
    "image.take.after_commit": source("save back", "saves"),
    "image.prune.before_punch": target("fresh"),
    "image.prune.before_packs": source("save", "saves"),
    "image.restore.before_rename": target("arrive", "saves"),
    "image.incoming.before_have": target("arrive", "saves"),
    "image.incoming.before_pack": target("arrive", "saves"),
    "image.incoming.before_index": target("arrive", "saves"),
    "image.incoming.before_commit": target("arrive", "saves"),
    "image.incoming.after_commit": target("arrive", "saves"),
    "transfer.send.chunk": source("back save", "saves"),
    "transfer.receive.chunk": target("arrive", "saves"),
    "transfer.receive.before_commit": target("arrive", "saves"),
    "shim.start": target("arrive submit"),
    "shim.prepared": target("arrive submit"),
    "shim.executed": target("arrive submit"),
    "shim.state_written": target("arrive submit", often=True),
    "shim.notice": target("then_back then_cancel"),
    "shim.last_signal": target("then_back", "deaf"),
    "shim.acked": target("then_back", "ack"),
    "shim.ended": target("then_back then_now submit"),
    "shim.stop": target("then_back then_now"),
    "shim.deadline": target("then_back", "deaf"),
    "shim.lease_end": target("then_expire"),
    "shim.dump": target("then_back", "plain", criu=True),
    "shim.dumped": target("then_back", "plain", criu=True),
    "shim.restored": target("arrive", "plain", criu=True),
    "coordinator.blob.before_record": coordinator("submit"),
    "coordinator.blob.after_record": coordinator("submit"),
    "coordinator.record.before_commit": coordinator("back now submit", often=True),
    "coordinator.record.after_commit": coordinator("back now submit", often=True),
    "coordinator.job.before_save": coordinator("back now submit", often=True),
    "coordinator.job.after_save": coordinator("back now submit", often=True),
    "coordinator.agent.before_send": coordinator("back now submit", often=True),
    "coordinator.output.before_index": coordinator("back save", often=True),
    "coordinator.durable.before_save": coordinator("back save", "saves"),
    "coordinator.durable.after_save": coordinator("back save", "saves"),
    "coordinator.durable.told": coordinator("back save", "saves"),
    "coordinator.received": coordinator("back save", "saves"),
    "coordinator.saved.received": coordinator("back save", "saves"),
    "coordinator.gang.booked": coordinator("gang"),
    "coordinator.gang.notice": coordinator("back", "gang"),
    "coordinator.move.before_send": coordinator("back", "saves"),
    "coordinator.move.sent": coordinator("back", "saves"),
    "coordinator.stage.sent": coordinator("save", "saves"),
    "coordinator.submit.before_answer": coordinator("submit"),
    "coordinator.start.before_send": coordinator("back now submit"),
    "coordinator.start.sent": coordinator("back now submit"),
    "coordinator.end.before_save": coordinator("back now"),
    "coordinator.owner.received": coordinator("back now cancel"),
    "coordinator.enrol.before_commit": coordinator("enrol"),
    "coordinator.enrol.after_commit": coordinator("enrol"),
    "store.commit.before": coordinator("back now submit save", often=True),
    "store.commit.after": coordinator("back now submit save", often=True),
}

# Points of programs that move no jobs: their own tests kill there (streams, volunteers).
ELSEWHERE = ("stream", "volunteer", "base")


def find():
    """All points below src/: name -> recipe. One without a recipe is a mistake of this file."""
    found = set()
    for folder, _, files in os.walk(os.path.join(ROOT, "src")):
        layer = os.path.relpath(folder, os.path.join(ROOT, "src")).split(os.sep)[0]
        if layer in ELSEWHERE:
            continue
        for name in files:
            if name.endswith(".c") and not name.endswith("_test.c"):
                with open(os.path.join(folder, name)) as f:
                    found.update(re.findall(r'POINT\("([^"]+)"\)', f.read()))
    missing, stale = found - set(RECIPES), set(RECIPES) - found
    if missing or stale:
        raise SystemExit("tests/campaign/points.py: no recipe for %s; no such point: %s" % (
            " ".join(sorted(missing)) or "-", " ".join(sorted(stale)) or "-"))
    return {p: RECIPES[p] for p in sorted(found)}
