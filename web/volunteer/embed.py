#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the page's files into one C file: embed.py OUT.c FILE..."""
import os
import sys

TYPES = {'.html': 'text/html; charset=utf-8', '.css': 'text/css', '.js': 'text/javascript',
         '.wasm': 'application/wasm'}

out, files = sys.argv[1], sys.argv[2:]
with open(out, 'w') as c:
    c.write('/* Made by web/volunteer/embed.py. */\n#include <stddef.h>\n'
            '#include "volunteer/page_files.h"\n')
    rows = []
    for i, path in enumerate(files):
        data = open(path, 'rb').read()
        name = os.path.basename(path)
        c.write(f'static const unsigned char file{i}[] = {{')
        for k in range(0, len(data), 24):
            c.write('\n' + ','.join(map(str, data[k:k + 24])) + ',')
        c.write('0};\n')
        rows.append(f'\t{{ "/{name}", "{TYPES[os.path.splitext(name)[1]]}", file{i}, {len(data)} }},\n')
    c.write('const struct door_file page_files[] = {\n' + ''.join(rows) + '\t{ 0 },\n};\n')
    c.write(f'const size_t page_files_count = {len(files)};\n')
