#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the build's and the measurements' own programs promise."""

# covers: outside: macros of public headers begin with `MR_` or `MILLRACE_`
# covers: build: the arrows between folders hold; files include the project headers that they use
# covers: outside: no declaration of a public header hides the one after it from the library's symbols
# covers: build: code of a page is built or run by a test, and links of pages lead somewhere
# covers: clusters: the model of `docs/scaling.md` computes its formulas, names what bounds a job, and
#   finds the number of ps
# covers: build: a header of protobuf behind a public header is named with its chain, without a build

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True  # next to the sources
import check_includes
import compatibility
import count_compiles
import coverage
import declared_uses
import disk_cache
import header_reach
import house
import install
import markdown_code
import page_commands
import pairs
import pictures
import public_headers
import public_symbols
import scaling

TOOLS = os.path.dirname(os.path.abspath(__file__))
CACHE = "g++-12.2.0-0123456789abcdef"


class ProgramsTest(unittest.TestCase):
    """What every program here answers in the same way, as those in C++ (program_help_test)."""

    @classmethod
    def setUpClass(cls):
        cls.programs = sorted(name for name in os.listdir(TOOLS) if name.endswith((".py", ".sh"))
                              and not name.endswith("_test.py") and not name.startswith("program."))
        # A program that starts one of these has not looked at the flags first.
        cls.folder = tempfile.TemporaryDirectory()
        cls.calls = os.path.join(cls.folder.name, "calls")
        for name in ("bazel", "apt-get", "dpkg-query", "clang-format-16", "git", "pkg-config"):
            path = os.path.join(cls.folder.name, name)
            with open(path, "w", encoding="utf-8") as out:
                out.write(f"#!/bin/sh\necho {name} >> '{cls.calls}'\nexit 99\n")
            os.chmod(path, 0o755)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_program(self, name, *arguments):
        environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1",
                           PATH=f"{self.folder.name}:{os.environ['PATH']}")
        done = subprocess.run([os.path.join(TOOLS, name), *arguments], env=environment, text=True,
                              capture_output=True, check=False, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    def test_help_and_version_exit_with_zero_and_do_nothing_else(self):
        self.assertGreater(len(self.programs), 15)
        for name in self.programs:
            for flag in ("--help", "-h"):
                code, out, err = self.run_program(name, flag)
                self.assertEqual((code, err), (0, ""), name)
                self.assertIn(name, out)
            code, out, err = self.run_program(name, "--version")
            self.assertEqual((code, err), (0, ""), name)
            self.assertRegex(out, rf"^{name} \(Millrace\) \d+\.\d+\.\d+\n$")
        self.assertFalse(os.path.exists(self.calls))

    def test_an_unknown_flag_is_named_in_one_line_and_exits_with_two(self):
        for name in self.programs:
            if name in ("test.sh", "test_busy.sh"):
                continue  # its flags are Bazel's
            code, out, err = self.run_program(name, "--bogus_flag=1")
            self.assertEqual((code, out), (2, ""), name)
            lines = [line for line in err.splitlines() if "--bogus_flag=1" in line]
            self.assertEqual(len(lines), 1, err)
            self.assertTrue(lines[0].startswith(f"{name}: error: "), err)
        self.assertFalse(os.path.exists(self.calls))

    def test_wrong_arguments_are_named(self):
        for arguments, text in [
                (("quickstart.sh", "--data"), "argument --data: expected one argument"),
                (("quickstart.sh", "--data=/no/such"), "argument --data: must be a directory, got"),
                (("quickstart.sh", f"--data={TOOLS}"), "--data: must have adult.data.csv"),
                (("quickstart.sh", "--mnist", "--max_steps=0"), "--max_steps: must be a number >= 1"),
                (("quickstart.sh", "--max_steps=-3"), "--max_steps: must be a number >= 1, got '-3'"),
                (("quickstart.sh", f"--dir={TOOLS}"), "argument --dir: must not exist, got"),
                (("completion.py", "launch"), "the following arguments are required: --bin"),
                (("release.sh", "--out"), "argument --out: expected one argument"),
                (("release.sh", "x"), "unrecognized arguments: x"),
                (("install.sh",), "the following arguments are required: --prefix"),
                (("install.sh", "--prefix"), "argument --prefix: expected one argument"),
                (("install.sh", "--prefix=a", "b"), "unrecognized arguments: b"),
                (("install_deps.sh", "--dev", "x"), "unrecognized arguments"),
                (("presubmit.sh", "--fix", "x"), "unrecognized arguments"),
                (("check_format.sh", "--fix", "x"), "unrecognized arguments"),
                (("test_busy.sh", "--loops", "none"), "argument --loops: must be a number"),
                (("check_alone.sh", "--since"), "argument --since: expected one argument"),
                (("header_reach.py", "--path", "a.cc"), "argument --path: expected 2 arguments"),
                (("house.py", "--rev"), "argument --rev: expected one argument"),
                (("pairs.py", "--", "a"), "two commands must be given, each after a --"),
                (("pairs.py", "--pairs=0", "--", "a", "--", "b"), "--pairs: must be at least 1"),
                (("disk_cache.py", "path", "7"), "unrecognized arguments: 7"),
                (("disk_cache.py", "keep"), "invalid choice: 'keep'"),
                (("scaling.py", "--workers=0"),
                 "argument --workers: must be a whole number from 1 to 10,000, got '0'"),
                (("scaling.py", "--ps=1.5"), "must be a whole number from 1 to 1,000, got '1.5'"),
                (("scaling.py", "--gbits=nan"), "must be a number from 0.001 to 1e+06, got 'nan'"),
                (("scaling.py", "--batch=inf"), "must be a whole number from 1 to 1e+09, got 'inf'"),
                (("scaling.py", "--largest=1.1"), "must be a number from 0 to 1, got '1.1'"),
                (("scaling.py", "--step_us=fast"), "got 'fast'"),
                (("scaling.py", "--ps=11", "--max_ps=10"),
                 "argument --ps: must be at most --max_ps, 10, got 11"),
                (("scaling.py", "census"), "unrecognized arguments: census"),
                (("pictures.py", "portrait", "x"), "invalid choice: 'portrait'"),
                (("check_includes.py", "a.cc"), "unrecognized arguments: a.cc")]:
            code, out, err = self.run_program(*arguments)
            self.assertEqual((code, out), (2, ""), arguments)
            self.assertIn(text, err.splitlines()[-1])
        self.assertFalse(os.path.exists(self.calls))


class HeaderReachTest(unittest.TestCase):

    INCLUDES = {"a.cc": ["a.h", "absl/x.h"], "b.cc": ["b.h"], "a.h": ["b.h"], "b.h": ["c.h"],
                "c.h": []}

    def test_counts_sources_that_see_a_header_through_others(self):
        self.assertEqual(header_reach.reach(self.INCLUDES), {"a.h": 1, "b.h": 2, "c.h": 2})

    def test_a_chain_leads_from_the_source_to_the_header(self):
        self.assertEqual(header_reach.chain(self.INCLUDES, "a.cc", "c.h"),
                         ["a.cc", "a.h", "b.h", "c.h"])
        self.assertEqual(header_reach.chain(self.INCLUDES, "b.cc", "a.h"), [])


class HouseTest(unittest.TestCase):

    LONG = "int Long(\n    int a) {\n" + "  a++;\n" * 100 + "  return a;\n}\n"

    def test_counts_by_folder_and_leaves_tests_out(self):
        text = ("// What it is.\nStatus Run() {\n  MR_DCHECK(a) << \"b\";\n  if (n.op() == \"Const\") {\n"
                "  }\n}\n")
        counts = house.count({"run/a.cc": text, "run/a_test.cc": text, "ops/a.cc": text},
                             {"run/README.md": "three words here"})
        self.assertEqual(sorted(counts), ["ops", "run"])
        run = counts["run"]
        self.assertEqual((run.code, run.comments, run.dchecks, run.op_names, run.readme, run.long),
                         (5, 1, 1, 1, 3, []))
        self.assertEqual(counts["ops"].op_names, 0)  # kinds are known there

    def test_a_function_is_as_long_as_from_its_head_to_its_brace(self):
        self.assertEqual(house.functions(self.LONG), [(1, 104, "Long")])
        counts = house.count({"run/a.cc": "class A {\n};\n" + self.LONG}, {})
        self.assertEqual(counts["run"].long, [(104, "run/a.cc", 3, "Long")])

    def test_a_number_above_what_is_there_is_named(self):
        most = house.MOST["train"][0]
        text = 'bool a = n.op() == "Const";\n' * (most + 1)
        self.assertEqual(list(house.excesses(house.count({"train/a.cc": text}, {}))),
                         [f"house: train/ must have at most {most} names of ops, got {most + 1}"])
        self.assertEqual(list(house.excesses(house.count({"train/a.cc": text[len(text) // (most + 1):]},
                                                         {}))), [])

    def test_a_readme_of_a_folder_is_at_most_a_page(self):
        page = "word " * house.README_WORDS
        readmes = {"README.md": page + "more", "run/README.md": page, "ops/math/README.md": page + "more"}
        self.assertEqual(list(house.long_readmes(readmes)),
                         ["house: ops/math/README.md must have at most 500 words, got 501"])

    def test_code_of_a_page_has_a_test(self):
        block = "```{}\nint a;\n```\n"
        tests = {"docs/BUILD.bazel": 'markdown_code(page = "a.md")\nx(page = "//layers:README.md")\n',
                 "tests/outside/a_test.py": 'code_of("b.md", folder)\n', "BUILD.bazel": 'page = "c.md"'}
        self.assertEqual(house.pages_of_tests(tests),
                         {"docs/a.md", "docs/b.md", "layers/README.md", "c.md"})
        pages = {"docs/a.md": block.format("cpp a.cc"), "docs/b.md": block.format("sh b.sh"),
                 "layers/README.md": block.format(""), "docs/d.md": block.format("c d.c"),
                 "docs/e.md": block.format("cpp"), "docs/f.md": block.format("sh"), "c.md": "text"}
        self.assertEqual(list(house.untested_code(pages, tests, {"docs/f.md": "", "docs/a.md": ""})), [
            "house: docs/a.md must have code that is not run, got none; NOT_RUN names it",
            "house: docs/d.md must be built or run by a test, got code that no test has",
            "house: docs/e.md: a block of code must name its file, which a test builds or runs, got none "
            "before 'int a;'"])

    def test_links_lead_to_files_and_headings(self):
        page = ("# A page\n## What `it` does, and how\n[a](a.md) [b](../b/c.h) [f](../b) [w](https://x.y)\n"
                "[h](#what-it-does-and-how) [g](a.md#none) [n](#none) [m](../none.md)\n"
                "```cpp\n[x](int)\n```\n")
        self.assertEqual(
            list(house.dead_links({"docs/p.md": page, "docs/a.md": "# Another\n"},
                                  {"docs/p.md", "docs/a.md", "b/c.h"})),
            ["house: docs/p.md: a link must lead to a heading of 'docs/a.md', got '#none'",
             "house: docs/p.md: a link must lead to a heading of 'docs/p.md', got '#none'",
             "house: docs/p.md: a link must lead to a file, got '../none.md'"])

    def test_a_friend_is_one_that_is_not_nested(self):
        self.assertEqual(house.friends("class A {\n  friend class B;\n  friend class C;\n"
                                       "  class C {\n  };\n};\n"), ["B"])
        # A class of the same file is nested only where it is indented.
        self.assertEqual(house.friends("\n\nclass B;\nclass A {\n  friend class B;\n};\n\nclass B {\n};\n"),
                         ["B"])
        self.assertEqual(house.friends("class A final : public B {\n  class C {\n    friend class A;\n"
                                       "  };\n};\n"), [])


class CoverageTest(unittest.TestCase):

    @staticmethod
    def said(*lines, mark="//"):
        """The claims of a test file with these lines; `C` stands for the begin of a claim."""
        return coverage.claims("a/b_test.cc", "\n".join(line.replace("C ", f"{mark} covers: ", 1)
                                                        for line in lines))

    def test_a_claim_belongs_to_the_test_below_it_or_to_the_file(self):
        found = self.said("C steps: a", "", "C events: b", "// Why.", "TEST_F(Suite, Holds) {", "}",
                          "C article 3-4, 3-5: c", "TEST(Suite,", "     HoldsToo) {")
        self.assertEqual([(c.section, c.row, c.promise, c.where[1]) for c in found],
                         [("steps", "", "a", ""), ("events", "", "b", "Holds"),
                          ("article 3", "3-4, 3-5", "c", "HoldsToo")])

    def test_a_long_promise_goes_on_in_indented_lines(self):
        for mark in ("//", "#"):
            found = self.said("C steps: a promise", f"{mark}   of two lines", f"{mark} no more of it",
                              mark=mark)
            self.assertEqual([c.promise for c in found], ["a promise of two lines"])

    def test_a_claim_without_section_or_promise_is_an_error(self):
        for line, text in (("C a promise", "a/b_test.cc:1: a claim must be `<section>: <promise>`"),
                           ("C steps: ", "a claim must be"),
                           ("C stairs: a", "the section must be one of values, graphs,"),
                           ("C article 3: a", "the section must be one of"),
                           ("C article 9-1: a", "got 'article 9-1'"),
                           ("C scenario: a", "got 'scenario'")):
            with self.assertRaisesRegex(ValueError, re.escape(text)):
                self.said(line)

    def test_the_page_has_one_line_per_promise_with_all_its_tests(self):
        found = self.said("C steps: a", "C article 0-10: later", "C article 0-9: sooner")
        found += coverage.claims("c/d_test.py", "# covers: " + "steps: a\ndef test_it(self):")
        text = coverage.page(found)
        self.assertIn("\n| promise | proven by |\n|---|---|\n| a | [a/b_test.cc](../../a/b_test.cc), "
                      "[c/d_test.py](../../c/d_test.py) test_it |\n", text)
        self.assertLess(text.index("| 0-9 | sooner |"), text.index("| 0-10 | later |"))
        self.assertNotIn("## Graphs", text)  # nothing is said of them


class MarkdownCodeTest(unittest.TestCase):

    def test_blocks_of_one_file_are_put_together_and_others_left(self):
        page = "text\n```cpp a.cc\nint a;\n```\n```\nls\n```\n```cpp b.h\nint b;\n```\n```cpp a.cc\nint c;\n```\n"
        self.assertEqual(markdown_code.files_of(page), {"a.cc": "int a;\nint c;\n", "b.h": "int b;\n"})

    def test_a_block_without_an_end_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "must be closed"):
            markdown_code.files_of("```cpp a.cc\nint a;\n")


class InstallTest(unittest.TestCase):

    def test_pages_and_examples_are_installed_and_their_links_lead_there(self):
        files = {
            "core/version.h": '#define MILLRACE_VERSION "1.2.3"\n',
            "README.md": "![p](docs/pictures/a.svg) [index](docs/README.md)\n",
            "docs/README.md": "[a\nb](../README.md#top) [h](../core/c.h) [own](../core/own.h) "
                              "[e](../examples/outside/x.cc)\n```cpp\n[x](int)\n```\n"
                              "[gone](../core/README.md) [api](../api/c_api.h)\n",
            "docs/tutorial.md": "```cpp ask.cc\nint a;\n```\n```sh tutorial.sh\nls\n```\n",
            "docs/pictures/a.svg": "<svg/>", "docs/pictures/unused.svg": "<svg/>", "docs/BUILD.bazel": "",
            "examples/outside/README.md": "[d](../../docs/tutorial.md)\n", "examples/outside/x.cc": "int x;\n"}
        with tempfile.TemporaryDirectory() as folder:
            prefix = os.path.join(folder, "prefix")
            for name, text in [*((f"from/{name}", text) for name, text in files.items()),
                               ("prefix/include/millrace/core/c.h", ""), ("prefix/include/millrace/c_api.h", ""),
                               ("prefix/share/millrace/docs/old.md", "of the last release")]:
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                pathlib.Path(path).write_text(text, encoding="utf-8")
            install.Installer([os.path.join(folder, "from")], prefix).pages()
            share = pathlib.Path(prefix, "share", "millrace")
            self.assertEqual(sorted(str(path.relative_to(share)) for path in share.rglob("*.*")), [
                "README.md", "docs/README.md", "docs/pictures/a.svg", "docs/tutorial.md", "examples/README.md",
                "examples/ask.cc", "examples/x.cc"])
            self.assertEqual((share / "docs" / "README.md").read_text(encoding="utf-8"),
                             "[a\nb](../README.md#top) [h](../../../include/millrace/core/c.h) own "
                             "[e](../examples/x.cc)\n```cpp\n[x](int)\n```\n"
                             "gone [api](../../../include/millrace/c_api.h)\n")
            self.assertEqual((share / "README.md").read_text(encoding="utf-8"), files["README.md"])
            self.assertEqual((share / "examples" / "README.md").read_text(encoding="utf-8"),
                             "[d](../docs/tutorial.md)\n")


class PageCommandsTest(unittest.TestCase):

    PAGE = ("# A page\n\n```txt a.txt\nhello\n```\n\n```sh c.sh\ncat a.txt\nX=1\n```\nprints\n"
            "```text\nhello\n```\n```sh\nfalse\n```\n```sh c.sh\necho $X \"$(basename \"$PWD\")\"\n```\n")

    @staticmethod
    def checked(page):
        with tempfile.TemporaryDirectory() as folder:
            return page_commands.check(page, pathlib.Path(folder), [])

    def test_files_are_there_and_blocks_share_one_shell(self):
        self.assertEqual(page_commands.commands_of(self.PAGE),
                         [["cat a.txt\nX=1", ["hello"]], ['echo $X "$(basename "$PWD")"', None]])
        self.assertEqual(self.checked(self.PAGE + "```text\n1 work\n```\n"), "")

    def test_other_output_is_shown_next_to_what_the_page_says(self):
        said = self.checked(self.PAGE + "```text\n2 work\n```\n")
        self.assertIn("print:\n1 work\n\nbut the page shows:\n2 work\n", said)
        self.assertNotIn("cat a.txt", said)

    def test_a_command_that_fails_is_named_with_its_output(self):
        said = self.checked(self.PAGE.replace("X=1", "exit 3"))
        self.assertIn("commands:\ncat a.txt\nexit 3\n\nprint:\nhello\nand fail with 3", said)

    def test_what_differs_between_machines_may_differ(self):
        for shown, printed in [("auc  0.75", "auc 0.7712"), ("run/...", "run/1700000001"),
                               ("  [0] [...] [0.70, 0.30]", "[0] [-0.92] [0.7166, 0.2834]"),
                               ("loss 20.0", "loss 21.9"), ("steps 5..2000", "steps 5..2000")]:
            self.assertTrue(page_commands.is_line(shown, printed), shown)
        for shown, printed in [("auc 0.75", "auc 0.64"), ("loss 20.0", "loss 22.1"), ("7", "8"),
                               ("auc 0.75", "auc"), ("a.c", "abc"), ("step 2000", "step 2001")]:
            self.assertFalse(page_commands.is_line(shown, printed), shown)

    def test_a_line_of_dots_stands_for_any_lines(self):
        for shown, printed, wanted in [(["a", "...", "d"], ["a", "b", "c", "d"], True),
                                       (["...", "a"], ["a"], True), (["a", "..."], ["a"], True),
                                       (["a"], ["a", "b"], False), (["a", "...", "d"], ["a"], False),
                                       ([], [], True), ([], ["a"], False)]:
            self.assertEqual(page_commands.is_output(shown, printed), wanted, shown)


class PublicHeadersTest(unittest.TestCase):

    def rewritten(self, text, name="graph/a.h"):
        return public_headers.rewritten(name, text, {"graph/a.h", "api/b.h", "core/c.h"})

    def test_includes_of_ours_get_the_prefix_and_others_stay(self):
        text, included = self.rewritten('#include <string>\n#include "absl/types/span.h"\n'
                                        '#include "core/c.h"  // export\n# include "api/b.h"\n')
        self.assertEqual(text, '#include <string>\n#include "absl/types/span.h"\n'
                               '#include "millrace/core/c.h"  // export\n# include "millrace/b.h"\n')
        self.assertEqual(included, ["core/c.h", "api/b.h"])

    def test_a_header_of_ours_that_nobody_passes_on_is_an_error(self):
        with self.assertRaisesRegex(ValueError, 'graph/a.h: .* got "core/none.h"'):
            self.rewritten('#include "core/none.h"\n')

    def test_macros_must_have_the_prefix(self):
        self.rewritten("#define MR_X 1\n#define MILLRACE_Y(a) a\n")
        with self.assertRaisesRegex(ValueError, "got CHECK_X"):
            self.rewritten("#define CHECK_X(a) a\n")
        self.rewritten("#define PROTOBUF_X\n", "proto/x.pb.h")

    def test_roots_bring_what_they_include(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = {}
            for name, text in [("api/a.h", '#include "core/c.h"\n'), ("core/c.h", "int c;\n"),
                               ("core/d.h", "int d;\n")]:
                paths[name] = os.path.join(folder, name.replace("/", "_"))
                with open(paths[name], "w", encoding="utf-8") as out:
                    out.write(text)
            self.assertEqual(public_headers.closure(["api/a.h"], paths), {
                "millrace/a.h": '#include "millrace/core/c.h"\n', "millrace/core/c.h": "int c;\n"})
            with self.assertRaisesRegex(ValueError, "'core/e.h' must be"):
                public_headers.closure(["core/e.h"], paths)


class PublicSymbolsTest(unittest.TestCase):
    HEADER = """
namespace tensorflow { class GraphDef; }
namespace millrace {
class Hidden;  // somewhere else
class Scope final : public Base {
 public:
  explicit Scope(int x);
  Output Get(absl::string_view name) const;
  struct Nested { void Go(); };
 private:
  struct Impl;
};
inline int Twice(int x) { return 2 * x; }
[[noreturn]] void EndProgram(const Status& status);
StatusOr<std::map<std::string, int>> Counts(std::function<Status(int)> f = nullptr);
template <typename T>
StatusOr<T> GetAttr(const NodeAttrs& attrs);
Output operator+(const Output& a, const Output& b);
extern const int kTable[];
inline constexpr int kInline[] = {1, 2};
namespace detail { void Deep(int); }
}  // namespace millrace
extern "C" {
MILLRACE_EXPORT int32_t millrace_version(void);
}
"""

    def setUp(self):
        self.declared = public_symbols.Declarations()
        self.declared.add(self.HEADER)

    def test_finds_what_a_header_declares(self):
        self.assertEqual(self.declared.types, {"Scope"})
        self.assertEqual(self.declared.functions,
                         {"EndProgram", "Counts", "GetAttr", "operator", "Deep"})
        self.assertEqual(self.declared.c_functions, {"millrace_version"})
        self.assertEqual(self.declared.variables, {"kTable"})

    def test_nothing_swallows_the_declaration_after_it(self):
        for before in ["inline Output Sum(ScopeAt at, const SumAttrs& attrs = {}) { return {}; }",
                       "void Sum(SumAttrs a = {1, {2}}, int i = 3);",
                       "inline int Sum(std::function<int()> f = [] { return 1; }) { return f(); }",
                       "template <typename T = int, bool kIs = (1 > 2)> T Sum(T a) { return a; }",
                       "template <typename T>\n  requires(sizeof(T) == 4)\nT Sum(T a) { return a; }",
                       "inline bool operator==(const A& a, const A& b) { return true; }",
                       "inline bool operator <= (const A& a, const A& b) { return true; }",
                       "inline constexpr Size kSize = {1, 2};", "inline constexpr Size kSize{1, 2};",
                       "inline const auto kSize = [] { return Size(1); }();",
                       "using F = decltype([](int a) { return a; });",
                       "static_assert(Size{1}.a == 1);",
                       "struct SumAttrs { int a = 1; Size size = {}; };",
                       "struct alignas(64) Aligned { int a; };",
                       "class Derived : public Base<decltype(F())> { int a = 1; };",
                       "enum class Kind : int { kA = 1 };",
                       "inline Counter::Counter(int a) : a_{a}, b_{} { Go(); }",
                       "MR_ELEMENT_TYPE(float, DT_FLOAT)\nMR_ELEMENT_TYPE(std::pair<A, B(C)>, DT_HALF)",
                       "inline char Quote() { return '{'; } inline char Other() { return '\\''; }",
                       'inline const char* Target() { return "grpc://{"; }  // "}',
                       'inline const char* Raw() { return R"x({"(}))x"; }',
                       "inline int Large() { return 1'000'000; }"]:
            declared = public_symbols.Declarations()
            declared.add(f"namespace millrace {{\n{before}\n"
                         "Operation Group(ScopeAt at, const GroupAttrs& attrs = {});\n"
                         "class After { int a; };\nextern const int kLast;\n}  // namespace\n")
            self.assertEqual(declared.functions - {"Sum"}, {"Group"}, before)
            self.assertIn("After", declared.types, before)
            self.assertEqual(declared.variables, {"kLast"}, before)

    def test_exports_that_and_nothing_else(self):
        for symbol, kind, is_public in [
                ("_ZN8millrace5ScopeC1Ei", "T", True),
                ("_ZNK8millrace5Scope3GetEN4absl7debian311string_viewE", "T", True),
                ("_ZNK8millrace5Scope3GetEv", "W", False),  # inline: every program has its own
                ("_ZNK8millrace5Scope6SecretEv", "T", False),
                ("_ZN8millrace5Scope6Nested2GoEv", "T", True),
                ("_ZN8millrace5Scope4Impl3GetEv", "T", False),
                ("_ZTVN8millrace5ScopeE", "V", True),
                ("_ZTVN8millrace6HiddenE", "V", False),
                ("_ZTIN10tensorflow8GraphDefE", "V", True),
                ("_ZTIN8millrace6HiddenE", "D", False),
                ("_ZThn16_N8millrace5Scope3GetEv", "T", True),
                ("_ZN8millrace6Hidden3GetEv", "T", False),
                ("_ZN8millrace10EndProgramERKN4absl7debian36StatusE", "T", True),
                ("_ZN8millrace8InternalEi", "T", False),
                ("_ZN8millrace5TwiceEi", "W", False),
                ("_ZN8millrace7GetAttrIlEEN4absl8StatusOrIT_EERKNS_9NodeAttrsE", "W", True),
                ("_ZN8millraceplERKNS_6OutputES2_", "T", True),
                ("_ZN8millrace6kTableE", "R", True),
                ("_ZN8millrace6detail4DeepEi", "T", True),
                ("_ZN8millrace12_GLOBAL__N_15Scope3GetEv", "T", False),
                ("_ZN10tensorflow8GraphDefC1Ev", "T", True),
                ("_ZN10tensorflow8GraphDef4sizeEv", "W", False),
                ("_ZN6google8protobuf5Arena18CreateMaybeMessageIN10tensorflow8GraphDefEJEEEPT_PS1_DpOT0_",
                 "T", True),
                ("_ZN6google8protobuf7Message3GetEv", "T", False),
                ("_ZNSt6vectorIN8millrace5ScopeEE9push_backEv", "W", False),
                ("millrace_version", "T", True),
                ("millrace_internal", "T", False),
                ("main", "T", False)]:
            self.assertEqual(public_symbols.is_public(symbol, kind, self.declared), is_public, symbol)

    def test_the_version_is_read_from_the_header(self):
        self.assertEqual(public_symbols.version_of('x\n#define MILLRACE_VERSION "1.22.3"\n'), "1.22.3")


class DeclaredUsesTest(unittest.TestCase):

    def uses(self, text):
        """The lines that use what a header declares."""
        uses = declared_uses.Uses()
        uses.add(text)
        program, count = uses.program(["a.h"])
        lines = [line.strip() for line in program.splitlines() if line.startswith("  Use")]
        self.assertEqual(len(lines), count)
        return lines

    def members(self, text):
        return self.uses(f"namespace millrace {{\nclass A : public Base {{\n public:\n{text}\n}};\n}}\n")

    def test_takes_the_address_of_what_is_declared_and_not_defined(self):
        for text, lines in [
                ("int F(int a = 3);", ["Use(&::millrace::F);"]),
                ("Operation Group(ScopeAt at, const GroupAttrs& attrs = {});", ["Use(&::millrace::Group);"]),
                ("inline int F(A a = {}) { return 1; } int G(std::vector<int> v = {1, 2}, A a = B<C, D>{});",
                 ["Use(&::millrace::G);"]),
                ("void F(int a = 1 << 2); void F(const char*);",
                 ["Use(static_cast<void (*)(int a)>(&::millrace::F));",
                  "Use(static_cast<void (*)(const char *)>(&::millrace::F));"]),
                ("void F(int); template <typename T> void F(T);",
                 ["Use(static_cast<void (*)(int)>(&::millrace::F));"]),
                ("Output operator+(const Output& a, const Output& b);",
                 ["Use(static_cast<Output (*)(const Output & a, const Output & b)>(&::millrace::operator+));"]),
                ("[[noreturn]] void F(void) noexcept;", ["Use(&::millrace::F);"]),
                ("auto F(int a) -> std::vector<int>; auto F() -> int;",
                 ["Use(static_cast<std :: vector < int > (*)(int a)>(&::millrace::F));",
                  "Use(static_cast<int (*)()>(&::millrace::F));"]),
                ("extern const int kTable[]; inline constexpr int kInline[] = {1};",
                 ["Use(&::millrace::kTable);"]),
                ("namespace a::b { void F(); }", ["Use(&::millrace::a::b::F);"]),
                ("template <typename T = int> T F(); void G() = delete; struct A; enum class E { kF };",
                 [])]:
            self.assertEqual(self.uses(f"namespace millrace {{ {text} }}"), lines, text)
        self.assertEqual(self.uses('extern "C" {\nMILLRACE_EXPORT int32_t millrace_version(void);\n}\n'),
                         ["Use(&::millrace_version);"])

    def test_uses_members_that_a_program_may_use(self):
        for text, lines in [
                ("void F() const; void G() { H(); } int a = 1;", ["Use(&::millrace::A::F);"]),
                ("int F() const; void F(int x);",
                 ["Use(static_cast<int (::millrace::A::*)() const>(&::millrace::A::F));",
                  "Use(static_cast<void (::millrace::A::*)(int x)>(&::millrace::A::F));"]),
                ("static StatusOr<A> F(int x); static StatusOr<A> F();",
                 ["Use(static_cast<StatusOr < A > (*)(int x)>(&::millrace::A::F));",
                  "Use(static_cast<StatusOr < A > (*)()>(&::millrace::A::F));"]),
                ("using Base::F; void F(int x) &&;",
                 ["Use(static_cast<void (::millrace::A::*)(int x) &&>(&::millrace::A::F));"]),
                ("explicit A(int x, B b = {}); A(const A&) = default; ~A();",
                 ["UseConstructor<::millrace::A>(static_cast<void (*)(int x, B b)>(nullptr));",
                  "UseDestructor<::millrace::A>();"]),
                ("A& operator=(A&& other) noexcept; explicit operator bool() const;",
                 ["Use(static_cast<A & (::millrace::A::*)(A && other)>(&::millrace::A::operator=));",
                  "Use(static_cast<bool (::millrace::A::*)() const>(&::millrace::A::operator bool));"]),
                ("virtual void F() = 0; virtual ~A() = default;", []),
                ("static const int kCount; static constexpr int kOther = 1; int kept;",
                 ["Use(&::millrace::A::kCount);"]),
                ("struct Part { void Go(); }; void F(Part p); void F(std::vector<Part> p);",
                 ["Use(&::millrace::A::Part::Go);",
                  "Use(static_cast<void (::millrace::A::*)(::millrace::A::Part p)>(&::millrace::A::F));",
                  "Use(static_cast<void (::millrace::A::*)(std :: vector < ::millrace::A::Part > p)>"
                  "(&::millrace::A::F));"]),
                ("private: struct Impl; A(Impl* impl); void F(); struct B { void G(); }; protected: void H();",
                 [])]:
            self.assertEqual(self.members(text), lines, text)

    def test_calls_a_virtual_method_by_its_class(self):
        for text in ["virtual Status F(int x);", "Status F(int x) override;", "Status F(int x) final;"]:
            line, = self.members(text)
            self.assertTrue(line.startswith("UseVirtual(&::millrace::A::F, "), line)
            self.assertIn("self->::millrace::A::F(", line)

    def test_a_bracket_that_is_not_closed_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "must be closed"):
            self.uses("namespace millrace { void F(std::vector<int a);")


class PairsTest(unittest.TestCase):

    def test_reads_rates_of_google_benchmark_and_of_json_lines(self):
        benchmark = """{"benchmarks": [
            {"name": "Chain/1/real_time", "real_time": 2.0, "time_unit": "us", "items_per_second": 7.0},
            {"name": "Step", "real_time": 500.0, "time_unit": "ns", "steps": 4.0},
            {"name": "Step_mean", "run_type": "aggregate", "real_time": 1.0, "time_unit": "ns"}]}"""
        self.assertEqual(pairs.figures_of("noise\n" + benchmark), {"Chain/1": 7.0, "Chain/1:items_per_second": 7.0, "Step": 2e6,
                          "Step:steps": 4.0})
        lines = ('x\n{"variant": "tbb chain", "threads": 2, "value": 3.5}\n'
                 '{"bench": "build", "variant": "tbb chain", "threads": 2, "value": 1.5}\n')
        self.assertEqual(pairs.figures_of(lines), {"tbb chain/2": 3.5, "build: tbb chain/2": 1.5})

    def test_a_slow_pair_does_not_hide_in_the_medians(self):
        runs = [({"x": 10.0}, {"y": 20.0}), ({"x": 20.0}, {"y": 40.0}), ({"x": 10.0}, {"y": 9.0})]
        self.assertEqual(pairs.compare(runs, [("x", "y")]), [("x -> y", 10.0, 20.0, 2.0, 0.9)])

    def test_a_counter_that_is_zero_is_left_out(self):
        runs = [({"x": 10.0, "wakeups": 0.0}, {"x": 20.0, "wakeups": 1.0})]
        self.assertEqual(pairs.compare(runs, [("x", "x"), ("wakeups", "wakeups")]), [("x", 10.0, 20.0, 2.0, 2.0)])

    def test_two_commands_stand_behind_dashes(self):
        self.assertEqual(pairs.split_commands(["--pairs", "2", "--", "a", "1", "--", "b"]),
                         (["--pairs", "2"], ["a", "1"], ["b"]))


class ScalingTest(unittest.TestCase):
    """Expected values are worked out by hand from the formulas of docs/scaling.md."""

    # A step of 1,000 us, a tenth of it on the ps; 1 MB each way; 1,100 us of CPU for tensors (100)
    # and bytes (1,000), 400 for the messages with each ps, half of all at each end, half waited for.
    JOB = {"batch": 10, "step_us": 900, "example_us": 10, "ps_part": 0.1, "variable_bytes": 999000,
           "example_bytes": 100, "tensors": 10, "tensor_us": 10, "byte_ns": 0.5, "messages": 4,
           "message_us": 100, "trips": 4, "latency_us": 50, "gbits": 8, "cores": 2, "waited": 0.5}

    @staticmethod
    def job(**flags):
        values = {name: flag.default for name, flag in scaling.FLAGS.items()}
        unknown = flags.keys() - values.keys()
        assert not unknown, unknown
        return argparse.Namespace(**{**values, **flags})

    def expect_step(self, step, cpu, compute, messages, on_ps, network, shared):
        got = (step.cpu_us, step.compute_us, step.messages_us, step.ps_us, step.network_us)
        for value, wanted in zip(got, (cpu, compute, messages, on_ps, network)):
            self.assertAlmostEqual(value, wanted)
        self.assertEqual(step.shared_us.keys(), shared.keys())
        for name, wanted in shared.items():
            self.assertAlmostEqual(step.shared_us[name], wanted)
        self.assertAlmostEqual(step.time_us, compute + messages + on_ps + network)

    def test_a_step_on_hosts_of_its_own(self):
        job = self.job(**self.JOB)
        # One ps has all: 100 us of compute, and 750 of its 1,500 for what travels.
        self.expect_step(scaling.step_of(job, 1), 2500, 900, 375, 475, 2200,
                         {"ps": 425, "network out": 1000, "network in": 1000})
        # Each of two has its own messages and half of the rest: 50 + (200 + 275).
        self.expect_step(scaling.step_of(job, 2), 2900, 900, 475, 287.5, 2200,
                         {"ps": 262.5, "network out": 500, "network in": 500})
        # Ten, of which one has four tenths: 40 + (200 + 220).
        job = self.job(**self.JOB, largest=0.4)
        self.expect_step(scaling.step_of(job, 10), 6100, 900, 1275, 250, 2200,
                         {"ps": 230, "network out": 400, "network in": 400})

    def test_a_step_whose_tasks_share_a_host(self):
        job = self.job(**self.JOB, shared_cores=2, threads=3)
        # 3,000 us of CPU compute, 1,500 and 1,900 travel; nothing goes over a network.
        self.expect_step(scaling.step_of(job, 1), 4500, 900, 375, 475, 0, {"host": 2250})
        self.expect_step(scaling.step_of(job, 2), 4900, 900, 475, 575, 0, {"host": 2450})

    def test_workers_wait_for_each_other(self):
        def step(compute_us, **shared_us):
            return scaling.Step(cpu_us=0, compute_us=compute_us, messages_us=0, ps_us=0,
                                network_us=0, shared_us=shared_us)
        # 1 ms alone, 1 ms shared: 1/2, 2/2.5, 3/3.2 steps in a ms.
        for workers, rate in ((1, 500), (2, 800), (3, 937.5)):
            self.assertAlmostEqual(scaling.steps_per_second(workers, step(2000, ps=1000)), rate)
        # Nothing alone, two equal stations: n / (n + 1) of what one can do.
        for workers, rate in ((1, 500), (2, 1000 * 2 / 3), (9, 900)):
            self.assertAlmostEqual(
                scaling.steps_per_second(workers, step(2000, ps=1000, network=1000)), rate)
        # Many workers reach the bound, and never pass it; without anything shared none waits.
        self.assertAlmostEqual(scaling.steps_per_second(10000, step(2000, ps=1000)), 1000, delta=0.01)
        self.assertLessEqual(scaling.steps_per_second(10000, step(2000, ps=1000)), 1000)
        self.assertAlmostEqual(scaling.steps_per_second(100, step(2000, ps=0)), 50000)

    def test_what_bounds_a_job_is_named(self):
        # Of two ps: a worker alone takes 3,862.5 us, the ps 262.5, each way of its network 500.
        for flags, ps, name, rate in [
                ({"workers": 1}, 2, "workers", 1e6 / 3862.5),
                ({"workers": 7}, 2, "workers", 7e6 / 3862.5),
                ({"workers": 8}, 2, "network", 2000),
                ({"workers": 100, "gbits": 80}, 2, "ps", 1e6 / 262.5),
                ({"workers": 3, "shared_cores": 2, "threads": 3}, 1, "host", 1e6 / 2250)]:
            job = self.job(**{**self.JOB, **flags})
            limits = scaling.bounds(job.workers, scaling.step_of(job, ps))
            self.assertEqual(min(limits, key=limits.get), name)
            self.assertAlmostEqual(limits[name], rate)
            row = scaling.row_of(job, ps)
            self.assertEqual(row["bound_by"], name)
            self.assertLess(row["steps_per_second"], rate * 1.000001)
            self.assertAlmostEqual(row["examples_per_second"], 10 * row["steps_per_second"])
        self.assertAlmostEqual(scaling.row_of(self.job(**self.JOB), 2)["busy"], 262.5 / 3862.5)

    def test_what_costs_nothing_bounds_nothing(self):
        job = self.job(variable_bytes=0, example_bytes=0, message_us=0, tensors=0, ps_part=0,
                       latency_us=0, step_us=1000, example_us=0, workers=5)
        row = scaling.row_of(job, 1)
        self.assertAlmostEqual(row["steps_per_second"], 5000)
        self.assertEqual((row["bound_by"], row["busy"]), ("workers", 0))

    def test_the_best_number_of_ps_and_the_fewest_that_are_enough(self):
        def rows(*rates):
            return [{"ps": i + 1, "steps_per_second": rate} for i, rate in enumerate(rates)]
        self.assertEqual(scaling.best_of(rows(10)), (1, 1))
        self.assertEqual(scaling.best_of(rows(50, 95, 100, 99)), (3, 2))
        self.assertEqual(scaling.best_of(rows(50, 94.9, 100, 100)), (3, 3))
        # A worker alone has nothing of a second ps where each adds messages.
        job = self.job(variable_bytes=1000)
        self.assertEqual(scaling.best_of([scaling.row_of(job, ps) for ps in range(1, 9)]), (1, 1))
        # 1,000 workers that read 100 MB each have something of each.
        job = self.job(variable_bytes=1e8, step_us=20000, workers=1000)
        self.assertEqual(scaling.best_of([scaling.row_of(job, ps) for ps in range(1, 9)]), (8, 8))

    def test_the_defaults_explain_what_was_measured(self):
        # docs/scaling.md: CPU and wall time of steps over links, 2 cores for all tasks.
        for flags, ps, cpu_us, wall_us in [
                ({"batch": 1, "step_us": 5, "example_us": 0, "variable_bytes": 50,
                  "example_bytes": 0, "tensors": 5}, 1, 937, 722),
                ({}, 1, 1336, 1086),
                ({"tensors": 38}, 2, 2516, 1937)]:
            step = scaling.step_of(self.job(**flags, shared_cores=2), ps)
            self.assertAlmostEqual(step.cpu_us / cpu_us, 1, delta=0.1)
            self.assertAlmostEqual(step.time_us / wall_us, 1, delta=0.1)

    def test_it_prints_a_table_or_json(self):
        def run_program(*arguments):
            done = subprocess.run([os.path.join(TOOLS, "scaling.py"), *arguments], text=True,
                                  capture_output=True, check=True)
            return done.stdout
        lines = run_program("--workers=4", "--ps=3", "--max_ps=12").splitlines()
        self.assertEqual([line.split()[0] for line in lines[1:-2]], ["1", "2", "3", "5", "10", "12"])
        self.assertRegex(lines[-2], r"^4 workers, 3 ps: [\d,]+\.\d steps/s, bound by workers$")
        self.assertRegex(lines[-1], r"^best of 1 to 12 ps: 1 \(.* steps/s\); within 5 % of it: 1 \(")
        said = json.loads(run_program("--workers=4", "--ps=3", "--max_ps=12", "--json"))
        self.assertEqual((said["ps"], said["workers"], said["best_ps"], said["enough_ps"]),
                         (3, 4, 1, 1))
        self.assertEqual([row["ps"] for row in said["rows"]], list(range(1, 13)))
        self.assertEqual(said["rows"][2]["step_us"], said["step_us"])


class PicturesTest(unittest.TestCase):

    LOG = [json.dumps({"pair": pair, "side": side, "figures": figures}) + "\n"
           for pair in range(3)
           for side, figures in (
               ("A", {prefix + suffix: 1e6 * (pair + 1) for _, prefix in pictures.PEERS for _, _, suffix in pictures.WORKS}),
               ("B", {ours: 4e6 for _, ours, _ in pictures.WORKS}))]

    def test_bars_are_as_long_as_the_medians(self):
        drawn = xml.etree.ElementTree.fromstring(pictures.performance(self.LOG))
        bars = [float(r.get("width")) for r in drawn.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "15"]
        self.assertEqual(len(bars), 9)
        self.assertAlmostEqual(bars[0] / bars[1], 2, places=2)  # 4 against the median of 1, 2, 3
        self.assertIn("Medians of 3 pairs", pictures.performance(self.LOG))

    def test_a_log_without_a_peer_or_out_of_turn_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "a peer in turns"):
            pictures.performance([])
        with self.assertRaisesRegex(ValueError, "in turns, got B 0, A 1"):
            pictures.performance(self.LOG[1:3])

    def test_a_terminal_shows_every_character(self):
        drawn = xml.etree.ElementTree.fromstring(pictures.terminal(["$ run <a> & b\n", "x" * 130 + "\n"], columns=100))
        rows = [row.text for row in drawn.iter("{http://www.w3.org/2000/svg}text")]
        self.assertEqual(rows, ["$ run <a> & b", "x" * 100, "x" * 30])
        drawn = xml.etree.ElementTree.fromstring(pictures.terminal(["x" * 90 + " --log_dir=run\n"], columns=100))
        rows = [row.text for row in drawn.iter("{http://www.w3.org/2000/svg}text")]
        self.assertEqual(rows, ["x" * 90 + " ", "--log_dir=run"])


class CompatibilityTest(unittest.TestCase):

    LOGS = {"tests/compat/tf_graphs_test": "tf_graphs: 10 cases, 7 passed, 0 differ",
            "tests/compat/saved_model_run_test": "3 of 4 cases ran\n5 of 6 graphs ran\n",
            "ops/signature_test": "8 of TensorFlow's 9 op kinds\n"}

    def test_counts_stand_between_the_comments(self):
        page = f"a\n{compatibility.BEGIN}\nold\n{compatibility.END}\nb\n"
        text = compatibility.replaced(page, compatibility.table(self.LOGS.get))
        self.assertNotIn("old", text)
        self.assertTrue(text.startswith("a\n") and text.endswith("\nb\n"))
        for counted in ("7 of 10", "3 of 4", "5 of 6", "8 of 9"):
            self.assertIn(counted, text)

    def test_a_skipped_test_counts_nothing(self):
        with self.assertRaisesRegex(ValueError, "tf_graphs_test: must say .* shared data"):
            compatibility.table(lambda test: "[  SKIPPED ]")

    def test_a_page_without_the_comments_is_refused(self):
        with self.assertRaisesRegex(ValueError, "must have one"):
            compatibility.replaced("a page", [])


class DiskCacheTest(unittest.TestCase):

    def setUp(self):
        self.root = tempfile.mkdtemp(dir=os.environ["TEST_TMPDIR"])

    def write(self, path, last_use, size=100):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(bytes(size))
        os.utime(path, (last_use, last_use))
        return path

    def trim(self, limit_bytes):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            disk_cache.trim(self.root, limit_bytes)
        return out.getvalue()

    def test_what_was_used_least_recently_goes_first_whatever_its_version(self):
        old = self.write(f"{CACHE}/cas/aa/1", last_use=1000)
        other = self.write("g++-13.1.0-ffffffffffffffff/ac/bb/2", last_use=2000)
        kept = self.write(f"{CACHE}/ac/cc/3", last_use=3000)
        self.assertEqual(self.trim(300), "")
        self.assertIn("deleted 2 of 3 files", self.trim(199))
        self.assertEqual([os.path.exists(path) for path in (old, other, kept)],
                         [False, False, True])

    def test_an_entry_read_since_it_was_written_counts_as_used_then(self):
        read = self.write(f"{CACHE}/cas/aa/1", last_use=1000)
        os.utime(read, (5000, 1000))
        unread = self.write(f"{CACHE}/cas/aa/2", last_use=4000)
        self.trim(100)
        self.assertEqual([os.path.exists(read), os.path.exists(unread)], [True, False])

    def test_files_that_are_no_cache_stay(self):
        mine = [self.write("cas/aa/1", 1), self.write("photos/cas/1", 1),
                self.write(f"{CACHE}/note", 1)]
        self.trim(0)
        self.assertEqual([os.path.exists(path) for path in mine], [True] * 3)

    def test_the_folder_has_the_compilers_version_and_can_be_switched_off(self):
        os.environ["MILLRACE_DISK_CACHE"] = self.root
        self.assertEqual(os.path.dirname(disk_cache.folder()), self.root)
        self.assertRegex(os.path.basename(disk_cache.folder()), disk_cache.FOLDER)
        os.environ["MILLRACE_DISK_CACHE"] = "off"
        self.assertIsNone(disk_cache.folder())

    def test_headers_and_tools_of_the_compiler_are_in_the_name(self):
        packages = [line.split(":")[0] for line in disk_cache.versions()]
        for package in ("g++", "libprotobuf-dev", "libeigen3-dev", "protobuf-compiler"):
            self.assertIn(package, packages)


class CountCompilesTest(unittest.TestCase):

    def test_a_source_counts_once_in_each_configuration(self):
        def action(target, configuration, output, *flags):
            return {"targetId": target, "configurationId": configuration,
                    "arguments": ["g++", *flags, "-c", "a.cc", "-o", output]}
        labels = count_compiles.labels_by_source({
            "targets": [{"id": 1, "label": "//a"}, {"id": 2, "label": "//b"}],
            "actions": [action(1, 1, "a.o"), action(1, 2, "a.o"), action(2, 2, "a.pic.o"),
                        action(2, 2, "b.o", "-DKIND=1")]})
        self.assertEqual(dict(labels), {(1, "a.cc", ()): ["//a"], (2, "a.cc", ()): ["//a", "//b"],
                                        (2, "a.cc", ("-DKIND=1",)): ["//b"]})


class CheckIncludesTest(unittest.TestCase):

    SHAPE = "class Shape {\n};\nclass Forward;\n"

    def missing(self, sources):
        found = check_includes.missing_includes(check_includes.Tree(sources))
        return [(path, header) for path, header, _ in found]

    def test_a_name_needs_the_header_that_declares_it(self):
        sources = {"core/shape.h": self.SHAPE,
                   "core/tensor.h": '#include "core/shape.h"\nclass Tensor {\n  Shape s;\n};\n',
                   "graph/a.cc": '#include "core/tensor.h"\nTensor t;\nShape s;\n'}
        self.assertEqual(self.missing(sources), [("graph/a.cc", "core/shape.h")])

    def test_own_header_and_exports_provide_names(self):
        exported = '#include "core/shape.h"  // IWYU pragma: export\nclass Tensor {\n};\n'
        sources = {"core/shape.h": self.SHAPE, "core/tensor.h": exported,
                   "graph/a.cc": '#include "core/tensor.h"\nShape s;\n',
                   "graph/b.h": '#include "core/shape.h"\n',
                   "graph/b_test.cc": '#include "graph/b.h"\nShape s;\n'}
        self.assertEqual(self.missing(sources), [])

    def test_names_of_headers_outside_are_those_inside(self):
        exported = '#include "core/shape.h"  // IWYU pragma: export\n'
        sources = {"core/shape.h": self.SHAPE, "api/all.h": exported,
                   "docs/a.cc": "#include <millrace/all.h>\nShape s;\n",
                   "docs/b.cc": "#include <millrace/core/shape.h>\nShape s;\n",
                   "docs/c.cc": "#include <other/core/shape.h>\nShape s;\n"}
        self.assertEqual(self.missing(sources), [("docs/c.cc", "core/shape.h")])

    def test_comments_strings_members_and_own_names_are_no_uses(self):
        sources = {"core/shape.h": self.SHAPE,
                   "graph/a.cc": '// Shape\nconst char* k = "Shape";\nauto x = y.Shape();\n'
                                 'auto z = other::Shape();\n',
                   "graph/b.cc": "template <typename Shape>\nvoid F(Shape s);\n",
                   "graph/c.h": "class Shape;\nvoid G(const Shape& s);\n"}
        self.assertEqual(self.missing(sources), [])

    def test_arrows_bind_libraries_and_not_tests(self):
        includes = ('#include "ops/array/tile.h"\n#include "core/shape.h"\n')
        tree = check_includes.Tree({"graph/a.cc": includes, "graph/a_test.cc": includes,
                                    "ops/b.cc": '#include "runtime/kernel.h"\n'
                                                '#include "runtime/plan.h"\n'})
        errors = "\n".join(check_includes.arrow_errors(tree))
        self.assertIn("graph/a.cc: graph/ may include proto, core, formats, got 'ops/array/tile.h'", errors)
        self.assertIn("ops/b.cc", errors)
        self.assertEqual(errors.count("\n"), 1)

    def test_a_folder_in_another_one_may_have_an_arrow_of_its_own(self):
        tree = check_includes.Tree({
            "distributed/link/a.cc": '#include "core/status.h"\n#include "net/timers.h"\n'
                                     '#include "distributed/link/b.h"\n',
            "distributed/link/c.cc": '#include "distributed/worker/worker.h"\n',
            "distributed/link/d.cc": '#include "graph/graph.h"\n',
            "distributed/link/testing/e.cc": '#include "distributed/worker/worker.h"\n',
            "distributed/worker/f.cc": '#include "distributed/link/b.h"\n',
            "train/g.cc": '#include "distributed/link/b.h"\n'})
        errors = list(check_includes.arrow_errors(tree))
        rule = "distributed/link/ may include proto, core, net"
        self.assertEqual(errors[:2], [
            f"distributed/link/c.cc: {rule}, got 'distributed/worker/worker.h'",
            f"distributed/link/d.cc: {rule}, got 'graph/graph.h'"])
        self.assertEqual([error.split(":")[0] for error in errors[2:]], ["train/g.cc"])

    def test_a_folder_and_one_in_it_do_not_include_each_other(self):
        one_way = {"train/loop.cc": '#include "train/hooks/hook.h"\n', "train/hooks/hook.h": ""}
        both = dict(one_way, **{"train/hooks/stop.cc": '#include "train/every.h"\n',
                                "train/every.h": ""})

        def errors(sources, allowed=frozenset()):
            return list(check_includes.circle_errors(check_includes.Tree(sources), allowed))
        self.assertEqual(errors(one_way), [])
        self.assertEqual(errors(both), [
            "train/loop.cc: train/ and train/hooks/ must not include each other, got "
            "'train/hooks/hook.h'; train/hooks/stop.cc includes 'train/every.h'"])
        # Tests may; a folder deeper down is one in it, too.
        tested = dict(one_way, **{"train/hooks/stop_test.cc": '#include "train/every.h"\n'})
        self.assertEqual(errors(tested), [])
        deep = {"train/a.h": '#include "train/b/c/d.h"\n', "train/b/c/d.h": '#include "train/a.h"\n'}
        self.assertEqual(len(errors(deep)), 1)
        # What is allowed is so as long as it is there.
        self.assertEqual(errors(both, {"train/hooks"}), [])
        self.assertIn("must leave CIRCLES", errors(one_way, {"train/hooks"})[0])
        self.assertEqual(errors(one_way, {"graph/check"}), [])

    def test_public_headers_reach_no_header_of_protobuf(self):
        clean = {"api/millrace.h": '#include "graph/scope.h"  // IWYU pragma: export\n',
                 "api/estimator.h": '#include "api/millrace.h"\n#include "data/csv.h"\n',
                 "api/client.h": '#include "core/shape.h"\n',
                 "api/model_server.h": '#include "core/shape.h"\n',
                 "graph/scope.h": '#include "graph/attr.h"\n#include "core/shape.h"\n',
                 "graph/attr.h": '#include "core/shape.h"\nnamespace tensorflow {\nclass AttrValue;\n}\n',
                 "core/shape.h": '#include "graph/scope.h"\n',  # a circle ends, too
                 "data/csv.h": "// not #include \"proto/graph.pb.h\"\n",
                 # What a source includes is its own.
                 "graph/attr.cc": '#include "graph/attr.h"\n#include "proto/attr_value.pb.h"\n'}

        def errors(**changed):
            return list(check_includes.protobuf_errors(check_includes.Tree(
                dict(clean, **{path.replace("__", "/") + ".h": text
                               for path, text in changed.items()}))))
        self.assertEqual(errors(), [])
        # Once, from the first public header that has it.
        self.assertEqual(
            errors(graph__attr='#include "proto/attr_value.pb.h"\n'),
            ["api/millrace.h: must reach no header of protobuf, got 'proto/attr_value.pb.h' by "
             "api/millrace.h -> graph/scope.h -> graph/attr.h -> proto/attr_value.pb.h"])
        self.assertEqual(
            errors(data__csv='#include "google/protobuf/arena.h"\n'),
            ["api/estimator.h: must reach no header of protobuf, got 'google/protobuf/arena.h' by "
             "api/estimator.h -> data/csv.h -> google/protobuf/arena.h"])
        self.assertEqual(len(errors(core__shape="#include <millrace/proto/tensor.pb.h>\n")), 1)
        del clean["api/estimator.h"]
        self.assertIn("api/estimator.h: must be there", errors()[0])


if __name__ == "__main__":
    unittest.main()
