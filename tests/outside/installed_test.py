#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs into a fresh folder and uses it as a project of somebody else does: a compiler with
pkg-config, CMake, the installed tools. Looks at what the library shows and needs.

In the root of the repository it runs without Bazel, too, on what tools/install.sh has installed:

    OUTSIDE_PREFIX=DIR TEST_TMPDIR=DIR2 tests/outside/installed_test.py [CLASS...]

OUTSIDE_ALL=1: a compiler or tool that is missing is a failure; otherwise its tests are skipped."""

# covers: outside: a wide and deep model of a CSV file by an installed Millrace: trained, evaluated,
#   exported and asked, alone and as ps, chief and evaluator; `launch` and `local_predict` are the
#   installed ones
# covers: outside: what is installed builds one program (train, save, export, load, predict) in a
#   fresh folder with g++, clang (skipped without one from 15 on) and CMake, next to folders with
#   our folders' names
# covers: outside: C programs, too: the header is C11 and C++17, one trains, saves, restores and
#   exports, one predicts with the model of another program; ctypes
# covers: outside: a user's op, built with the installed files alone, brings kernel and gradient
#   into a program; an op of another version is refused with both versions
# covers: outside: a program that is built with the installed files alone checks the gradient of its
#   op, and names the element where it is wrong
# covers: outside: an op library that is linked with `libmillrace.so` is loaded by the installed
#   tools, which have Millrace in them
# covers: outside: a program compiles no header of protobuf, gRPC or hash tables, and little code of
#   ours
# covers: outside: `libmillrace.so` defines no symbol of a library that it needs, exports what the
#   public headers declare and messages, is smaller than 30 MB, has its version in name and packages
# covers: outside: a program links the address of every function, method and variable that a public
#   header declares, and calls every constructor, destructor and virtual method
# covers: outside: macros of public headers begin with `MR_` or `MILLRACE_`
# covers: scenario F12: saved_model_cli, C programs, models of TensorFlow

import glob
import json
import os
import random
import re
import shutil
import subprocess
import sys
import unittest

HERE = os.path.join("tests", "outside")
TMP = os.environ["TEST_TMPDIR"]
PREFIX = os.environ.get("OUTSIDE_PREFIX") or os.path.join(TMP, "prefix")
LIBRARY = os.path.join(PREFIX, "lib", "libmillrace.so")
# In alphabetical order; tools/install.py installs them, docs/using_millrace.md names them.
TOOLS = ["batch_predict", "checkpoint", "cluster_status", "csv_to_tfrecord", "data_split",
         "freeze_graph", "front", "inspect_checkpoint", "inspect_events", "launch",
         "local_predict", "model_server", "predict", "run_graph", "saved_model_cli", "submit",
         "vocab_gen"]
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Werror"]


def run(command, **kwargs):
    """The output of a command; a failure shows all that it said."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, **kwargs)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\nexit {done.returncode}\n{done.stdout}")
    return done.stdout


def pkg_config(*words):
    env = dict(os.environ, PKG_CONFIG_PATH=os.path.join(PREFIX, "lib", "pkgconfig"))
    return run(["pkg-config", *words], env=env).split()


def linked():
    """What docs/using_millrace.md puts behind the sources of a program."""
    return [*pkg_config("--cflags", "--libs", "millrace"),
            "-Wl,-rpath," + pkg_config("--variable=libdir", "millrace")[0]]


def version():
    with open("core/version.h", encoding="utf-8") as header:
        return re.search(r'MILLRACE_VERSION "(.*)"', header.read())[1]


def is_missing(what):
    if os.environ.get("OUTSIDE_ALL") == "1":
        raise AssertionError(what)
    raise unittest.SkipTest(what)


def program(name):
    """The path of a program of the system; the test is skipped without it."""
    return shutil.which(name) or is_missing(f"{name} is not installed; tools/install_deps.sh")


def modern_clang():
    """clang before 15 has no std::source_location."""
    for number in range(20, 14, -1):
        path = shutil.which(f"clang++-{number}")
        if path is not None:
            return path
    return is_missing("no clang++ from 15 on is installed; tools/install_deps.sh --dev")


