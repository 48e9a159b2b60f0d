#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model server's replies over REST, byte for byte those of the files goldens/*.golden.

Each file is a subject and is asked of a server of its own. Its lines:

  # ...              a comment
  flag: --...        of the server, at the head of the file
  case: NAME         begins a case
  from: ...          what of serving.md ("S") or of tf-highlevel.md ("H") the reply is written from:
                     S SECTION, WORDS, WORDS: WORDS; H SECTION, ... -- remark
  ask: METHOD PATH   begins the request
  reply: CODE        begins the reply
  gzip:              the body that follows is compressed
  Name: value        a header
  |...               a line of the body; lines are joined by a newline, and none follows the last
  \\...               the same, with escapes as \\x01
  any body           of a reply: serving.md says nothing of it

A reply has the headers that are listed, Date, Content-Length and no other. A body that is not
there is empty. Sections and words of `from` stand in these pages, which MILLRACE_SHARED has; where
they are absent their test is skipped.
"""

# covers: serving: REST replies equal golden files byte for byte, written from serving.md: rows and
#   columns, one output and several, scalars, strings and base64, NaN and infinity, digits of
#   numbers, classify, regress, status, metadata, labels, the list of models, errors of the parser
#   with their offsets, of requests, rows, columns and examples, paths, methods, gzip, CORS; each
#   golden names the section and the words that it is written from, and they stand there

import glob
import gzip
import os
import re
import sys
import unittest

sys.dont_write_bytecode = True  # next to the sources
sys.path.insert(0, os.path.join("tests", "serving"))
from server_by_python import Graph, Server, write  # pylint: disable=wrong-import-position

TMP = os.environ["TEST_TMPDIR"]
GOLDENS = sorted(glob.glob(os.path.join("tests", "serving", "goldens", "*.golden")))
DTYPES = ("float", "double", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64",
          "bool", "string", "half", "bfloat16")


REFERENCE = os.path.join(os.environ.get("MILLRACE_SHARED", ""), "reference")
PAGES = {"S": "serving.md", "H": "tf-highlevel.md"}
# Of a page, by its name: below a heading, below a line in bold, or one line.
SECTIONS = (r"^## {0}\..*?(?=^#|\Z)", r"^\*\*{0}\b.*?(?=^\*\*|^#|\Z)", r"^(?:- )?{0}\b[^\n]*$")


class Case:

    def __init__(self, name, where):
        self.name, self.where, self.source = name, where, ""
        self.method = self.path = self.code = None
        # Of the request and of the reply.
        self.headers, self.lines, self.gzip = ([], []), ([], []), [False, False]
        self.any_body = False

    def body(self, side):
        return b"\n".join(self.lines[side])


def read_golden(path):
    """Its flags and its cases."""
    flags, cases, case, side = [], [], None, 0
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line, where = line.rstrip("\n"), f"{path}:{number}"
            key, _, value = line.partition(": ")
            if case is not None and line.startswith("|"):
                case.lines[side].append(line[1:].encode())
            elif case is not None and line.startswith("\\"):
                # Characters beyond ASCII are written as bytes, \xc3\xa4.
                case.lines[side].append(
                    line[1:].encode("ascii").decode("unicode_escape").encode("latin-1"))
            elif not line or line.startswith("#"):
                continue
            elif key == "flag":
                flags.append(value)
            elif key == "case":
                case, side = Case(value, where), 0
                cases.append(case)
            elif key == "from":
                case.source = value
            elif key == "ask":
                case.method, case.path = value.split(" ", 1)
            elif key == "reply":
                case.code, side = int(value), 1
            elif line == "gzip:":
                case.gzip[side] = True
            elif line == "any body":
                case.any_body = True
            elif value:
                case.headers[side].append((key, value))
            else:
                raise AssertionError(f"{where}: it must be a line of a golden, got '{line}'")
    return flags, cases


def plain(text):
    """Its words, however they are marked."""
    text = text.replace("\u2192", "->").replace("\u2026", "...")
    return re.sub(r"\s+", " ", re.sub(r'[`*"]', "", text)).strip().lower()


def section_of(page, name):
    """Its plain text; "": there is none."""
    for pattern in SECTIONS:
        found = re.search(pattern.format(re.escape(name)), page, re.MULTILINE | re.DOTALL)
        if found:
            return plain(found.group(0))
    return ""


def mistakes_of_source(source, pages):
    """What a line `from` says and the pages do not."""
    mistakes = []
    for part in source.split(" -- ")[0].split("; "):
        read = re.fullmatch(r"([SH]) (\w+), (.+)|([SH]) (\w+)", part)
        if not read:
            mistakes.append(f"'{part}' must be 'S SECTION, WORDS' or 'H SECTION, WORDS'")
            continue
        page, name = read[1] or read[4], read[2] or read[5]
        section = section_of(pages[page], name)
        if not section:
            mistakes.append(f"{PAGES[page]} has no section '{name}'")
            continue
        for words in re.split(", |: ", read[3] or ""):
            if plain(words) not in section:
                mistakes.append(f"section '{name}' of {PAGES[page]} has no '{words}'")
    return mistakes


def write_models():
    """The models of the goldens, and the list of them."""
    def path(*names):
        return os.path.join(TMP, "models", *names)

    # "f": the input as it came.
    graph = Graph()
    x = graph.placeholder("x", "DT_FLOAT")
    graph.sign("serving_default", {"x": x}, {"y": graph.identity("y", x)})
    graph.write(path("f", "1"))
    graph.write(path("a b", "1"))

    # "types": one signature per dtype.
    graph = Graph()
    for name in DTYPES:
        x = graph.placeholder(name + "/x", "DT_" + name.upper())
        graph.sign(name, {"x": x}, {"y": graph.identity(name + "/y", x)})
    graph.write(path("types", "1"))

    # "two": inputs and outputs of several forms.
    graph = Graph()
    a = graph.placeholder("a", "DT_FLOAT")
    s = graph.placeholder("s", "DT_STRING")
    a_out, s_out = graph.identity("a_out", a), graph.identity("s_out", s)
    graph.sign("serving_default", {"a": a, "s": s}, {"a_out": a_out, "s_out": s_out})
    three = graph.constant("three", "DT_FLOAT", [3], [1, 2, 3])
    none = graph.constant("none", "DT_FLOAT", [0], [])
    graph.sign("uneven", {"a": a}, {"p": a_out, "q": graph.identity("q", three)})
    graph.sign("empty", {"a": a}, {"z": graph.identity("z", none)})
    scalar = graph.constant("scalar", "DT_FLOAT", [], [2.5])
    graph.sign("scalar", {"a": a}, {"c": graph.identity("c", scalar)})
    graph.sign("bytes", {"s": s}, {"s_bytes": s_out})
    graph.sign("bytes_and_more", {"a": a, "s": s}, {"a_bytes": a_out, "s_bytes": s_out})
    graph.sign("nothing", {}, {"c": graph.identity("c_too", scalar)})
    graph.write(path("two", "1"))

    # "examples": what the features say.
    graph = Graph()
    serialized = graph.placeholder("serialized", "DT_STRING", [-1])
    parsed = graph.parse_example(
        "parsed", serialized, {"label": ("DT_STRING", 2), "score": ("DT_FLOAT", 2)})
    label, score = (graph.identity(key, parsed[key]) for key in ("label", "score"))
    graph.sign("serving_default", {"inputs": serialized}, {"classes": label, "scores": score},
               "classify")
    graph.sign("scores", {"inputs": serialized}, {"scores": score}, "classify")
    graph.sign("classes", {"inputs": serialized}, {"classes": label}, "classify")
    number = graph.parse_example("number", serialized, {"x": ("DT_FLOAT", 1)})
    graph.sign("regress", {"inputs": serialized},
               {"outputs": graph.identity("outputs", number["x"])}, "regress")
    graph.write(path("examples", "1"))

    # "swap": two versions with labels.
    for version in (1, 2):
        graph = Graph()
        x = graph.placeholder("x", "DT_FLOAT", [-1])
        factor = graph.constant("factor", "DT_FLOAT", [], [version])
        graph.sign("serving_default", {"x": x}, {"y": graph.mul("y", x, factor)})
        graph.write(path("swap", str(version)))

    def config(name, more=""):
        return (f'config {{ name: "{name}" base_path: "{path(name)}" '
                f'model_platform: "tensorflow" {more} }}')

    labels = ("model_version_policy { all { } } "
              'version_labels { key: "stable" value: 1 } version_labels { key: "canary" value: 2 }')
    return write(os.path.join(TMP, "models.config"), "\n".join([
        "model_config_list {", config("f"), config("a b"), config("types"), config("two"),
        config("examples"), config("swap", labels), "}", ""]))


class RestGoldens(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.config = write_models()

    def check(self, server, case):
        headers, body = list(case.headers[0]), case.body(0)
        if case.gzip[0]:
            headers.append(("Content-Encoding", "gzip"))
            body = gzip.compress(body)
        reply = server.ask(case.method, case.path, body, headers)
        self.assertEqual(reply.status, case.code, reply.body)
        got = {name.lower(): value for name, value in reply.headers
               if name.lower() not in ("date", "content-length")}
        wanted = {name.lower(): value for name, value in case.headers[1]}
        if case.gzip[1]:
            wanted["content-encoding"] = "gzip"
        self.assertEqual(got, wanted)
        if case.any_body:
            return
        got = gzip.decompress(reply.body) if case.gzip[1] else reply.body
        self.assertEqual(got, case.body(1))

    def check_file(self, path):
        flags, cases = read_golden(path)
        names = [case.name for case in cases]
        self.assertEqual(len(names), len(set(names)), "each case has a name of its own")
        self.assertTrue(cases)
        server = Server("--model_config_file=" + self.config, "--trust_new_versions",
                        "--allow_version_labels_for_unavailable_models", *flags)
        try:
            for case in cases:
                with self.subTest(case.name, where=case.where):
                    self.assertRegex(case.source, "^[SH] ")
                    self.check(server, case)
        finally:
            server.stop()

    def test_there_are_goldens(self):
        self.assertGreater(len(GOLDENS), 5)

    @unittest.skipUnless(all(os.path.exists(os.path.join(REFERENCE, page))
                             for page in PAGES.values()), "MILLRACE_SHARED has no reference")
    def test_each_golden_names_its_source(self):
        pages = {}
        for page, name in PAGES.items():
            with open(os.path.join(REFERENCE, name), encoding="utf-8") as file:
                pages[page] = file.read()
        for case in (case for path in GOLDENS for case in read_golden(path)[1]):
            with self.subTest(case.name, where=case.where):
                self.assertEqual(mistakes_of_source(case.source, pages), [])
        # And would see what is not there.
        for source, mistake in (("", "must be"), ("S REST Writer", "must be"),
                                ("X REST, Writer", "must be"), ("S None, Writer", "no section"),
                                ("H C9, gzip", "no section"), ("S CORS, *", "no section"),
                                ("S gRPC, Writer", "has no 'Writer'"),
                                ("S REST, Writer; H C2, Columnar", "has no 'Columnar'"),
                                ("S REST, Writer: 5 spaces -- 4", "has no '5 spaces'")):
            with self.subTest(source):
                self.assertRegex(" ".join(mistakes_of_source(source, pages)), mistake)


def add_tests():
    """One test per file."""
    for path in GOLDENS:
        name = os.path.splitext(os.path.basename(path))[0]

        def test(self, path=path):
            self.check_file(path)

        setattr(RestGoldens, "test_" + name, test)


add_tests()

if __name__ == "__main__":
    unittest.main()
