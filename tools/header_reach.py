#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many sources see each header of the project: what an edit of it compiles again.

  tools/header_reach.py                  headers that more than 300 sources see, most first
  tools/header_reach.py --above 0        all headers
  tools/header_reach.py --seconds        and the front end of each header alone, in seconds of the
                                         processor (needs what `bazel build //proto/...` generates)
  tools/header_reach.py --path A.cc B.h  one chain of includes that leads from A.cc to B.h
"""

import collections
import os
import resource
import subprocess
import sys

import check_includes
import program

FRONT_END = ["g++", "-std=c++20", "-march=x86-64-v3", "-fsyntax-only", "-x", "c++", "-I.",
             "-Ibazel-bin", "-isystem", "/usr/include/eigen3"]


def seen_by(includes, source):
    """The headers that `source` includes, itself or through others: header -> who includes it."""
    found = {}
    queue = collections.deque([source])
    while queue:
        path = queue.popleft()
        for header in includes.get(path, []):
            if header not in found and header != source:
                found[header] = path
                queue.append(header)
    return found


def reach(includes):
    """Header -> number of sources that see it."""
    counts = collections.Counter()
    for source in includes:
        if source.endswith(".cc"):
            counts.update(seen_by(includes, source).keys())
    return {header: count for header, count in counts.items() if header in includes}


def chain(includes, source, header):
    """[source, ..., header], or nothing."""
    found = seen_by(includes, source)
    if header not in found:
        return []
    path = [header]
    while path[-1] != source:
        path.append(found[path[-1]])
    return path[::-1]


def front_end_seconds(header):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(FRONT_END + [header], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        return "    -"
    return f"{after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime:5.2f}"


def main():
    flags = program.Parser(__doc__)
    flags.add_argument("--above", metavar="N", type=int, default=300,
                       help="headers that more than N sources see (300)")
    flags.add_argument("--seconds", action="store_true", help="the front end of each")
    flags.add_argument("--path", metavar=("SOURCE", "HEADER"), nargs=2, help="why SOURCE sees HEADER")
    args = flags.parse_args()
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    includes = check_includes.Tree(check_includes.tracked_sources()).includes
    if args.path:
        source, header = args.path
        path = chain(includes, source, header)
        if not path:
            print(f"header_reach.py: {source} must see {header}, got no chain of includes",
                  file=sys.stderr)
            return 1
        print("\n".join("  " * depth + name for depth, name in enumerate(path)))
        return 0
    sources = sum(path.endswith(".cc") for path in includes)
    for header, count in sorted(reach(includes).items(), key=lambda item: (-item[1], item[0])):
        if count > args.above:
            seconds = front_end_seconds(header) + " s  " if args.seconds else ""
            print(f"{count:5}  {seconds}{header}")
    print(f"of {sources} sources")
    return 0


if __name__ == "__main__":
    sys.exit(main())
