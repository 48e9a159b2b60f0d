#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs into a fresh folder and uses it as a project of somebody else does: a compiler with
pkg-config, CMake, the installed tools. Looks at what the library shows and needs."""

import glob
import os
import re
import shutil
import subprocess
import sys
import unittest

HERE = os.path.join("tests", "outside")
TMP = os.environ["TEST_TMPDIR"]
PREFIX = os.path.join(TMP, "prefix")
LIBRARY = os.path.join(PREFIX, "lib", "libmillrace.so")
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


def version():
    with open("core/version.h", encoding="utf-8") as header:
        return re.search(r'MILLRACE_VERSION "(.*)"', header.read())[1]


def program(name):
    """The path of a program of the system; the test is skipped without it."""
    path = shutil.which(name)
    if path is None:
        raise unittest.SkipTest(f"{name} is not installed; tools/install_deps.sh")
    return path


def modern_clang():
    """clang before 15 has no std::source_location."""
    for number in range(20, 14, -1):
        path = shutil.which(f"clang++-{number}")
        if path is not None:
            return path
    raise unittest.SkipTest("no clang++ from 15 on is installed; tools/install_deps.sh --dev")


def fresh(name):
    """A new folder with the program, and with a folder of the same name as one of ours."""
    folder = os.path.join(TMP, name)
    os.makedirs(os.path.join(folder, "graph"))
    shutil.copyfile(os.path.join(HERE, "program.cc"), os.path.join(folder, "program.cc"))
    with open(os.path.join(folder, "graph", "scope.h"), "w", encoding="utf-8") as own:
        own.write("#error a public header has included a header of the project around it\n")
    return folder


def setUpModule():
    run(["python3", "tools/install.py", "--prefix", PREFIX, "--from", "."])


class Programs(unittest.TestCase):
    """The same program, built in the ways that docs/using_millrace.md names."""

    def check(self, folder, binary):
        output = run([binary, folder], cwd=folder)
        self.assertEqual(output.splitlines()[-1], f"millrace {version()}: y(3) = 5.000")

    def compile(self, compiler, folder, *flags):
        run([compiler, "-std=c++20", "-O1", *WARNINGS, "-I.", "-iquote", ".", "program.cc", "-o", "program",
             *pkg_config("--cflags", "--libs", "millrace"), *flags,
             "-Wl,-rpath," + pkg_config("--variable=libdir", "millrace")[0]], cwd=folder)
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
        shutil.copyfile(os.path.join(HERE, "CMakeLists.txt"),
                        os.path.join(folder, "CMakeLists.txt"))
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
        with open(os.path.join(folder, "program.cc"), "w", encoding="utf-8") as source:
            source.write('''
#include <millrace/graph/import_export.h>
#include <millrace/millrace.h>
#include <millrace/proto/config.pb.h>
#include <millrace/proto/graph.pb.h>
int main() {
  millrace::Scope root;
  Const(root.WithName("c"), 1.0f);
  const auto def = root.ToGraphDef();
  if (!def.ok() || def->node_size() != 1 || def->node(0).name() != "c") return 1;
  tensorflow::ConfigProto config;
  config.mutable_graph_options()->mutable_optimizer_options()->set_opt_level(
      tensorflow::OptimizerOptions::L0);
  const auto session = millrace::NewSession({.config = millrace::SessionConfigOf(config)});
  if (!session.ok() || !(*session)->Extend(*def).ok()) return 2;
  const auto out = (*session)->Run({}, {"c:0"});
  return out.ok() && (*out)[0].scalar<float>() == 1 ? 0 : 3;
}
''')
        run(["g++", "-std=c++20", "program.cc", "-o", "program",
             *pkg_config("--cflags", "--libs", "millrace", "protobuf"),
             "-Wl,-rpath," + os.path.join(PREFIX, "lib")], cwd=folder)
        run([os.path.join(folder, "program")])


class Headers(unittest.TestCase):
    """What stands in include/millrace."""

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
        for absent in ["MasterSession", "GraphSaver", "FlatEngine", "GrpcTransport", "10Supervisor4Impl",
                       "12_GLOBAL__N_1"]:
            self.assertNotIn(absent, names)

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
        for name in ["freeze_graph", "launch", "run_graph", "saved_model_cli"]:
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

    def test_a_second_install_replaces_the_first(self):
        stale = os.path.join(PREFIX, "include", "millrace", "gone.h")
        with open(stale, "w", encoding="utf-8"):
            pass
        setUpModule()
        self.assertFalse(os.path.exists(stale))
        self.assertTrue(os.path.exists(os.path.join(PREFIX, "include", "millrace", "millrace.h")))

    def test_a_file_that_is_not_built_is_named(self):
        done = subprocess.run(["python3", "tools/install.py", "--prefix", TMP + "/none", "--from",
                               "api"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("'core/version.h' must be under one of ['api']", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
