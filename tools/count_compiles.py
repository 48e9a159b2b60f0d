#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what a build compiles, without building: each source once in each configuration.

Prints `N sources, N compile actions`. Sources that one configuration compiles more than once with
the same macros (for programs and again for shared libraries, or in two targets) are listed with
their targets, and the exit code is 1. Configurations that build tools for the build itself count by themselves.
"""

import collections
import json
import subprocess
import sys

import program


def compiled_source(arguments):
    """The source of one compiler call; the file after -c."""
    return arguments[arguments.index("-c") + 1]


def labels_by_source(reply):
    """(configuration, source, macros) -> the labels whose actions compile it, one per action."""
    targets = {target["id"]: target["label"] for target in reply.get("targets", [])}
    labels = collections.defaultdict(list)
    for action in reply.get("actions", []):
        if "-c" not in action["arguments"]:
            continue  # the check of a header: no code
        macros = tuple(sorted(word for word in action["arguments"] if word.startswith("-D")))
        key = (action["configurationId"], compiled_source(action["arguments"]), macros)
        labels[key].append(targets[action["targetId"]])
    return labels


def main():
    parser = program.Parser(__doc__)
    parser.add_argument("targets", metavar="TARGET", nargs="*", help="of Bazel (//...)")
    parser.usage = "%(prog)s [-h] [--version] [TARGET ...] [-- BAZEL_FLAG ...]"
    words, flags = sys.argv[1:], []
    if "--" in words:
        cut = words.index("--")
        words, flags = words[:cut], words[cut + 1:]
    scope = " + ".join(parser.parse_args(words).targets or ["//..."])
    reply = json.loads(subprocess.check_output(
        ["bazel", "aquery", f'mnemonic("CppCompile", {scope})', "--output=jsonproto",
         "--include_artifacts=false", "--noshow_progress", "--ui_event_filters=-info"] + flags))
    labels = labels_by_source(reply)
    repeated = {key: names for key, names in labels.items() if len(names) > 1}
    for (_, source, _), names in sorted(repeated.items()):
        print(f"{source}: compiled {len(names)} times, in {', '.join(sorted(set(names)))}")
    print(f"{len({key[:2] for key in labels})} sources, {sum(map(len, labels.values()))} compile actions")
    return 1 if repeated or not labels else 0


if __name__ == "__main__":
    sys.exit(main())
