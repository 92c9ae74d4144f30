#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the tiles of tiles.js together: join.py FOLDER IMAGE.ppm"""
import os
import sys

SIDE, TILE = 256, 32
folder, image = sys.argv[1:]
across = SIDE // TILE
rows = [bytearray(SIDE * 3) for _ in range(SIDE)]
for i in range(across * across):
    tile = open(os.path.join(folder, f'{i:08d}'), 'rb').read()
    if len(tile) != TILE * TILE * 3:
        sys.exit(f'tile {i} has {len(tile)} bytes')
    x0, y0 = i % across * TILE, i // across * TILE
    for y in range(TILE):
        rows[y0 + y][3 * x0:3 * (x0 + TILE)] = tile[y * TILE * 3:(y + 1) * TILE * 3]
with open(image, 'wb') as f:
    f.write(b'P6 %d %d 255\n' % (SIDE, SIDE) + b''.join(rows))
