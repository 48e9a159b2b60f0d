#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what two commits cost to build, on this machine, in turns.

  tools/compare_builds.py 88251a8 HEAD                    the first command of the README, cold
  tools/compare_builds.py --all 88251a8 HEAD              also the rest of //..., whose sum is that of
                                                          a cold build, and the build after a comment
                                                          in graph/scope.h

Each commit is checked out in a folder of its own and built with an own Bazel server, without a disk
cache. Printed for each build: seconds of wall clock, of the processor (of the server's children),
and actions; at the end the medians and their ratio. Nothing else may run, no check of the format
either: a round of --all takes 90 minutes of two slow cores. `--work DIR` keeps folders and servers
below DIR (10 GB).
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import program

TICKS = os.sysconf("SC_CLK_TCK")


def first_command(root):
    """The targets that tools/quickstart.sh builds for its default job."""
    with open(os.path.join(root, "tools/quickstart.sh"), encoding="utf-8") as script:
        lines = re.findall(r"^ +build ((?://\S+ *|\\\n *)+)$", script.read(), re.M)
    if not lines:
        raise SystemExit(f"{root}/tools/quickstart.sh: must have a line `build //...`, got none")
    return lines[0].replace("\\\n", " ").split() + ["//tools:launch", "//tools:saved_model_cli"]


class Commit:
    """A commit in a folder of its own."""

    def __init__(self, revision, work):
        self.name = subprocess.check_output(["git", "rev-parse", "--short", revision],
                                            text=True).strip()
        self.root = os.path.join(work, self.name)
        self.server = os.path.join(work, self.name + ".bazel")
        if not os.path.exists(self.root):
            subprocess.check_call(["git", "worktree", "add", "--quiet", "--detach", self.root,
                                   revision])

    def bazel(self, *arguments):
        return subprocess.run(["bazel", "--output_user_root=" + self.server, *arguments],
                              cwd=self.root, check=True, text=True, stderr=subprocess.STDOUT,
                              stdout=subprocess.PIPE).stdout

    def seconds_of_children(self):
        pid = self.bazel("info", "server_pid").strip().split("\n")[-1]
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[13]) + int(fields[14])) / TICKS

    def build(self, what, targets):
        """(wall clock, processor, actions) of one build."""
        processor, begin = self.seconds_of_children(), time.monotonic()
        said = self.bazel("build", "--disk_cache=", "--noshow_progress", "--color=no", *targets)
        wall = time.monotonic() - begin
        processor = self.seconds_of_children() - processor
        actions = re.search(r"(\d+) process", said)
        print(f"{what}, {self.name}: {wall:.0f} s, {processor:.0f} s of the processor, "
              f"{actions[1] if actions else '?'} actions", flush=True)
        return wall, processor

    def clean(self):
        self.bazel("clean", "--expunge")

    def edit(self, path, count):
        """One more comment at the end of a file."""
        with open(os.path.join(self.root, path), "a", encoding="utf-8") as source:
            source.write(f"// edit {count}\n")

    def remove(self):
        self.bazel("shutdown")
        subprocess.run(["git", "worktree", "remove", "--force", self.root], check=False)


def measure(commits, whole, rounds):
    """What was built -> commit -> [(wall clock, processor)]."""
    figures = {}

    def note(what, commit, figure):
        figures.setdefault(what, {}).setdefault(commit, []).append(figure)

    for count in range(rounds):
        for commit in commits if count % 2 == 0 else reversed(commits):
            commit.clean()
            first = commit.build("the first command, cold", first_command(commit.root))
            note("the first command, cold", commit, first)
            if not whole:
                continue
            rest = commit.build("the rest of //...", ["//..."])
            note("//... cold", commit, tuple(a + b for a, b in zip(first, rest)))
            commit.edit("graph/scope.h", count)
            what = "a comment in graph/scope.h"
            note(what, commit, commit.build(what, ["//..."]))
    return figures


def main():
    parser = program.Parser(__doc__)
    parser.add_argument("--all", action="store_true", help="build //...")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", help="where to build; kept")
    parser.add_argument("old")
    parser.add_argument("new")
    options = parser.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    work = options.work or tempfile.mkdtemp(prefix="compare_builds.")
    os.makedirs(work, exist_ok=True)
    commits = [Commit(options.old, work), Commit(options.new, work)]
    try:
        for what, by_commit in measure(commits, options.all, options.rounds).items():
            for kind, name in enumerate(("wall clock", "processor")):
                old, new = (statistics.median(run[kind] for run in by_commit[commit])
                            for commit in commits)
                print(f"{what}, {name}: {old:.0f} s -> {new:.0f} s, {new / old:.2f}")
    finally:
        for commit in commits:
            commit.remove()
        if not options.work:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
