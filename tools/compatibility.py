#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the README's table of what runs of TensorFlow's files, from what the tests counted.

    tools/test.sh //tests/compat:all //ops:signature_test
    tools/compatibility.py bazel-testlogs README.md          # replaces the table; --check only compares

The table stands between two comments, BEGIN and END. Without the shared data the tests are skipped and count
nothing: that is an error here, the table stays.
"""

import pathlib
import re
import sys

import program

BEGIN, END = "<!-- compatibility: tools/compatibility.py -->", "<!-- end of compatibility -->"

# What is counted, the test's log, and the line in which the test says it.
ROWS = [
    ("graphs with the results that TensorFlow computed: runs and agrees", "tests/compat/tf_graphs_test",
     re.compile(r"tf_graphs: (?P<all>\d+) cases, (?P<ran>\d+) passed"), "the others have ops that are missing; none differs"),
    ("signatures of SavedModels that TensorFlow wrote", "tests/compat/saved_model_run_test",
     re.compile(r"(?P<ran>\d+) of (?P<all>\d+) cases ran"), ""),
    ("frozen graphs and GraphDefs that TensorFlow wrote", "tests/compat/saved_model_run_test",
     re.compile(r"(?P<ran>\d+) of (?P<all>\d+) graphs ran"), ""),
    ("op kinds: signature as in TensorFlow 1.15, kernel, gradient where it has one", "ops/signature_test",
     re.compile(r"(?P<ran>\d+) of TensorFlow's (?P<all>\d+) op kinds"), "`saved_model_cli check` says what a model lacks"),
]


def table(read_log):
    """The table's lines; read_log(test) is the text of that test's log."""
    lines = ["| TensorFlow's | here | |", "|---|---|---|"]
    for what, test, pattern, note in ROWS:
        found = pattern.search(read_log(test))
        if found is None:
            raise ValueError(f"{test}: must say {pattern.pattern!r}, got no such line (are the shared data there?)")
        lines.append(f"| {what} | {found['ran']} of {found['all']} | {note} |")
    return lines


def replaced(page, lines):
    """The page with `lines` between the two comments."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page must have one {BEGIN} and one {END}")
    head, rest = page.split(BEGIN)
    return head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + rest.split(END)[1]


def main(argv):
    flags = program.Parser(__doc__)
    flags.add_argument("--check", action="store_true", help="changes nothing")
    flags.add_argument("logs", metavar="LOGS_FOLDER", type=pathlib.Path)
    flags.add_argument("page", metavar="PAGE", type=pathlib.Path)
    args = flags.parse_args(argv[1:])
    logs, page = args.logs, args.page
    try:
        text = replaced(page.read_text(encoding="utf-8"),
                        table(lambda test: (logs / test / "test.log").read_text(encoding="utf-8", errors="replace")))
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    if not args.check:
        page.write_text(text, encoding="utf-8")
    elif text != page.read_text(encoding="utf-8"):
        sys.exit(f"{page}: the table is not what the tests counted; run tools/compatibility.py")


if __name__ == "__main__":
    main(sys.argv)
