#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what keeps the house readable, by folder: production code only, tests apart.

  tools/house.py               one table: lines, comments per line of code, MR_DCHECKs, names of ops,
                               long functions, friends, words of the README
  tools/house.py --check       fails where names of ops, long functions or friends are more than MOST,
                               a folder's README has more than README_WORDS words, a page has code
                               that no test builds or runs, or a link that leads nowhere
  tools/house.py --functions   each function of more than 100 lines
  tools/house.py --rev REV     the same of another commit

A name of an op is a comparison of a node's kind with a text outside of ops/ and graph/verify.cc. A
friend counts unless it is a function, or one of the two classes is nested in the other. Code of a
page is a block in C, C++ or shell: it names its file (tools/markdown_code.py), and a BUILD file or a
Python test names the page.
"""

import collections
import os
import re
import subprocess
import sys

import check_includes
import markdown_code
import program

LONG_LINES = 100
README_WORDS = 500  # a page; what is longer is a page of docs/
# Folder -> names of ops, long functions, friends that are there. These numbers only fall: the commit
# that reaches lower ones writes them here.
MOST = {
    "core": (0, 0, 1),  # CondVar and its Mutex
    "distributed": (0, 0, 2),  # a table and the steps in it
    "estimator": (0, 0, 0),
    # Rewrites, gradients of loops, placeholders of old graphs; a graph and its nodes.
    "graph": (49, 0, 1),
    "layers": (0, 0, 0),
    "ops": (0, 0, 0),
    "runtime": (0, 0, 0),
    # How TensorFlow's files name variables and their parts; branches that freezing leaves out.
    "saver": (34, 0, 0),
    "train": (2, 0, 0),  # what moves an average
}
CODE = ("c", "cpp", "sh")
# Page -> why its code is not run. A page that has none is named, too.
NOT_RUN = {}
OP_NAME = re.compile(r'\b(?:op|type_string|op_name)(?:\(\))?\s*[!=]=\s*"\w+"'
                     r'|"\w+"\s*[!=]=\s*[\w.>()-]*\bop\(\)')
FRIEND = re.compile(r"^[ \t]*friend (?:class|struct) (\w+);", re.M)
OUTER_CLASS = re.compile(r"^(?:class|struct) [^;{]*?(\w+)(?: final)?(?: :[^;{]*)?\s*\{", re.M)


def functions(text):
    """(first line, last line, name) of each function, by the code style: `}` closes at the column
    where the definition begins."""
    lines = text.split("\n")
    found = []
    i = 0
    while i < len(lines):
        line = lines[i]
        match = re.match(r"^( {0,2})(?!namespace|class |struct |enum |union |extern |using |typedef "
                         r"|template|return |if |for |while |switch |else|do |public|private|protected"
                         r"|friend |static_assert|case |default)([A-Za-z~].*)$", line)
        if not match:
            i += 1
            continue
        # The head may take several lines, up to `{` or `;`.
        j = i
        while j < len(lines) and not re.search(r"[{;}]$", lines[j]) and j - i < 15:
            j += 1
        head = "\n".join(lines[i:j + 1])
        if j >= len(lines) or not lines[j].endswith("{") or "(" not in head or re.search(
                r"(^|[^=!<>])=[^=]", head.split("(")[0]):
            i += 1
            continue
        end = j + 1
        while end < len(lines) and not re.match("^" + match.group(1) + r"\}", lines[end]):
            end += 1
        name = re.search(r"([~\w:]+(?:<[^>]*>)?)\(", head)
        found.append((i + 1, end + 1, name.group(1) if name else head[:40]))
        i = end + 1
    return found


def friends(text):
    """Classes that are named as friends and are nested neither in the one that names them nor around
    it."""
    found = []
    for friend in FRIEND.finditer(text):
        name = friend.group(1)
        outer = OUTER_CLASS.findall(text[:friend.start()])
        if outer[-1:] != [name] and not re.search(rf"^[ \t]+(?:class|struct) {name}\b", text, re.M):
            found.append(name)
    return found


class Count:
    """What stands in one folder."""

    def __init__(self):
        self.code = self.comments = self.dchecks = self.op_names = self.friends = self.readme = 0
        self.long = []

    def add(self, path, text):
        for line in text.split("\n"):
            line = line.strip()
            if line.startswith("//"):
                self.comments += 1
            elif line:
                self.code += 1
        self.dchecks += len(re.findall(r"\bMR_DCHECK\(", text))
        if not path.startswith(("ops/", "graph/verify.")):
            self.op_names += len(OP_NAME.findall(text))
        self.friends += len(friends(text))
        self.long += [(last - first + 1, path, first, name) for first, last, name in functions(text)
                      if last - first + 1 > LONG_LINES]


def count(sources, readmes):
    """Folder -> Count. `sources`, `readmes`: path -> text."""
    folders = collections.defaultdict(Count)
    for path, text in sources.items():
        if "/" in path and not check_includes.is_test(path):
            folders[path.split("/")[0]].add(path, text)
    for path, text in readmes.items():
        folders[path.split("/")[0]].readme = len(text.split())
    return folders


def excesses(folders):
    """One line for each number above MOST."""
    for folder, c in sorted(folders.items()):
        found = (c.op_names, len(c.long), c.friends)
        for what, most, got in zip(("names of ops", f"functions above {LONG_LINES} lines", "friends"),
                                   MOST.get(folder, (0, 0, 0)), found):
            if got > most:
                yield f"house: {folder}/ must have at most {most} {what}, got {got}"


def long_readmes(readmes):
    """One line for each README of a folder that is longer than a page. `readmes`: path -> text."""
    for path, text in sorted(readmes.items()):
        words = len(text.split())
        if "/" in path and words > README_WORDS:
            yield f"house: {path} must have at most {README_WORDS} words, got {words}"


def pages_of_tests(tests):
    """The pages that tests build or run. `tests`: path of a BUILD file or a Python test -> text."""
    found = set()
    for path, text in tests.items():
        if path.endswith(".py"):
            found |= {f"docs/{name}" for name in re.findall(r'"(\w+\.md)"', text)}
            continue
        for label in re.findall(r'page = "([^"]+)"', text):
            folder, _, name = label.rpartition(":")
            folder = folder[2:] if folder.startswith("//") else os.path.dirname(path)
            found.add(os.path.join(folder, name))
    return found


def untested_code(pages, tests, not_run=None):
    """One line for each page whose code no test has. `pages`: path -> text; `tests` as above."""
    not_run = NOT_RUN if not_run is None else not_run
    tested = pages_of_tests(tests)
    for path, text in sorted(pages.items()):
        code = [(name, lines) for language, name, lines in markdown_code.blocks(text)
                if language in CODE]
        nameless = [lines for name, lines in code if name is None]
        is_untested = bool(nameless) or (bool(code) and path not in tested)
        if path in not_run:
            if not is_untested:
                yield f"house: {path} must have code that is not run, got none; NOT_RUN names it"
        elif nameless:
            yield (f"house: {path}: a block of code must name its file, which a test builds or runs, "
                   f"got none before '{nameless[0][0] if nameless[0] else ''}'")
        elif is_untested:
            yield f"house: {path} must be built or run by a test, got code that no test has"


def anchor(heading):
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def dead_links(pages, paths):
    """One line for each link to a file that is none, or to a heading that its page has not. `pages`:
    path -> text; `paths`: of all files."""
    folders = {os.path.dirname(path) for path in paths}
    # Without code: what looks like a link there is none.
    plain = {path: "".join(re.split(r"(?m)^(```.*)$", text)[::4]) for path, text in pages.items()}
    anchors = {path: {anchor(heading) for heading in re.findall(r"(?m)^#+ (.*)$", text)}
               for path, text in plain.items()}
    for path, text in sorted(plain.items()):
        for target, heading in re.findall(r"\]\(([\w./-]*)(?:#([\w-]*))?\)", text):
            place = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
            if place not in paths and place not in folders:
                yield f"house: {path}: a link must lead to a file, got '{target}'"
            elif heading and heading not in anchors.get(place, {heading}):
                yield f"house: {path}: a link must lead to a heading of '{place}', got '#{heading}'"


def texts(rev, *patterns):
    """Path -> text of the files in the work tree, or in `rev`."""
    if rev is None:
        listed = subprocess.check_output(["git", "ls-files", *patterns], text=True).split()
        found = {}
        for path in listed:
            if os.path.exists(path):
                with open(path, encoding="utf-8") as source:
                    found[path] = source.read()
        return found
    listed = subprocess.check_output(["git", "ls-tree", "-r", "--name-only", rev], text=True).split()
    suffixes = tuple(pattern.lstrip("*") for pattern in patterns)
    return {path: subprocess.check_output(["git", "show", f"{rev}:{path}"], text=True)
            for path in listed if path.endswith(suffixes)}


def main():
    flags = program.Parser(__doc__)
    flags.add_argument("--check", action="store_true", help="fail above MOST")
    flags.add_argument("--functions", action="store_true", help="list the long functions")
    flags.add_argument("--rev", metavar="REV", help="count another commit")
    args = flags.parse_args()
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    readmes = texts(args.rev, "*README.md")
    folders = count(texts(args.rev, "*.cc", "*.h"),
                    {path: text for path, text in readmes.items() if path.count("/") == 1})
    if args.check:
        pages = texts(args.rev, "*.md")
        paths = set(subprocess.check_output(["git", "ls-files"], text=True).split())
        lines = [*excesses(folders), *long_readmes(readmes), *dead_links(pages, paths),
                 *untested_code(pages, texts(args.rev, "*BUILD.bazel", "*_test.py"))]
        for line in lines:
            print(line)
        return 1 if lines else 0
    if args.functions:
        for lines, path, first, name in sorted(sum((c.long for c in folders.values()), []),
                                               reverse=True):
            print(f"{lines:4}  {path}:{first}  {name}")
        return 0
    head = ("folder", "code", "comments/code", "MR_DCHECK", "op names", "functions > 100", "friends",
            "README words")
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    total = Count()
    for folder in sorted(folders):
        c = folders[folder]
        print(f"| {folder} | {c.code} | {c.comments / c.code if c.code else 0:.2f} | {c.dchecks} | "
              f"{c.op_names} | {len(c.long)} | {c.friends} | {c.readme} |")
        for field in ("code", "comments", "dchecks", "op_names", "friends", "readme", "long"):
            setattr(total, field, getattr(total, field) + getattr(c, field))
    print(f"| all | {total.code} | {total.comments / max(total.code, 1):.2f} | {total.dchecks} | "
          f"{total.op_names} | {len(total.long)} | {total.friends} | {total.readme} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
