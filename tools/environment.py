#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares docs/environment.md with the environment variables that the sources read.

  tools/environment.py            the variables, each with the sources that read it
  tools/environment.py --check    fails for one that the page lacks, and for one that nothing reads

A variable is a text "MILLRACE_..." in a C++ source of a program or library, tests apart.
"""

# covers: clusters: each environment variable that programs read stands in docs/environment.md

import collections
import os
import re
import subprocess
import sys

import program

PAGE = "docs/environment.md"
VARIABLE = re.compile(r'"(MILLRACE_[A-Z][A-Z_0-9]*)"')
ON_PAGE = re.compile(r"\bMILLRACE_[A-Z][A-Z_0-9]*")
# Tests, their programs and benchmarks read variables of their own.
OF_TESTS = re.compile(r"^tests/|/testing/|_test\.cc$|_benchmark\.cc$")


def variables():
    """Variable -> the sources that read it."""
    sources = subprocess.run(["git", "ls-files", "*.cc", "*.h"], check=True, capture_output=True,
                             text=True).stdout.split()
    readers = collections.defaultdict(list)
    for path in sources:
        if OF_TESTS.search(path):
            continue
        with open(path, encoding="utf-8") as source:
            for name in sorted(set(VARIABLE.findall(source.read()))):
                readers[name].append(path)
    return readers


def main():
    flags = program.Parser(__doc__)
    flags.add_argument("--check", action="store_true", help="compare with the page")
    check = flags.parse_args().check
    os.chdir(os.path.join(os.path.dirname(os.path.realpath(__file__)), ".."))
    readers = variables()
    if not check:
        for name in sorted(readers):
            print(f"{name}: {', '.join(readers[name])}")
        return 0
    with open(PAGE, encoding="utf-8") as page:
        on_page = set(ON_PAGE.findall(page.read()))
    wrong = [f"{PAGE}: must have {name}, which {readers[name][0]} reads"
             for name in sorted(set(readers) - on_page)]
    wrong += [f"{PAGE}: {name} must be read by a source, got none"
              for name in sorted(on_page - set(readers))]
    print("\n".join(wrong) if wrong else f"{PAGE}: {len(readers)} variables")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
