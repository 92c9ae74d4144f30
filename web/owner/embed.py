#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the page's files into one C file: embed.py OUT.c FILE..."""
import os
import sys

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript"}

with open(sys.argv[1], "w") as c:
    c.write('/* Made by web/owner/embed.py. */\n#include "cli/owner_page_files.h"\n')
    rows = []
    for i, path in enumerate(sys.argv[2:]):
        with open(path, "rb") as f:
            data = f.read()
        c.write("static const unsigned char file%d[] = { %s };\n" % (i, ",".join(map(str, data))))
        name = os.path.basename(path)
        rows.append('\t{ "/%s", "%s", file%d, %d },\n' % ("" if name == "index.html" else name,
                                                         TYPES[os.path.splitext(name)[1]], i, len(data)))
    c.write("const struct owner_page_file owner_page_files[] = {\n" + "".join(rows) + "\t{ 0 },\n};\n")
