#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the code out of a page, so that it can be compiled: the page is the only place it stands.

A fenced block whose first line is

    ```cpp repeat_rows.cc

is (a part of) that file; blocks of one file are put together in order. A block without a file's
name is text. A FILE that the page lacks, and a named one that nobody asked for, are errors.
"""

import pathlib
import re
import sys

import program

FENCE = re.compile(r"^```(\w+)? ?(\S+)?\s*$")


def blocks(page):
    """(language, file, lines) of each block, in the order of the page; None for what its fence lacks."""
    found = []
    is_open = False
    for line in page.splitlines():
        fence = FENCE.match(line)
        if fence and not is_open:
            found.append((fence.group(1), fence.group(2), []))
        elif is_open and not fence:
            found[-1][2].append(line)
        if fence:
            is_open = not is_open
    if is_open:
        raise ValueError("a block must be closed by ```, got the end of the page")
    return found


def files_of(page):
    """The code of each file that the page names, in the order of the page."""
    files = {}
    for _, name, lines in blocks(page):
        if name is not None:
            files.setdefault(name, []).extend(lines)
    return {name: "\n".join(lines) + "\n" for name, lines in files.items()}


def main(argv):
    flags = program.Parser(__doc__)
    flags.add_argument("page", metavar="PAGE", type=pathlib.Path)
    flags.add_argument("output_dir", metavar="OUTPUT_DIR", type=pathlib.Path)
    flags.add_argument("wanted", metavar="FILE", nargs="*", default=[])
    args = flags.parse_args(argv[1:])
    page, output_dir, wanted = args.page, args.output_dir, args.wanted
    files = files_of(page.read_text())
    if sorted(files) != sorted(wanted):
        sys.exit(f"{page}: must have the files {sorted(wanted)}, got {sorted(files)}")
    for name, code in files.items():
        (output_dir / name).write_text(code)


if __name__ == "__main__":
    main(sys.argv)
