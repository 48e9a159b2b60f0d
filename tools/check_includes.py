#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the includes of project headers: arrows between folders, public headers, direct includes.

Arrows: a file of a folder includes folders above it only (ARROWS), tests and benchmarks apart. A
folder in another one may have an arrow of its own: the outer one may include it, not the reverse.
Nothing includes tools, tests or examples, or a .cc file. A folder and a folder in it do not include
each other both ways, tests and benchmarks apart.

Public headers: nothing that PUBLIC_HEADERS include, at any depth, is a header of protobuf.

Direct includes: a file that uses a name which one project header declares includes that header, or
one that exports it (`// IWYU pragma: export`). X.cc and X_test.cc may leave it to X.h. Names are
found as text, at the start of a line in headers; a name that two headers declare is not looked at.
"""

import collections
import os
import re
import subprocess
import sys

import program

# Folder -> what it may include besides itself; a header stands for itself alone.
KERNEL_API = ["runtime/function_runner.h", "runtime/holds_for_sessions.h", "runtime/kernel.h",
              "runtime/resource_manager.h", "runtime/step_context.h",
              "runtime/step_loans.h", "runtime/variable_storage.h"]
GRAPH = ["proto", "core", "formats", "graph"]
OPS = GRAPH + KERNEL_API + ["ops"]
LAYERS = OPS + ["layers"]
RUN_OF_SESSION = ["run/run_choice.h", "run/run_session.h"]
SAVER = LAYERS + ["runtime/session.h", "saver"]
ARROWS = {
    "proto": [],
    "core": ["proto"],
    "formats": ["proto", "core"],
    "net": ["proto", "core"],
    "stores": ["core", "formats"],
    "run": ["proto", "core", "formats"],
    "graph": ["proto", "core", "formats"],
    "runtime": GRAPH + RUN_OF_SESSION,
    "ops": GRAPH + KERNEL_API,
    "layers": OPS,
    "data": OPS,
    "saver": LAYERS + ["runtime/session.h"],
    "distributed": GRAPH + ["net", "run", "runtime"],
    "distributed/link": ["proto", "core", "net"],
    "train": SAVER + ["run", "runtime/step_stats.h"],
    "serving": ["proto", "core", "formats", "net", "saver", "runtime/session.h"],
    "estimator": SAVER + ["run", "train", "data", "distributed/cluster/cluster.h",
                          "distributed/server.h", "distributed/replica_device_setter.h"],
    "serving": SAVER + ["net"],
    "api": SAVER + ["net", "run", "runtime", "data", "distributed", "train", "estimator",
            "serving"],
}
FORBIDDEN = {"tools", "tests", "examples"}
# Sub-folders that still include their folder and are included by it. The list only gets shorter: a
# folder that is in no circle any more must leave it.
CIRCLES = set()

# What programs include; they pay for no message that they do not use.
PUBLIC_HEADERS = ["api/millrace.h", "api/estimator.h", "api/client.h", "api/model_server.h"]
PROTOBUF = re.compile(r"\.pb\.h$|^google/protobuf/")

INCLUDE = re.compile(r'^#include "([^"]+)"(.*)$', re.M)
PUBLIC_INCLUDE = re.compile(r"^#include <millrace/([^>]+)>", re.M)
# What a header declares for others, at the start of a line: the code style indents no namespace.
DECLARATIONS = [
    re.compile(r"^(?:class|struct|enum|enum class|union) (?:ABSL_\w+(?:\([^)]*\))? )?"
               r"(?:\[\[nodiscard\]\] )?(\w+)(?! *;)(?=[ :{]|$)", re.M),
    re.compile(r"^using (\w+) =", re.M),
    re.compile(r"^(?:inline )?constexpr [^=({;]*?\b(k[A-Z]\w+)(?:\[\w*\])?(?= *[={])", re.M),
    re.compile(r"^(?! |return |using |class |struct |friend |#)(?:[\w:<>,*&\[\] ]|\(\))+[ *&]([A-Z]\w+)\(",
               re.M),
    re.compile(r"^#define (MR_\w+)", re.M),
]
FORWARD = re.compile(r"^(?:class|struct|enum class) (\w+)(?: *: *\w+)?;", re.M)

# Types of a function or class, parameters of templates.
LOCAL = re.compile(r"\b(?:class|struct|enum|using|typename) (\w+)")
# Constants of a function, suites of tests, members that the file defines.
OWN_NAMES = [re.compile(pattern, re.M) for pattern in
             (r"^ +constexpr [\w:]+ (k\w+) =", r"^TEST\((\w+)", r"^\S.*\w::(\w+)\(")]


def code_of(text):
    """The text without comments, strings and includes."""
    text = re.sub(r'R"(\w*)\((.*?)\)\1"', '""', text, flags=re.S)
    text = re.sub(r'//[^\n]*|/\*.*?\*/', " ", text, flags=re.S)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"^#include.*$", "", text, flags=re.M)


class Tree:
    """What each source includes and declares."""

    def __init__(self, sources):
        """`sources`: path -> text."""
        self.code = {path: code_of(text) for path, text in sources.items()}
        self.includes = {path: [m[0] for m in INCLUDE.findall(text)]
                         + [name if name in sources else "api/" + name
                            for name in PUBLIC_INCLUDE.findall(text)]
                         for path, text in sources.items()}
        self.exports = {path: [name for name, rest in INCLUDE.findall(text)
                               if "IWYU pragma: export" in rest]
                        for path, text in sources.items()}
        self.declared = {path: {name for pattern in DECLARATIONS for name in pattern.findall(code)}
                         for path, code in self.code.items()}

    def owners(self):
        """Name -> its header, for names of five letters and more that only one header declares."""
        headers = {}
        for path, names in self.declared.items():
            if path.endswith(".h"):
                for name in names:
                    headers.setdefault(name, set()).add(path)
        return {name: found.pop() for name, found in headers.items()
                if len(found) == 1 and len(name) >= 5}

    def provided(self, path):
        """The headers whose names `path` may use."""
        found, queue = set(), list(self.includes[path])
        for own in {re.sub(r"(_test|_benchmark)?\.cc$", ".h", path)} - {path}:
            queue += self.includes.get(own, [])
        while queue:
            header = queue.pop()
            if header not in found:
                found.add(header)
                queue += self.exports.get(header, [])
        return found


def tracked_sources():
    listed = subprocess.check_output(["git", "ls-files", "*.cc", "*.h"], text=True).split()
    sources = {}
    for path in listed:
        if os.path.exists(path):
            with open(path, encoding="utf-8") as source:
                sources[path] = source.read()
    return sources


def is_test(path):
    return (re.search(r"_(test|benchmark)\.cc$", path) is not None or "/testing/" in path
            or path.startswith("tests/"))


def folder_of(path):
    """The innermost folder of ARROWS that `path` is in; its top folder when there is none."""
    parts = path.split("/")[:-1]
    for n in range(len(parts), 1, -1):
        if "/".join(parts[:n]) in ARROWS:
            return "/".join(parts[:n])
    return path.split("/")[0]


def arrow_error(path, header):
    """Why `path` must not include `header`; None when it may."""
    folder, top = folder_of(path), header.split("/")[0]
    if header.endswith(".cc"):
        return f"{path}: must not include a source, got '{header}'"
    if header.startswith(folder + "/") or top not in set(ARROWS) | FORBIDDEN or is_test(path):
        return None  # the folder itself, a library of the system
    if top in FORBIDDEN:
        return f"{path}: nothing includes {top}/, got '{header}'"
    if folder in ARROWS and top not in ARROWS[folder] and header not in ARROWS[folder]:
        return (f"{path}: {folder}/ may include {', '.join(ARROWS[folder]) or 'nothing'}, "
                f"got '{header}'")
    return None


def arrow_errors(tree):
    for path, includes in sorted(tree.includes.items()):
        for header in includes:
            error = arrow_error(path, header)
            if error is not None:
                yield error


def circle_errors(tree, allowed=frozenset(CIRCLES)):
    """An error per pair of a folder and one in it whose libraries include each other."""
    edges = {}  # (folder, folder) -> the first include from one to the other
    for path, includes in sorted(tree.includes.items()):
        for header in sorted(includes):
            folder, other = os.path.dirname(path), os.path.dirname(header)
            if folder != other and not is_test(path) and not is_test(header):
                edges.setdefault((folder, other), (path, header))
    found = set()
    for (folder, inner), (path, header) in sorted(edges.items()):
        if not inner.startswith(folder + "/") or (inner, folder) not in edges:
            continue
        found.add(inner)
        if inner not in allowed:
            back, its_header = edges[inner, folder]
            yield (f"{path}: {folder}/ and {inner}/ must not include each other, got '{header}'; "
                   f"{back} includes '{its_header}'")
    for inner in sorted(allowed - found):
        if any(os.path.dirname(path) == inner for path in tree.includes):
            yield f"{inner}/: is in no circle of includes and must leave CIRCLES, got it there"


def chain_of(came_from, path):
    """[first file, ..., path], each of which includes the next one."""
    chain = [path]
    while came_from[chain[-1]] is not None:
        chain.append(came_from[chain[-1]])
    return chain[::-1]


def protobuf_errors(tree):
    """An error per header of protobuf behind a public header, with a shortest chain to it."""
    reported = set()
    for public in PUBLIC_HEADERS:
        if public not in tree.includes:
            yield f"{public}: must be there as long as PUBLIC_HEADERS names it, got no such file"
            continue
        came_from = {public: None}  # header -> the file that includes it
        queue = collections.deque([public])
        while queue:
            path = queue.popleft()
            for header in tree.includes.get(path, []):
                if header in came_from:
                    continue
                came_from[header] = path
                queue.append(header)
                if PROTOBUF.search(header) and header not in reported:
                    reported.add(header)
                    yield (f"{public}: must reach no header of protobuf, got '{header}' by "
                           f"{' -> '.join(chain_of(came_from, header))}")


def missing_includes(tree):
    """(path, header, name) for each header that `path` must include itself."""
    owners = tree.owners()
    words = re.compile(r"(?<![\w.>:])(?:millrace::)?([A-Za-z]\w{4,})\b")
    for path in sorted(tree.code):
        code = tree.code[path]
        own = tree.declared[path] | set(FORWARD.findall(code)) | set(LOCAL.findall(code)) | {
            # What the file declares otherwise: members, locals, enumerators, test names.
            name for name in re.findall(r"[\w>&*] ([A-Z]\w+)(?:[;,={(]| =)", code)
            if re.search(rf"^ +[\w:<>,*& ]+ {name}\(", code, re.M)}
        for pattern in OWN_NAMES:
            own |= set(pattern.findall(code))
        if re.search(r"using namespace (::)?tensorflow;", code):
            continue  # a message may have the name of a type of ours
        provided = tree.provided(path) | {path}
        wanted = {}
        for name in words.findall(code):
            header = owners.get(name)
            if (header is None or header in provided or name in own or arrow_error(path, header)
                    or (is_test(header) and not is_test(path))):
                continue  # known here, or another thing of that name
            wanted.setdefault(header, name)
        for header, name in sorted(wanted.items()):
            yield path, header, name


def add_includes(path, headers):
    with open(path, encoding="utf-8") as source:
        lines = source.read().split("\n")
    last = max(i for i, line in enumerate(lines) if line.startswith("#include "))
    # Next to the last project header, in whose block clang-format sorts.
    quoted = [i for i, line in enumerate(lines) if line.startswith('#include "') and "/" in line]
    at = (quoted[-1] if quoted else last) + 1
    lines[at:at] = [f'#include "{header}"' for header in headers]
    with open(path, "w", encoding="utf-8") as out:
        out.write("\n".join(lines))


def main():
    flags = program.Parser(__doc__)
    flags.add_argument("--fix", action="store_true",
                       help="adds the missing includes; clang-format sorts them")
    args = flags.parse_args()
    tree = Tree(tracked_sources())
    errors = [*arrow_errors(tree), *circle_errors(tree), *protobuf_errors(tree)]
    missing = {}
    for path, header, name in missing_includes(tree):
        missing.setdefault(path, []).append(header)
        errors.append(f"{path}: uses {name} and must include '{header}' itself")
    if args.fix:
        for path, headers in missing.items():
            add_includes(path, headers)
            subprocess.check_call(["clang-format-16", "-i", path])
    for line in errors:
        print(f"include: {line}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
