#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs what Bazel has built, for programs outside of this repository.

DIR/lib/libmillrace.so.X.Y.Z with its links, lib/pkgconfig, lib/cmake/Millrace, include/millrace,
bin and share/millrace. Files are looked for under each --from in turn, by their names in this
repository. What was installed under the prefix before is replaced; other files stay. The tree can be
moved as a whole. tools/install.sh builds first.
"""

import os
import re
import shutil
import subprocess
import sys

import program

TOOLS = ["csv_to_tfrecord", "data_split", "freeze_graph", "inspect_checkpoint", "inspect_events", "launch",
         "local_predict", "run_graph", "saved_model_cli", "vocab_gen"]


class Installer:
    """Copies files of the --from folders to places under the prefix."""

    def __init__(self, sources, prefix):
        self.sources, self.prefix = sources, prefix
        self.version = re.search(r'^#define MILLRACE_VERSION "(\d+\.\d+\.\d+)"$',
                                 self.read("core/version.h"), re.M)[1]
        self.soversion = self.version.rsplit(".", 1)[0]

    def find(self, name):
        for folder in self.sources:
            if os.path.exists(os.path.join(folder, name)):
                return os.path.join(folder, name)
        raise FileNotFoundError(f"install: '{name}' must be under one of {self.sources}, got no "
                                "such file; tools/install.sh builds it")

    def read(self, name):
        with open(self.find(name), encoding="utf-8") as source:
            return source.read()

    def place(self, *parts):
        """A path under the prefix; its folder exists and nothing stands there."""
        path = os.path.join(self.prefix, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.lexists(path):
            os.remove(path)
        return path

    def copy(self, name, *parts, mode=0o644):
        path = self.place(*parts)
        shutil.copyfile(self.find(name), path)
        os.chmod(path, mode)
        return path

    def program(self, name, *parts):
        """Without the symbols that only debuggers read."""
        path = self.copy(name, *parts, mode=0o755)
        subprocess.check_call(["strip", "--strip-unneeded", path])

    def template(self, name, *parts):
        text = self.read(name).replace("@VERSION@", self.version)
        with open(self.place(*parts), "w", encoding="utf-8") as out:
            out.write(text.replace("@SOVERSION@", self.soversion))

    def headers(self):
        # Of the last release nothing stays: a header that is gone must not be found.
        shutil.rmtree(os.path.join(self.prefix, "include", "millrace"), ignore_errors=True)
        root = os.path.join(self.find("api/include"), "millrace")
        for folder, _, names in os.walk(root, followlinks=True):
            for name in names:
                path = os.path.join(folder, name)
                target = self.place("include", "millrace", os.path.relpath(path, root))
                shutil.copyfile(path, target)
                os.chmod(target, 0o644)

    def all(self):
        library = f"libmillrace.so.{self.version}"
        self.program("api/libmillrace.so", "lib", library)
        os.symlink(library, self.place("lib", f"libmillrace.so.{self.soversion}"))
        os.symlink(library, self.place("lib", "libmillrace.so"))
        self.headers()
        self.template("api/millrace.pc.in", "lib", "pkgconfig", "millrace.pc")
        for name in ["MillraceConfig.cmake", "MillraceConfigVersion.cmake"]:
            self.template(f"api/{name}.in", "lib", "cmake", "Millrace", name)
        for name in TOOLS:
            self.program(f"tools/{name}", "bin", name)
        self.copy("tools/ops.pbtxt", "share", "millrace", "ops.pbtxt")
        self.copy("LICENSE", "share", "millrace", "LICENSE")


def main():
    parser = program.Parser(__doc__)
    parser.add_argument("--prefix", metavar="DIR", required=True)
    parser.add_argument("--from", metavar="DIR", dest="sources", action="append", required=True)
    flags = parser.parse_args()
    try:
        Installer(flags.sources, os.path.abspath(flags.prefix)).all()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"install.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
