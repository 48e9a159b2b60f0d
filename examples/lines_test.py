#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The models of the examples stay short: at most 60 lines that are not blank from the first input
(Placeholder) to the train op (Minimize). Arguments: the sources."""

# covers: training: the examples learn, continue, export and predict; their models stay short

import sys

MOST = 60

for path in sys.argv[1:]:
    lines = open(path).read().splitlines()
    first = next(i for i, line in enumerate(lines) if "Placeholder(" in line)
    last = next(i for i, line in enumerate(lines) if "Minimize(" in line)
    count = sum(1 for line in lines[first : last + 1] if line.strip())
    print(f"{path}: {count} lines")
    if not 0 < count <= MOST:
        sys.exit(f"{path}: must have 1 to {MOST} lines from the inputs to the train op, got {count}")
