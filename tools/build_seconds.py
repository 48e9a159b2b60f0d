#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the seconds of a build went, from the profile that `bazel ... --profile=FILE` writes.

Prints the seconds of all actions by kind and the seconds of compilers by folder, then the slowest
sources. Seconds are those of the actions: two at a time make a wall second of two.
"""

import collections
import json
import re
import zlib

import program

TEST = re.compile(r"_(test|benchmark)\.cc$|/testing/|^tests/")


def actions(path):
    """Yields (name, seconds) of each action; of a profile that was cut off, what is there."""
    with open(path, "rb") as profile:
        data = profile.read()
    if data[:2] == b"\x1f\x8b":
        data = zlib.decompressobj(31).decompress(data)
    for line in data.decode(errors="replace").splitlines():
        line = line.strip().rstrip(",")
        if '"cat":"action processing"' not in line:
            continue
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            return
        yield event["name"], event.get("dur", 0) / 1e6


def kind(name):
    """What an action is for; compilers by what they compile."""
    verb, _, rest = name.partition(" ")
    if verb != "Compiling":
        return verb
    if rest.endswith(".pb.cc"):
        return "Compiling messages"
    return "Compiling tests" if TEST.search(rest) else "Compiling libraries and programs"


def main():
    flags = program.Parser(__doc__)
    flags.add_argument("profile", metavar="PROFILE", help="may be compressed: .gz")
    flags.add_argument("limit", metavar="SOURCES", nargs="?", type=int, default=20,
                       help="how many of the slowest are shown (20)")
    args = flags.parse_args()
    seconds, count = collections.Counter(), collections.Counter()
    folders, sources = collections.Counter(), []
    for name, duration in actions(args.profile):
        seconds[kind(name)] += duration
        count[kind(name)] += 1
        if name.startswith("Compiling "):
            source = name.split()[1]
            folders[source.split("/")[0]] += duration
            sources.append((duration, source))
    print(f"{sum(seconds.values()):9.1f} s  {sum(count.values()):5d}  all actions")
    for name, total in seconds.most_common():
        print(f"{total:9.1f} s  {count[name]:5d}  {name}")
    print("compilers by folder")
    for folder, total in folders.most_common():
        print(f"{total:9.1f} s         {folder}")
    print("slowest sources")
    for duration, source in sorted(sources, reverse=True)[:args.limit]:
        print(f"{duration:9.1f} s         {source}")


if __name__ == "__main__":
    main()
