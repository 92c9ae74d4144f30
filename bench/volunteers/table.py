#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JSON lines of the bench as a table: case and metric by system."""
import json
import sys

rows, systems = {}, []
for line in open(sys.argv[1]):
    r = json.loads(line)
    rows.setdefault((r['case'], r['metric'], r['unit']), {})[r['system']] = r['value']
    if r['system'] not in systems:
        systems.append(r['system'])
print(f'{"case":18} {"metric":24} ' + ' '.join(f'{s:>14}' for s in systems) + '  unit')
for (case, metric, unit), values in rows.items():
    cells = ' '.join(f'{values[s]:14.3f}' if values.get(s) is not None else f'{"-":>14}' for s in systems)
    print(f'{case:18} {metric:24} {cells}  {unit}')
