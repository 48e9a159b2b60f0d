#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs what Bazel has built, for programs outside of this repository.

DIR/lib/libmillrace.so.X.Y.Z with its links, lib/pkgconfig, lib/cmake/Millrace, include/millrace,
bin and share/millrace, which has the pages and examples. Files are looked for under each --from in
turn, by their names in this repository. What was installed under the prefix before is replaced;
other files stay. The tree can be moved as a whole. tools/install.sh builds first.
"""

import os
import re
import shutil
import subprocess
import sys

import markdown_code
import program

TOOLS = ["batch_predict", "checkpoint", "cluster_status", "csv_to_tfrecord", "data_split",
         "freeze_graph", "front", "inspect_checkpoint", "inspect_events", "launch",
         "local_predict", "model_server", "predict", "run_graph", "saved_model_cli", "submit",
         "vocab_gen"]
SHARE = os.path.join("share", "millrace")
EXAMPLES = "examples/outside"
# Of the examples, those whose text is that of a page.
TUTORIAL = "docs/tutorial.md"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([\w./-]+)(#[\w-]*)?\)")


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

    def names(self, folder, *endings):
        """The files of a folder of the repository with these endings, "docs/tutorial.md"."""
        # The sources, not what was built next to them.
        path = os.path.dirname(self.find(folder + "/README.md"))
        return sorted(f"{folder}/{name}" for name in os.listdir(path) if name.endswith(endings))

    def place_of(self, name):
        """Where a file of the repository is below the prefix; None when it is not there."""
        if name.startswith(EXAMPLES + "/"):
            path = os.path.join(SHARE, "examples", name[len(EXAMPLES) + 1:])
        elif name.endswith(".h"):
            path = os.path.join("include", "millrace", re.sub("^api/", "", name))
        else:
            path = os.path.join(SHARE, name)
        return path if os.path.exists(os.path.join(self.prefix, path)) else None

    def link_page(self, name):
        """Links of an installed page lead to what is installed; others become their text."""
        path = self.place_of(name)

        def linked(match):
            target = os.path.normpath(os.path.join(os.path.dirname(name), match[3]))
            place = self.place_of(target)
            if place is None:
                return match[2]
            relative = os.path.relpath(place, os.path.dirname(path))
            return f"{match[1]}[{match[2]}]({relative}{match[4] or ''})"

        # Text, fence, code, fence, text, ...
        parts = re.split(r"(?m)^(```.*)$", self.read(name))
        parts[::4] = [LINK.sub(linked, text) for text in parts[::4]]
        with open(os.path.join(self.prefix, path), "w", encoding="utf-8") as out:
            out.write("".join(parts))

    def pages(self):
        for folder in ("docs", "examples"):
            shutil.rmtree(os.path.join(self.prefix, SHARE, folder), ignore_errors=True)
        pages = ["README.md", *self.names("docs", ".md")]
        pictures = [f"docs/pictures/{name}" for name in self.pictures(pages)]
        for name in pages + pictures:
            self.copy(name, SHARE, name)
        for name in self.names(EXAMPLES, ".md", ".cc", ".c", ".txt"):
            self.copy(name, SHARE, "examples", os.path.basename(name))
        for name, code in markdown_code.files_of(self.read(TUTORIAL)).items():
            if name.endswith(".cc"):
                with open(self.place(SHARE, "examples", name), "w", encoding="utf-8") as out:
                    out.write(code)
        # Now that all places are known.
        for name in [*pages, EXAMPLES + "/README.md"]:
            self.link_page(name)

    def pictures(self, pages):
        """The pictures that pages show."""
        texts = "".join(self.read(name) for name in pages)
        return sorted(set(re.findall(r"!\[[^\]]*\]\((?:docs/)?pictures/([\w.-]+)\)", texts)))

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
        self.pages()


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
