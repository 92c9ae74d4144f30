#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Refuses an include that points up or sideways: src/<layer> may include only
headers of the layers in its row. The table is the one of docs/architecture.md."""
import pathlib
import re
import sys

MAY_USE = {
    "base": "",
    "policy": "base",
    "wire": "base",
    "scenario": "base",
    "image": "base",
    "io": "base wire",
    "store": "base io",
    "edge": "base wire",
    "job": "base image",
    "transfer": "base wire image io",
    "stream": "base wire",
    "volunteer": "base wire io",
    "sim": "base policy scenario",
    "lab": "base scenario io",
    "agent": "base policy wire scenario image io edge job transfer stream",
    "coordinator": "base policy wire scenario image io store job stream volunteer",
    "cli": "base wire scenario image io edge job transfer stream volunteer lab",
}


def main():
    root = pathlib.Path(sys.argv[1])
    wrong = []
    for path in sorted((root / "src").glob("*/**/*.[ch]")):
        layer = path.relative_to(root / "src").parts[0]
        allowed = set(MAY_USE[layer].split()) | {layer}
        for number, line in enumerate(path.read_text().splitlines(), 1):
            m = re.match(r'\s*#include "([a-z_]+)/', line)
            if m and m.group(1) in MAY_USE and m.group(1) not in allowed:
                wrong.append(f"{path}:{number}: {layer} may not use {m.group(1)}")
    for w in wrong:
        print(w)
    return 1 if wrong else 0


sys.exit(main())