def fresh(name):
    """A new folder with the program, and with a folder of the same name as one of ours."""
    folder = os.path.join(TMP, name)
    os.makedirs(os.path.join(folder, "graph"))
    shutil.copyfile(os.path.join(HERE, "program.cc"), os.path.join(folder, "program.cc"))
    with open(os.path.join(folder, "graph", "scope.h"), "w", encoding="utf-8") as own:
        own.write("#error a public header has included a header of the project around it\n")
    return folder


def code_of(page, folder, *names):
    """The files that a page of docs/ has the text of."""
    run(["python3", "tools/markdown_code.py", os.path.join("docs", page), folder, *names])


def install():
    run(["python3", "tools/install.py", "--prefix", PREFIX, "--from", "."])


def setUpModule():
    if "OUTSIDE_PREFIX" not in os.environ:
        install()


class Programs(unittest.TestCase):
    """The same program, built in the ways that docs/using_millrace.md names."""

    def check(self, folder, binary):
        output = run([binary, folder], cwd=folder)
        self.assertEqual(output.splitlines()[-1], f"millrace {version()}: y(3) = 5.000")

    def compile(self, compiler, folder):
        run([compiler, "-std=c++20", "-O1", *WARNINGS, "-I.", "-iquote", ".", "program.cc", "-o",
             "program", *linked()], cwd=folder)
        self.check(folder, os.path.join(folder, "program"))

    def test_gcc_with_pkg_config(self):
        program("pkg-config")
        self.compile(program("g++"), fresh("gcc"))

    def test_clang_with_pkg_config(self):
        program("pkg-config")
        self.compile(modern_clang(), fresh("clang"))

    def test_cmake(self):
        program("cmake")
        folder = fresh("cmake")
        code_of("using_millrace.md", folder, "CMakeLists.txt", "messages.cc")
        run(["cmake", "-S", ".", "-B", "out", f"-DCMAKE_PREFIX_PATH={PREFIX}"], cwd=folder)
        run(["cmake", "--build", "out"], cwd=folder)
        self.check(folder, os.path.join(folder, "out", "program"))

    def test_cmake_refuses_another_minor_version(self):
        program("cmake")
        folder = os.path.join(TMP, "cmake_version")
        os.makedirs(folder)
        for asked, found in [("0.6", False), ("0.7.0", True), ("0.7.99", False), ("0.8", False)]:
            with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as lists:
                lists.write("cmake_minimum_required(VERSION 3.18)\nproject(v CXX)\n"
                            f"find_package(Millrace {asked})\n"
                            "message(STATUS \"found=${Millrace_FOUND}\")\n")
            output = run(["cmake", "-S", ".", "-B", "out_" + asked,
                          f"-DCMAKE_PREFIX_PATH={PREFIX}"], cwd=folder)
            self.assertEqual("found=1" in output, found, f"{asked}\n{output}")

    def test_messages_of_the_library_in_the_program(self):
        """A program that reads messages includes their headers and links protobuf, too."""
        folder = os.path.join(TMP, "messages")
        os.makedirs(folder)
        code_of("using_millrace.md", folder, "CMakeLists.txt", "messages.cc")
        run(["g++", "-std=c++20", "messages.cc", "-o", "program",
             *pkg_config("--cflags", "--libs", "millrace", "protobuf"),
             "-Wl,-rpath," + os.path.join(PREFIX, "lib")], cwd=folder)
        run([os.path.join(folder, "program")])


