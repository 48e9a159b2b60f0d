#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the headers that programs outside of this repository include, under one prefix.

HEADERS is a file of lines "graph/scope.h=PATH": every header that may be needed, by the name with
which sources here include it, and where it is. Each ROOT is such a name. OUT gets the roots and all
that they include:

    graph/scope.h   -> OUT/millrace/graph/scope.h
    api/millrace.h  -> OUT/millrace/millrace.h

In the copies `#include "graph/scope.h"` is `#include "millrace/graph/scope.h"`: a project may have
a graph/ of its own. Include guards stay, so a source that takes both paths sees each header once.
"""

import os
import re
import sys

import program

INCLUDE = re.compile(r'^([ \t]*#[ \t]*include[ \t]*)"([^"]+)"', re.M)
GUARD = re.compile(r"^#define (?!MR_|MILLRACE_|GOOGLE_PROTOBUF_INCLUDED_)(\w+)", re.M)
PREFIX = "millrace"


def public_name(name):
    """Where users find the header `name` of this repository."""
    return f"{PREFIX}/{name[len('api/'):]}" if name.startswith("api/") else f"{PREFIX}/{name}"


def rewritten(name, text, known):
    """The text of a header with the public names in its includes, and the headers that it includes.

    ValueError for an include of a header of ours that is not known, and for a macro without our prefix."""
    included = []
    folders = {header.split("/")[0] for header in known}

    def replace(match):
        header = match.group(2)
        if header not in known:
            if header.split("/")[0] not in folders:
                return match.group(0)  # of a library: "absl/..."
            raise ValueError(f"{name}: a public header must include headers of its library's deps, "
                             f'got "{header}"')
        included.append(header)
        return f'{match.group(1)}"{public_name(header)}"'

    text = INCLUDE.sub(replace, text)
    if not name.endswith(".pb.h"):
        for macro in GUARD.findall(text):
            raise ValueError(f"{name}: macros of public headers must begin with MR_ or MILLRACE_, "
                             f"got {macro}")
    return text, included


def closure(roots, paths):
    """Public name -> text, of the roots and what they include."""
    result, queue = {}, list(roots)
    while queue:
        name = queue.pop()
        if public_name(name) in result:
            continue
        if name not in paths:
            raise ValueError(f"public header '{name}' must be a header of the library's deps, "
                             "got none of that name")
        with open(paths[name], encoding="utf-8") as source:
            text, included = rewritten(name, source.read(), paths)
        result[public_name(name)] = text
        queue += included
    return result


def main():
    flags = program.Parser(__doc__)
    flags.add_argument("headers", metavar="HEADERS")
    flags.add_argument("out", metavar="OUT")
    flags.add_argument("roots", metavar="ROOT", nargs="+")
    args = flags.parse_args()
    with open(args.headers, encoding="utf-8") as lines:
        paths = dict(line.split("=", 1) for line in lines.read().splitlines())
    try:
        headers = closure(args.roots, paths)
    except ValueError as error:
        sys.exit(f"public_headers: {error}")
    for name, text in sorted(headers.items()):
        path = os.path.join(args.out, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
