#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What from_tensorflow.md says that there is, the installed headers declare.

    from_tensorflow_test.py PAGE INCLUDE_DIR

Of the second column of each table: a piece of code is a header, a program of bin/, or names. Names
begin with a capital letter or stand behind a dot. A name is declared when it is a word of the code
of a public header.
"""

# covers: outside: each name of the page for users of TensorFlow is declared by an installed header

import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, "tools")

import install  # noqa: E402
import public_symbols  # noqa: E402

ROW = re.compile(r"^\| (.+) \| (.+) \|$", re.M)
NAME = re.compile(r"\b[A-Z]\w*|(?<=\.)[a-z]\w*")
HEADER = re.compile(r"^<(millrace/[\w/.]+)>$")


def pieces(page):
    """The code of the second column of all rows, and below headings."""
    cells = [cell for _, cell in ROW.findall(page)]
    cells += re.findall(r"^## (.*)$", page, re.M)
    return [piece for cell in cells for piece in re.findall(r"`([^`]+)`", cell)]


def unknown(page, words, headers, programs):
    """A line for each name of the page that is none."""
    for piece in pieces(page):
        header = HEADER.match(piece)
        if header:
            if header[1] not in headers:
                yield f"'{piece}' must be an installed header, got none of that name"
        elif re.fullmatch(r"[a-z]\w*", piece):
            if piece not in programs:
                yield f"'{piece}' must be a program of bin/, got none of that name"
        else:
            code = re.sub(r'"[^"]*"', '""', piece)
            for name in NAME.findall(code):
                if name not in words:
                    yield f"'{piece}': '{name}' must be declared by an installed header, got none"


def headers_in(folder):
    """Name -> text of each header below `folder`."""
    found = {}
    for place, _, names in os.walk(folder, followlinks=True):
        for name in names:
            path = os.path.join(place, name)
            with open(path, encoding="utf-8") as text:
                found[os.path.relpath(path, folder)] = text.read()
    return found


def main():
    page_path, include = sys.argv[1:]
    with open(page_path, encoding="utf-8") as text:
        page = text.read()
    headers = headers_in(include)
    words = set()
    for name, text in headers.items():
        if not name.endswith(".pb.h"):
            words |= set(re.findall(r"[A-Za-z_]\w*", public_symbols.code_of(text)))
    # What the test cannot miss: a header, a program, a name, a field, one that only a comment has.
    planted = ("| `tf.a` | `<millrace/none.h>`, `launch`, `lunch`, `Shape{\"Text\"}`, "
               "`Shap(s, {.rate = 1})` |\n## Parts, in `<millrace/parts.h>`\n")
    found = list(unknown(planted, {"Shape"}, {"millrace/parts.h"}, {"launch"}))
    assert len(found) == 4, found
    assert len(pieces(page)) > 200, f"{page_path}: must have tables, got {len(pieces(page))} names"
    found = list(unknown(page, words, headers, install.TOOLS))
    print("\n".join(found) or f"{len(pieces(page))} pieces of code")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
