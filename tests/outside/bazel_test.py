#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A project with a Bazel workspace of its own depends on @millrace//:millrace.

Not part of the normal run: it builds all of Millrace in that workspace (minutes)."""

# covers: outside: a Bazel workspace uses Millrace (run by hand)

import os
import shutil
import subprocess
import sys
import unittest

HERE = os.path.join("tests", "outside")
TMP = os.environ["TEST_TMPDIR"]


class BazelConsumer(unittest.TestCase):
    """The program of this folder, in a workspace of its own."""

    def test_program_builds_and_runs(self):
        millrace = os.path.dirname(os.path.realpath("WORKSPACE"))
        folder = os.path.join(TMP, "project")
        os.makedirs(os.path.join(folder, "graph"))
        for name, target in [("WORKSPACE.in", "WORKSPACE"), ("BUILD.bazel.in", "BUILD.bazel"),
                             ("bazelrc.in", ".bazelrc")]:
            with open(os.path.join(HERE, "bazel", name), encoding="utf-8") as text:
                filled = text.read().replace("@MILLRACE@", millrace)
            with open(os.path.join(folder, target), "w", encoding="utf-8") as out:
                out.write(filled)
        shutil.copyfile(os.path.join(HERE, "program.cc"), os.path.join(folder, "program.cc"))
        with open(os.path.join(folder, "graph", "scope.h"), "w", encoding="utf-8") as own:
            own.write("#error a header of Millrace has included a header of the project\n")
        startup = [f"--output_user_root={TMP}/bazel"]
        flags = os.environ.get("OUTSIDE_BAZEL_FLAGS", "").split()
        try:
            subprocess.check_call(["bazel", *startup, "build", "--noshow_progress", "--color=no",
                                   *flags, "//:program"], cwd=folder)
            output = subprocess.check_output([os.path.join(folder, "bazel-bin", "program"), folder],
                                             text=True)
        finally:
            subprocess.call(["bazel", *startup, "shutdown"], cwd=folder)
        self.assertIn("y(3) = 5.000", output)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
