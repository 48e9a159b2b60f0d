#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What from_tensorflow.md says that there is, the installed headers declare.

    from_tensorflow_test.py PAGE INCLUDE_DIR

Of the second column of each table: a piece of code is a header, a program of bin/, or names. Names
begin with a capital letter or stand behind a dot. A name is declared when it is a word of the code
of a header that a program of the page's includes: millrace.h, a header that the heading names, one
that the row names, and what these include.
"""

# covers: outside: each name of the page for users of TensorFlow is declared by the installed header
#   that the page names

import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, "tools")

import install  # noqa: E402
import public_symbols  # noqa: E402

LINE = re.compile(r"^## (?P<heading>.*)$|^\| .+ \| (?P<cell>.+) \|$", re.M)
NAME = re.compile(r"\b[A-Z]\w*|(?<=\.)[a-z]\w*")
HEADER = re.compile(r"<(millrace/[\w/.]+)>")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<](millrace/[\w/.]+)[">]', re.M)
EVERYWHERE = "millrace/millrace.h"


class Headers:
    """Those below `folder`, by the names with which programs include them."""

    def __init__(self, texts):
        self.texts = texts
        self.words = {name: set(re.findall(r"[A-Za-z_]\w*", public_symbols.code_of(text)))
                      for name, text in texts.items() if not name.endswith(".pb.h")}

    def words_of(self, names):
        """The words of these headers and of all that they include."""
        found, queue, seen = set(), list(names), set()
        while queue:
            name = queue.pop()
            if name in seen or name not in self.texts:
                continue
            seen.add(name)
            found |= self.words.get(name, set())
            queue += INCLUDE.findall(self.texts[name])
        return found


def pieces(text):
    return re.findall(r"`([^`]+)`", text)


def unknown(page, headers, programs):
    """A line for each name of the page that is none."""
    words_of_heading = set()
    for line in LINE.finditer(page):
        text = line["heading"] or line["cell"]
        named = HEADER.findall(text)
        for name in named:
            if name not in headers.texts:
                yield f"'<{name}>' must be an installed header, got none of that name"
        if line["heading"]:
            words_of_heading = headers.words_of([EVERYWHERE, *named])
            continue
        words = words_of_heading | headers.words_of(named)
        for piece in pieces(text):
            if HEADER.fullmatch(piece):
                continue
            if re.fullmatch(r"[a-z]\w*", piece):
                if piece not in programs:
                    yield f"'{piece}' must be a program of bin/, got none of that name"
                continue
            for name in NAME.findall(re.sub(r'"[^"]*"', '""', piece)):
                if name not in words:
                    yield f"'{piece}': a header that the page names must declare '{name}', got none"


def texts_in(folder):
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
    # What the test cannot miss: a header, a program, a name, a field, a name that only a comment
    # has or a header that is not included.
    planted = Headers({"millrace/millrace.h": '#include "millrace/shape.h"\n// class Remark;\n',
                       "millrace/shape.h": "class Shape;\n", "millrace/parts.h": "class Part;\n"})
    table = ("## Shapes\n| `tf.a` | `<millrace/none.h>`, `launch`, `lunch`, `Shape{\"Text\"}` |\n"
             "| `tf.b` | `Shap(s, {.rate = 1})`, `Remark`, `Part` |\n"
             "| `tf.c` | `Part` of `<millrace/parts.h>` |\n"
             "## Parts, in `<millrace/parts.h>`\n| `tf.d` | `Part`, `Shape` |\n")
    found = list(unknown(table, planted, {"launch"}))
    assert len(found) == 6, found
    count = sum(len(pieces(line["cell"])) for line in LINE.finditer(page) if line["cell"])
    assert count > 200, f"{page_path}: must have tables, got {count} pieces of code"
    found = list(unknown(page, Headers(texts_in(include)), install.TOOLS))
    print("\n".join(found) or f"{count} pieces of code")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
