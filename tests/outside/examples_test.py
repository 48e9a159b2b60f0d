#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does what the installed pages and examples say, as somebody who has nothing else: the tutorial from
its first command to its last, and the programs of share/millrace/examples.

Without Bazel, on what tools/install.sh has installed: see installed_test.py, whose variables it has."""

# covers: outside: the tutorial, word for word: a CSV file becomes a model that an own program asks,
#   alone and on a cluster; what the page shows is what is printed
# covers: outside: a recurrent network with a loop of the graph and an own hook trains, and the same
#   command goes on where it ended
# covers: outside: a model with reference variables is imported, trained on and exported
# covers: outside: a C program trains through a user's op that it loads
# covers: outside: pages and examples are installed; their links lead to files that are there

import os
import re
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True  # next to the sources
import installed_test as installed

TMP = installed.TMP
HOME = os.path.join(TMP, "home")
SHARE = os.path.join(installed.PREFIX, "share", "millrace")


def setUpModule():
    if "OUTSIDE_PREFIX" not in os.environ:
        installed.install()


class Tutorial(unittest.TestCase):

    def test_does_what_it_says_and_prints_what_it_shows(self):
        installed.program("g++")
        installed.program("pkg-config")
        os.makedirs(HOME)
        os.symlink(installed.PREFIX, os.path.join(HOME, "millrace"))
        done = subprocess.run(
            ["python3", os.path.join("tools", "page_commands.py"), os.path.join("docs", "tutorial.md")],
            env=dict(os.environ, HOME=HOME), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)


class Examples(unittest.TestCase):
    """By the CMakeLists.txt that is installed with them."""

    @classmethod
    def setUpClass(cls):
        installed.program("cmake")
        cls.folder = os.path.join(TMP, "examples")
        installed.run(["cmake", "-S", os.path.join(SHARE, "examples"), "-B", cls.folder,
                       f"-DCMAKE_PREFIX_PATH={installed.PREFIX}"])
        installed.run(["cmake", "--build", cls.folder, "--parallel", "2"])

    def lines(self, *command):
        """What a program prints; its log is shown when it fails."""
        done = subprocess.run([os.path.join(self.folder, command[0]), *command[1:]], cwd=self.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def error(self, *command):
        """The message of a program that must end with 1."""
        done = subprocess.run([os.path.join(self.folder, command[0]), *command[1:]], cwd=self.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        return done.stderr

    def test_a_recurrent_network_learns_and_goes_on_where_it_ended(self):
        first = self.lines("sequences", "run", "300")
        self.assertEqual(first[:3], ["begins at step 0", "made 300 steps", "reached step 300 of 300"])
        second = self.lines("sequences", "run", "600")
        self.assertEqual(second[:3], ["begins at step 300", "made 300 steps", "reached step 600 of 600"])
        self.assertLess(float(second[3].split()[1]), 0.4)  # 0.69 before
        done = self.lines("sequences", "run", "600")
        self.assertEqual(done[:2], ["begins at step 600", "made 0 steps"])

    def test_a_model_with_reference_variables_is_trained_on_and_exported(self):
        self.assertEqual(self.lines("fine_tune", "make", "old"), ["saved old/model.ckpt-7"])
        trained = self.lines("fine_tune", "train", "old/model.ckpt-7", "new")
        self.assertEqual(trained[:2], ["trains w, a reference variable", "trains b, a reference variable"])
        self.assertAlmostEqual(float(trained[2].split(" = ")[1]), 41, delta=0.5)
        self.assertIn("old/none.meta", self.error("fine_tune", "train", "old/none", "new2"))

    def test_a_c_program_trains_through_an_op_that_it_loads(self):
        self.assertEqual(self.lines("train_squareplus", "./squareplus.so"), ["op Squareplus", "w = 2.000"])
        self.assertIn("none.so", self.error("train_squareplus", "./none.so"))

    def test_the_programs_of_the_tutorial_are_among_them(self):
        for name in ("train_clicks", "ask_clicks"):
            self.assertTrue(os.access(os.path.join(self.folder, name), os.X_OK))
        done = subprocess.run([os.path.join(self.folder, "ask_clicks")], stderr=subprocess.PIPE, text=True,
                              check=False)
        self.assertEqual(done.returncode, 2, done.stderr)


class Pages(unittest.TestCase):

    def test_links_lead_to_files_that_are_installed(self):
        pages = [os.path.join(SHARE, "README.md"), os.path.join(SHARE, "examples", "README.md")]
        docs = os.path.join(SHARE, "docs")
        pages += [os.path.join(docs, name) for name in sorted(os.listdir(docs)) if name.endswith(".md")]
        self.assertGreater(len(pages), 25)
        links = 0
        for page in pages:
            with open(page, encoding="utf-8") as text:
                outside_code = "".join(text.read().split("```")[::2])
            for target in re.findall(r"\]\(([\w./-]+)(?:#[\w-]*)?\)", outside_code):
                links += 1
                self.assertTrue(os.path.exists(os.path.join(os.path.dirname(page), target)),
                                f"{page}: {target}")
        self.assertGreater(links, 60)


if __name__ == "__main__":
    unittest.main(verbosity=2)
