#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/internals/coverage.md: each promise with the tests that prove it, as the tests name it.

  tools/coverage.py            writes the page
  tools/coverage.py --check    fails where the page differs from what the tests say

A test names a promise in a comment of its file, `#` in place of `//` in Python, shell and BUILD:

  // covers: values: what an op accepts in the graph, its kernel accepts
  // covers: article 3-14: a feature that no receiver reaches is exported, with a
  //   warning; further lines are indented by three

The words before the second colon are the section (SECTIONS), with a row's number where the section
has numbers. Directly above a test the comment belongs to that test, elsewhere to the file. Tests
that name the same promise in the same words share a line of the page. A promise whose test is
deleted or renamed therefore leaves the page or follows the test.
"""

import os
import re
import subprocess
import sys

import program

PAGE = "docs/internals/coverage.md"
# Key -> heading, what to know before its table.
SECTIONS = {
    "values": ("Values and formats", ""),
    "graphs": ("Graphs", ""),
    "accidents": ("What a caller cannot do by accident", ""),
    "c api": ("The C API", ""),
    "outside": ("From outside", ""),
    "steps": ("Steps", ""),
    "variables": ("Variables", ""),
    "training": ("Training", ""),
    "input": ("Input", ""),
    "columns": ("Feature columns", ""),
    "events": ("Events", ""),
    "clusters": ("Clusters", ""),
    "serving": ("Serving", ""),
    "programs": ("Programs", ""),
    "article 0": ("Article 0: Easy distributed training", "Rows without a test wait for work on "
                  "storage and servers: 0-38 to 0-41, 0-43."),
    "article 1": ("Article 1: A customized pre-made Estimator",
                  "Row 1-26 waits for synchronous replicas."),
    "article 2": ("Article 2: Raw distributed training",
                  "Rows 2-4 and 2-26 wait for containers and storage."),
    "article 3": ("Article 3: The Estimator and its roles", ""),
    "article 4": ("Article 4: Data before training", "Rows 4-12 to 4-16, 4-18, 4-21 and 4-22 wait "
                  "for object stores, cluster managers and servers."),
    "scenario": ("The scenarios", "Each runs real processes unless its line says otherwise. F19, "
                 "F21 and F22 wait for tuning, cluster managers and storage."),
    "build": ("The build", ""),
}
HEAD = f"""# What is proven, and where

`tools/coverage.py` writes this page from the comments `covers:` of the tests. To change a line,
change the comment, then run the program. Each line names the test that fails when the promise is
broken. Tests that compare with files of TensorFlow need the shared data; they say so when they are
skipped. Counting tests count (bytes, locks, allocations, edges); none of them reads a clock.

The sections of articles and scenarios number the rows of the source articles of this project.
"""
SUFFIXES = (".cc", ".c", ".py", ".sh", "BUILD.bazel", ".ci/run")
FIRST = re.compile(r"^\s*(//|#) covers: *(.*)$")
TEST = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P)?\(\s*\w+,\s*(\w+)|^\s*(?:def|class) (\w+)")


class Claim:
    """One comment: that the test `where` proves `promise`."""

    def __init__(self, section, row, promise, where):
        self.section, self.row, self.promise, self.where = section, row, promise, where


def section_of(words, place):
    """(key, row) of what stands between the colons: `values`, `article 3-14`, `scenario F2`."""
    if words in SECTIONS and not words.startswith(("article", "scenario")):
        return words, ""
    match = re.fullmatch(r"(article (\d))-\d+(, \2-\d+)*|(scenario) F\d+", words)
    key = match and (match[1] or match[4])
    if key not in SECTIONS:
        raise ValueError(f"{place}: the section must be one of {', '.join(SECTIONS)}, got '{words}'")
    return key, words.split(" ", 1)[1]


def claims(path, text):
    """The claims of one file, in its order."""
    lines = text.split("\n")
    found = []
    open_ones = []  # those whose test has not been seen yet
    i = 0
    while i < len(lines):
        match = FIRST.match(lines[i])
        if not match:
            if open_ones and not re.match(r"^\s*(//|#)", lines[i]):
                test = TEST.match(lines[i] + (lines[i + 1].strip() if lines[i].endswith(("(", ",")) else ""))
                for claim in open_ones:
                    claim.where = (path, (test[1] or test[2]) if test else "")
                open_ones = []
            i += 1
            continue
        place = f"{path}:{i + 1}"
        said = match[2]
        mark = re.escape(match[1])
        while i + 1 < len(lines) and (more := re.match(rf"^\s*{mark}   +(\S.*)$", lines[i + 1])):
            said += " " + more[1]
            i += 1
        i += 1
        words, colon, promise = " ".join(said.split()).partition(": ")
        if not colon or not promise:
            raise ValueError(f"{place}: a claim must be `<section>: <promise>`, got '{said}'")
        key, row = section_of(words, place)
        claim = Claim(key, row, promise, (path, ""))
        open_ones.append(claim)
        found.append(claim)
    return found


def number(row):
    return [int(digits) for digits in re.findall(r"\d+", row)]


def page(found):
    """The text of the page. `found`: claims in the order of their paths."""
    out = [HEAD]
    for key, (heading, note) in SECTIONS.items():
        lines = {}  # (row, promise) -> tests
        for claim in found:
            if claim.section == key:
                tests = lines.setdefault((claim.row, claim.promise), [])
                if claim.where not in tests:
                    tests.append(claim.where)
        if not lines:
            continue
        out.append(f"## {heading}\n")
        if note:
            out.append(note + "\n")
        rows = any(row for row, _ in lines)
        out.append(("| row " if rows else "") + "| promise | proven by |\n" +
                   ("|---" if rows else "") + "|---|---|")
        for (row, promise), tests in sorted(lines.items(), key=lambda line: number(line[0][0])):
            proof = ", ".join(f"[{path}](../../{path})" + (f" {name}" if name else "")
                              for path, name in tests)
            out.append((f"| {row} " if rows else "") +
                       f"| {promise.replace('|', chr(92) + '|')} | {proof} |")
        out.append("")
    return "\n".join(out)


def main():
    flags = program.Parser(__doc__)
    flags.add_argument("--check", action="store_true", help="write nothing, fail where it differs")
    args = flags.parse_args()
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found = []
    for path in sorted(subprocess.check_output(["git", "ls-files"], text=True).split("\n")):
        if path.endswith(SUFFIXES) and os.path.exists(path):
            with open(path, encoding="utf-8") as source:
                text = source.read()
            if " covers: " in text and path not in ("tools/coverage.py",):
                try:
                    found += claims(path, text)
                except ValueError as error:
                    flags.error(str(error))
    wanted = page(found)
    if not args.check:
        with open(PAGE, "w", encoding="utf-8") as out:
            out.write(wanted)
        return 0
    with open(PAGE, encoding="utf-8") as there:
        got = there.read()
    if got == wanted:
        return 0
    pairs = zip(got.split("\n") + [""], wanted.split("\n") + [""])
    line = next((i for i, (a, b) in enumerate(pairs, 1) if a != b), 1)
    print(f"coverage: {PAGE}:{line} must be what the tests say, got another line; "
          "run tools/coverage.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
