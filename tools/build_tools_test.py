#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the build's and the measurements' own programs promise."""

import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # beside the sources
import check_includes
import count_compiles
import disk_cache
import markdown_code
import pairs

CACHE = "g++-12.2.0-0123456789abcdef"


class MarkdownCodeTest(unittest.TestCase):

    def test_blocks_of_one_file_are_put_together_and_others_left(self):
        page = "text\n```cpp a.cc\nint a;\n```\n```\nls\n```\n```cpp b.h\nint b;\n```\n```cpp a.cc\nint c;\n```\n"
        self.assertEqual(markdown_code.files_of(page), {"a.cc": "int a;\nint c;\n", "b.h": "int b;\n"})

    def test_a_block_without_an_end_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "must be closed"):
            markdown_code.files_of("```cpp a.cc\nint a;\n")


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
        def action(target, configuration, output):
            return {"targetId": target, "configurationId": configuration,
                    "arguments": ["g++", "-c", "a.cc", "-o", output]}
        labels = count_compiles.labels_by_source({
            "targets": [{"id": 1, "label": "//a"}, {"id": 2, "label": "//b"}],
            "actions": [action(1, 1, "a.o"), action(1, 2, "a.o"), action(2, 2, "a.pic.o")]})
        self.assertEqual(dict(labels), {(1, "a.cc"): ["//a"], (2, "a.cc"): ["//a", "//b"]})


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
        self.assertIn("graph/a.cc: graph/ may include proto, core, got 'ops/array/tile.h'", errors)
        self.assertIn("ops/b.cc", errors)
        self.assertEqual(errors.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