class Estimators(unittest.TestCase):
    """A pre-made model of a CSV file, by one call: the main of examples/census, from outside."""

    @classmethod
    def setUpClass(cls):
        program("pkg-config")
        cls.folder = fresh("estimator")
        shutil.copyfile(os.path.join(HERE, "estimator_program.cc"),
                        os.path.join(cls.folder, "estimator_program.cc"))
        draw = random.Random(1)
        with open(os.path.join(cls.folder, "people.csv"), "w", encoding="utf-8") as people:
            people.write("age,job,hours,income\n")
            for _ in range(600):
                age, job = draw.randrange(18, 70), draw.choice(
                    ["clerk", "doctor", "farmer", "lawyer", "painter"])
                much = job in ("doctor", "lawyer") and age >= 35
                people.write(f"{age},{job},{draw.randrange(20, 60)},{'much' if much else 'little'}\n")
        run([program("g++"), "-std=c++20", "-O1", *WARNINGS, "-I.", "-iquote", ".",
             "estimator_program.cc", "-o", "estimator_program", *linked()], cwd=cls.folder)
        cls.binary = os.path.join(cls.folder, "estimator_program")

    def check(self, lines):
        """What the task says that has evaluated and exported; the directory of the export."""
        said = dict(line.split(": ", 1) for line in lines if ": " in line)
        measured = dict(one.split(" = ") for one in said["Evaluation"].split(", "))
        self.assertGreater(float(measured["accuracy"]), 0.9)
        self.assertLess(float(measured["brier"]), 0.1)
        self.assertGreaterEqual(int(measured["global_step"]), 400)
        self.assertEqual(said["Lawyer of 50"], "much, painter of 20: little")
        return said["Exported"]

    def test_trains_evaluates_exports_and_predicts(self):
        lines = run([self.binary, "people.csv", "alone"], cwd=self.folder).splitlines()
        self.assertIn("Own steps: 400", lines)
        exported = self.check(lines)
        # The installed program asks the export, too.
        with open(os.path.join(self.folder, "two.json"), "w", encoding="utf-8") as two:
            two.write('{"age": 40, "job": "doctor", "hours": 50}\n'
                      '{"age": 40, "job": "farmer", "hours": 50}\n')
        predicted = json.loads(run(
            [os.path.join(PREFIX, "bin", "local_predict"), "--model-dir", exported,
             "--json-instances", "two.json", "--format", "json"],
            cwd=self.folder))["predictions"]
        self.assertEqual([row["classes"] for row in predicted], [["much"], ["little"]])

    def test_is_any_task_of_a_cluster(self):
        output = run([os.path.join(PREFIX, "bin", "launch"), "--ps=1", "--chief", "--evaluator", "--",
                      self.binary, "people.csv", "cluster"], cwd=self.folder)
        self.assertEqual(len(re.findall(r"^launch: \w+ 0 +exit 0 ", output, re.M)), 3, output)
        self.assertIn("[chief 0] Own steps: 400\n", output)
        self.check([line[len("[evaluator 0] "):] for line in output.splitlines()
                    if line.startswith("[evaluator 0] ")])

    def test_a_wrong_file_ends_with_one_message_and_exit_code_1(self):
        done = subprocess.run([self.binary, "none.csv", "none"], cwd=self.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        said = [line for line in done.stderr.splitlines() if "estimator_program: " in line]
        self.assertEqual(len(said), 1, done.stderr)
        self.assertIn("none.csv", said[0])


class CPrograms(unittest.TestCase):
    """C, and languages that can call C."""

    def header(self, compiler, folder):
        program("pkg-config")
        os.makedirs(os.path.join(TMP, folder))
        source = os.path.join(TMP, folder, "header.c")
        with open(source, "w", encoding="utf-8") as out:
            out.write("#include <millrace/c_api.h>\n"
                      "int main(void) { return millrace_version() == 0; }\n")
        for language, standard in [("c", "c11"), ("c++", "c++17")]:
            run([compiler, "-x", language, f"-std={standard}", "-pedantic", *WARNINGS,
                 "-fsyntax-only", *pkg_config("--cflags", "millrace"), source])

    def test_header_is_c11_and_cxx17_for_gcc(self):
        self.header(program("gcc"), "c_header_gcc")

    def test_header_is_c11_and_cxx17_for_clang(self):
        self.header(modern_clang().replace("clang++", "clang"), "c_header_clang")

    def test_trains_saves_restores_exports_and_predicts(self):
        """The program of docs/c_api.md, as it stands there."""
        folder = os.path.join(TMP, "c_train")
        os.makedirs(folder)
        code_of("c_api.md", folder, "c_api_program.c")
        run([program("gcc"), "-std=c11", "-pedantic", *WARNINGS, "c_api_program.c", "-o", "program",
             *linked()], cwd=folder)
        output = run([os.path.join(folder, "program"), folder], cwd=folder)
        self.assertEqual(output.splitlines()[-1], "w = 3.000, prediction for 10: 29.000")

    def test_predicts_with_a_model_of_another_program(self):
        folder = fresh("c_predict")
        run([program("g++"), "-std=c++20", "program.cc", "-o", "program", *linked()], cwd=folder)
        run([os.path.join(folder, "program"), folder], cwd=folder)
        shutil.copyfile(os.path.join(HERE, "predict.c"), os.path.join(folder, "predict.c"))
        run([program("gcc"), "-std=c11", "-pedantic", *WARNINGS, "predict.c", "-o", "predict",
             *linked()], cwd=folder)
        predict = os.path.join(folder, "predict")
        self.assertEqual(run([predict, os.path.join(folder, "export")]),
                         "signature serving_default\ny(3) = 5.000\n")
        # Nothing there: a message, no crash.
        done = subprocess.run([predict, os.path.join(folder, "none")], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(os.path.join(folder, "none"), done.stdout)

    def test_ctypes(self):
        """Python with nothing but its own ctypes."""
        output = run(["python3", os.path.join("api", "c_api_ctypes_test.py"), LIBRARY], cwd=".")
        self.assertIn(version(), output)


class OpLibrary(unittest.TestCase):
    """The op of docs/adding_an_op.md, built with what is installed and loaded by a program that is
    built with what is installed."""

    @classmethod
    def setUpClass(cls):
        cls.folder = os.path.join(TMP, "op_library")
        os.makedirs(cls.folder)
        code_of("adding_an_op.md", cls.folder, "check_shrink.cc", "repeat_rows.cc",
                "repeat_rows.h", "repeat_rows_library.cc", "repeat_rows_library_test.cc",
                "repeat_rows_test.cc", "shrink.cc", "shrink.h", "shrink_test.cc")
        # What the page says of sources outside of the tree.
        for name in ["check_shrink.cc", "repeat_rows.cc", "repeat_rows.h", "repeat_rows_library.cc",
                     "shrink.cc", "shrink.h"]:
            path = os.path.join(cls.folder, name)
            with open(path, encoding="utf-8") as source:
                text = re.sub(r'#include "(\w+/[^"]+)"', r"#include <millrace/\1>", source.read())
            with open(path, "w", encoding="utf-8") as out:
                out.write(text)
        cls.library("repeat_rows.so", "repeat_rows_library.cc")
        shutil.copyfile(os.path.join(HERE, "op_program.cc"),
                        os.path.join(cls.folder, "op_program.cc"))
        run([program("g++"), "-std=c++20", "-O1", *WARNINGS, "op_program.cc", "-o", "op_program",
             *linked()], cwd=cls.folder)

    @classmethod
    def library(cls, name, *sources):
        run([program("g++"), "-std=c++20", "-O2", "-fPIC", "-shared", *WARNINGS, "repeat_rows.cc",
             *sources, "-o", name, *pkg_config("--cflags", "--libs", "millrace")], cwd=cls.folder)

    def load(self, name):
        done = subprocess.run([os.path.join(self.folder, "op_program"),
                               os.path.join(self.folder, name)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode, done.stdout

    def test_brings_its_op_kernel_and_gradient(self):
        self.assertEqual(self.load("repeat_rows.so"),
                         (0, "op: RepeatRows\ny: 1 1 1 2 2 2\ngradient: 6 12\n"))

    def check_shrink(self, source):
        run([program("g++"), "-std=c++20", "-O1", *WARNINGS, "check_shrink.cc", source, "-o",
             "check_shrink", *linked()], cwd=self.folder)
        done = subprocess.run([os.path.join(self.folder, "check_shrink")], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode, done.stdout

    def test_a_program_checks_a_gradient(self):
        self.assertEqual(self.check_shrink("shrink.cc"), (0, ""))
        with open(os.path.join(self.folder, "shrink.cc"), encoding="utf-8") as source:
            right = source.read()
        wrong = right.replace("Greater(s, Abs(s, x), by)", "Greater(s, x, by)")
        self.assertNotEqual(wrong, right)
        with open(os.path.join(self.folder, "wrong.cc"), "w", encoding="utf-8") as source:
            source.write(wrong)
        code, output = self.check_shrink("wrong.cc")
        self.assertEqual(code, 1)
        # The line of the page.
        self.assertIn("CheckGradients: the gradient of inputs[0] at [3] must be the central "
                      "difference, 0.697889189, got 0; 1 of 4 numbers differ by more than 1e-06",
                      output)

    def test_installed_tools_load_it_by_flag_and_environment(self):
        """It is linked with libmillrace.so, the tools have Millrace in them."""
        graph = os.path.join(self.folder, "graph.pbtxt")
        with open(graph, "w", encoding="utf-8") as text:
            text.write("""
versions { producer: 134 }
node {
  name: "x" op: "Const"
  attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "value" value { tensor { dtype: DT_FLOAT tensor_shape { dim { size: 2 } }
                                       float_val: 1 float_val: 2 } } }
}
node {
  name: "count" op: "Const"
  attr { key: "dtype" value { type: DT_INT32 } }
  attr { key: "value" value { tensor { dtype: DT_INT32 tensor_shape { } int_val: 3 } } }
}
node { name: "y" op: "RepeatRows" input: "x" input: "count"
       attr { key: "T" value { type: DT_FLOAT } } }
""")
        library = os.path.join(self.folder, "repeat_rows.so")
        tool = [os.path.join(PREFIX, "bin", "run_graph"), "--graph", graph, "--fetches", "y:0", "--json"]
        for command, environment in [(tool + ["--op_library", library], {}),
                                     (tool, {"MILLRACE_OP_LIBRARIES": library})]:
            done = subprocess.run(command, env=dict(os.environ, **environment), text=True,
                                  capture_output=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["y:0"]["values"], [1, 1, 1, 2, 2, 2])
        done = subprocess.run(tool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("RepeatRows", done.stdout)

    def test_of_another_version_is_refused_with_both(self):
        with open(os.path.join(self.folder, "other_version.cc"), "w", encoding="utf-8") as source:
            source.write('#include <millrace/runtime/op_library.h>\n'
                         'MILLRACE_OP_LIBRARY_FOR("9.8.7");\n')
        self.library("other.so", "other_version.cc")
        code, output = self.load("other.so")
        self.assertEqual(code, 1)
        self.assertIn("9.8.7", output)
        self.assertIn(version(), output)

    def test_that_says_no_version_is_refused(self):
        self.library("mute.so")
        code, output = self.load("mute.so")
        self.assertEqual(code, 1)
        self.assertIn("MILLRACE_OP_LIBRARY", output)

    def test_that_is_not_there_is_named(self):
        code, output = self.load("none.so")
        self.assertEqual(code, 1)
        self.assertIn("none.so", output)


class Headers(unittest.TestCase):
    """What stands in include/millrace."""

    def compiled(self, folder, source, absent):
        """How many bytes of code an object file of the program has; its headers have none of
        `absent` in their names."""
        shutil.copyfile(os.path.join(HERE, source), os.path.join(folder, source))
        flags = ["-std=c++20", "-O2", "-I" + os.path.join(PREFIX, "include")]
        named = run([program("g++"), *flags, "-M", source], cwd=folder).split()
        self.assertTrue(any(name.endswith("absl/status/statusor.h") for name in named))
        for what in ["google/protobuf", ".pb.h", "grpc", "tbb", "Eigen", "absl/hash",
                     "absl/container/flat_hash_map.h", "absl/flags", "core/hash_table.h", *absent]:
            self.assertEqual([name for name in named if what in name], [])
        run(["g++", *flags, "-c", source, "-o", "program.o"], cwd=folder)
        text = int(run(["size", "program.o"], cwd=folder).splitlines()[1].split()[0])
        print(f"{source}: {text} bytes of code")
        return text

    def test_a_program_compiles_no_headers_that_only_the_library_needs(self):
        """What a program's compile time hangs on, counted: headers, and code that it makes."""
        # 26 kB with GCC 12; 45 kB where copies of Outputs and feeds are made in the program.
        self.assertLess(self.compiled(fresh("light"), "program.cc", ["millrace/estimator"]), 36_000)

    def test_nor_does_one_with_an_estimator(self):
        # 57 kB with GCC 12.
        self.assertLess(self.compiled(fresh("light_estimator"), "estimator_program.cc", []), 80_000)

    def headers(self):
        return sorted(glob.glob(os.path.join(PREFIX, "include", "**", "*.h"), recursive=True))

    def test_public_headers_compile_together(self):
        folder = os.path.join(TMP, "alone")
        os.makedirs(folder)
        source = os.path.join(folder, "all.cc")
        own = [h for h in self.headers() if not h.endswith(".pb.h")]
        self.assertGreater(len(own), 60)
        # In the order of names, then all again: guards hold. (Alone: tools/presubmit.sh.)
        with open(source, "w", encoding="utf-8") as out:
            for header in own + own[::-1]:
                out.write(f"#include <{os.path.relpath(header, os.path.join(PREFIX, 'include'))}>\n")
        run(["g++", "-std=c++20", "-fsyntax-only", *WARNINGS,
             "-I" + os.path.join(PREFIX, "include"), source])

    def test_includes_name_installed_headers_and_macros_have_the_prefix(self):
        for path in self.headers():
            with open(path, encoding="utf-8") as header:
                text = header.read()
            for name in re.findall(r'#include "([^"]+)"', text):
                if name.startswith("absl/"):
                    continue
                self.assertTrue(name.startswith("millrace/"), f"{path}: {name}")
                self.assertTrue(os.path.exists(os.path.join(PREFIX, "include", name)), name)
            if not path.endswith(".pb.h"):
                for macro in re.findall(r"^#\s*define (\w+)", text, re.M):
                    self.assertRegex(macro, "^(MR_|MILLRACE_)", path)


class Library(unittest.TestCase):
    """libmillrace.so, as the loader sees it."""

    def exported(self):
        """Without what gold leaves whatever the version script says, as in every program: weak
        functions of std:: that libstdc++ has, too, and unique variables (in lower case)."""
        lines = run(["nm", "-D", "--defined-only", "--format=posix", LIBRARY]).splitlines()
        symbols = [line.split()[:2] for line in lines]
        return [name for name, kind in symbols
                if kind.isupper() and not (name.startswith("_ZNSt") and kind == "W")]

    def test_defines_no_symbol_of_other_libraries(self):
        own = set(self.exported())
        self.assertGreater(len(own), 500)
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run(["readelf", "-d", LIBRARY]))
        for kind in ["libprotobuf.so", "libgrpc++.so", "libabsl_status.so"]:
            self.assertTrue(any(n.startswith(kind) for n in needed), f"{kind} in {needed}")
        for path in re.findall(r"=> (\S+) \(", run(["ldd", LIBRARY])):
            theirs = {line.split()[0].split("@")[0] for line in run(
                ["nm", "-D", "--defined-only", "--format=posix", path]).splitlines()}
            self.assertEqual(sorted(own & theirs), [], path)

    def test_exports_what_the_public_headers_say_and_nothing_else(self):
        own = self.exported()
        for symbol in own:
            self.assertRegex(
                symbol, r"^(_Z(TV|TI|TS|TT|Th\w+_)?NK?(8millrace|10tensorflow)|millrace_"
                r"|descriptor_table_proto_2f"
                r"|_ZN6google8protobuf5Arena18CreateMaybeMessageIN10tensorflow)")
        names = "\n".join(own)
        for present in ["8millrace5Scope8WithName", "8millrace12MakeVariable", "8millrace7GetAttrI",
                        "_ZTVN8millrace13AdamOptimizerE", "_ZTIN8millrace13AdamOptimizerE",
                        "8millrace9FetchNameC1", "10tensorflow8GraphDef", "8millrace9BuildNode",
                        "8millrace14LoadSavedModel", "8millrace6Server5Start",
                        "8millrace13LoadOpLibrary", "millrace_version", "millrace_session_run"]:
            self.assertIn(present, names)
        for absent in ["MasterSession", "GraphSaver", "FlatEngine", "GrpcControl", "10Supervisor4Impl",
                       "12_GLOBAL__N_1"]:
            self.assertNotIn(absent, names)

    def test_links_everything_that_the_public_headers_declare(self):
        program("pkg-config")
        folder = os.path.join(TMP, "declared_uses")
        os.makedirs(folder)
        said = run(["python3", "tools/declared_uses.py", os.path.join(PREFIX, "include"),
                    os.path.join(folder, "uses.cc")])
        print(said.strip())
        uses = int(said.split()[0])
        self.assertGreater(uses, 1300)  # 1409 at first
        with open(os.path.join(folder, "uses.cc"), encoding="utf-8") as source:
            text = source.read()
        for present in ["::Group)", "::DenseToSparse)", "::ReductionAxes)", "::millrace_session_run)",
                        "UseConstructor<::millrace::Scope>", "UseDestructor<::millrace::Scope>",
                        "UseVirtual(&::millrace::Saver::Build,"]:
            self.assertIn(present, text)
        run([program("g++"), "-std=c++20", "-O0", "-c", "uses.cc", "-o", "uses.o",
             *pkg_config("--cflags", "millrace")], cwd=folder)
        run(["g++", "uses.o", "-o", "uses", *linked()], cwd=folder)
        self.assertEqual(run([os.path.join(folder, "uses")]), f"{uses} uses\n")
        # The linker would say so.
        with open(os.path.join(folder, "more.cc"), "w", encoding="utf-8") as source:
            source.write("namespace millrace { void NotInTheLibrary(); }\n"
                         "void More() { millrace::NotInTheLibrary(); }\n")
        done = subprocess.run(["g++", "uses.o", "more.cc", "-o", "more", *linked()], cwd=folder,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("millrace::NotInTheLibrary()", done.stdout)

    def test_names_and_size(self):
        full = version()
        short = full.rsplit(".", 1)[0]
        self.assertEqual(os.path.realpath(LIBRARY), os.path.realpath(
            os.path.join(PREFIX, "lib", f"libmillrace.so.{full}")))
        self.assertTrue(os.path.exists(os.path.join(PREFIX, "lib", f"libmillrace.so.{short}")))
        self.assertIn(f"[libmillrace.so.{short}]", run(["readelf", "-d", LIBRARY]))
        self.assertEqual(pkg_config("--modversion", "millrace"), [full])
        size = os.path.getsize(LIBRARY)
        print(f"libmillrace.so: {size / 1e6:.1f} MB, {len(self.exported())} symbols")
        self.assertLess(size, 30e6)

    def test_says_nothing_of_where_it_was_built(self):
        for path in glob.glob(os.path.join(PREFIX, "lib", "**", "*.*"), recursive=True):
            if os.path.isfile(path):
                with open(path, "rb") as content:
                    self.assertNotIn(os.getcwd().encode(), content.read(), path)
        self.assertNotRegex(run(["readelf", "-d", LIBRARY]), r"\(R(UN)?PATH\)")


class Tools(unittest.TestCase):
    """bin and share."""

    def test_tools_run_where_they_are_installed(self):
        names = sorted(os.listdir(os.path.join(PREFIX, "bin")))
        self.assertEqual([name for name in TOOLS if name not in names], [])
        for name in names:
            done = subprocess.run([os.path.join(PREFIX, "bin", name)], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, check=False)
            self.assertIn("usage", done.stdout.lower(), name)

    def test_signatures_of_all_ops(self):
        with open(os.path.join(PREFIX, "share", "millrace", "ops.pbtxt"),
                  encoding="utf-8") as text:
            names = re.findall(r'^  name: "(\w+)"', text.read(), re.M)
        self.assertEqual(names, sorted(names))
        for op in ["Conv2D", "MatMul", "ParseExample", "SaveV2", "VarHandleOp"]:
            self.assertIn(op, names)


class Installing(unittest.TestCase):
    """tools/install.py itself, with what Bazel has built."""

    @classmethod
    def setUpClass(cls):
        if "OUTSIDE_PREFIX" in os.environ:
            raise unittest.SkipTest("tools/install.sh has installed; nothing is built here")

    def test_a_second_install_replaces_the_first(self):
        stale = os.path.join(PREFIX, "include", "millrace", "gone.h")
        with open(stale, "w", encoding="utf-8"):
            pass
        install()
        self.assertFalse(os.path.exists(stale))
        self.assertTrue(os.path.exists(os.path.join(PREFIX, "include", "millrace", "millrace.h")))

    def test_a_prefix_that_cannot_be_written_is_refused_before_the_build(self):
        done = subprocess.run(["bash", "tools/install.sh", "--prefix", "/proc/millrace"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"^install.sh: --prefix must be a folder that \S+ may write, "
                         r"got '/proc/millrace'\n$")

    def test_a_file_that_is_not_built_is_named(self):
        done = subprocess.run(["python3", "tools/install.py", "--prefix", TMP + "/none", "--from",
                               "api"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("'core/version.h' must be under one of ['api']", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
