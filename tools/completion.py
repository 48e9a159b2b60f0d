#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes bash's completion of the installed programs: their commands and flags, as --help lists them.

  tools/completion.py --bin DIR PROGRAM...    one file for all, on stdout
"""

import os
import re
import subprocess
import sys

import program

FLAG = re.compile(r"^ +(--[\w-]+)(?:[ =](\S+))?", re.M)
COMMAND = re.compile(r"^ {0,2}(\w+): ", re.M)
SUBCOMMANDS = re.compile(r"^usage: \S+ COMMAND ", re.M)


def help_of(path, *words):
    """The text of --help; "" for a program that has none."""
    ended = subprocess.run([path, *words, "--help"], capture_output=True, text=True, check=False)
    return ended.stdout if ended.returncode == 0 else ""


def flags_of(text):
    return sorted({match[1] for match in FLAG.finditer(text)} | {"--help", "--version"})


def function_of(name, text, texts_of_commands):
    """The function that completes one program."""
    lines = [f"_millrace_{name}() {{", '  local word="${COMP_WORDS[COMP_CWORD]}" flags=""']
    if texts_of_commands:
        lines.append('  case "${COMP_WORDS[1]}" in')
        for command, of_command in texts_of_commands.items():
            lines.append(f'    {command}) flags="{" ".join(flags_of(of_command))}" ;;')
        lines.append("  esac")
        lines.append('  [[ $COMP_CWORD -eq 1 ]] && flags="--help --version '
                     + " ".join(texts_of_commands) + '"')
    else:
        lines.append(f'  flags="{" ".join(flags_of(text))}"')
    lines += ['  COMPREPLY=($(compgen -W "$flags" -- "$word"))', "}",
              f"complete -o default -F _millrace_{name} {name}"]
    return "\n".join(lines)


def main():
    parser = program.Parser(__doc__)
    parser.add_argument("--bin", metavar="DIR", required=True)
    parser.add_argument("programs", nargs="+")
    flags = parser.parse_args()
    functions = []
    for name in flags.programs:
        path = os.path.join(flags.bin, name)
        if not os.access(path, os.X_OK):
            print(f"completion.py: '{path}' must be a program, got none", file=sys.stderr)
            return 1
        text = help_of(path)
        commands = COMMAND.findall(text) if SUBCOMMANDS.search(text) else []
        functions.append(function_of(name, text, {c: help_of(path, c) for c in commands}))
    print("# Completion of Millrace's programs; written by tools/completion.py.\n")
    print("\n\n".join(functions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
