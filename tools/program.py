# SPDX-License-Identifier: Apache-2.0
"""The flags of a Python program, answered as the C++ ones do (core/program.h, command_line.h).

    flags = program.Parser(__doc__)
    flags.add_argument("page")
    page = flags.parse_args().page

--help and --version exit with 0 and a text on stdout; wrong flags and arguments with 2 after the
usage, in a line on stderr that names them.
"""

import argparse
import os
import re
import sys


class _Version(argparse.Action):

    def __call__(self, parser, namespace, values, option_string=None):
        # Read when it is asked for: a build that runs a program need not have the file.
        header = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "core", "version.h")
        with open(header, encoding="utf-8") as text:
            version = re.search(r'#define MILLRACE_VERSION "(.*)"', text.read()).group(1)
        print(f"{parser.prog} (Millrace) {version}")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """An argparse parser whose description is the program's docstring."""

    def __init__(self, doc):
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter,
                         allow_abbrev=False)
        self.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
        self.words = []

    def parse_known_args(self, args=None, namespace=None):
        self.words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message):
        # argparse does not get to unknown flags where an argument is missing, too.
        given = self.words[:self.words.index("--")] if "--" in self.words else self.words
        unknown = [word for word in given if word.startswith("--")
                   and word.split("=")[0] not in self._option_string_actions]
        if unknown and "unrecognized" not in message:
            message += f"; unrecognized arguments: {' '.join(unknown)}"
        super().error(message)
