#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does what a page says, as a reader would, and compares what is printed with what the page shows.

The blocks of the page that count:

    ```cpp train.cc       (a part of) a file; all files are there before the first command runs
    ```sh commands.sh     commands; one bash runs the blocks in turn and ends with the first failure
    ```text               next after commands: what they print on stdout

Where a page shows output, `...` stands for anything and a line of it for any lines, runs of blanks
are equal, and a number with a point may be a tenth of itself or 0.1 away. Each PROGRAM is found by
its name. Everything happens in new folders of $TEST_TMPDIR, or in a temporary one.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # next to the sources
import markdown_code
import program

TOKEN = re.compile(r"(?P<any>\.\.\.)|(?P<blanks>\s+)|(?P<number>-?\d+\.\d+(?:e[-+]?\d+)?)|.")
NUMBER = r"(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)"


def is_line(shown, printed):
    """Whether a page may show `shown` for the line `printed`."""
    pattern, numbers = "", []
    for token in TOKEN.finditer(shown.strip()):
        if token["any"]:
            pattern += ".*"
        elif token["blanks"]:
            pattern += r"\s+"
        elif token["number"]:
            pattern += NUMBER
            numbers.append(float(token["number"]))
        else:
            pattern += re.escape(token[0])
    found = re.fullmatch(pattern, printed.strip())
    return found is not None and all(abs(float(got) - number) <= max(0.1, abs(number) / 10)
                                     for got, number in zip(found.groups(), numbers))


def is_output(shown, printed):
    """The same of lists of lines."""
    if not shown:
        return not printed
    if shown[0].strip() == "...":
        return any(is_output(shown[1:], printed[i:]) for i in range(len(printed) + 1))
    return bool(printed) and is_line(shown[0], printed[0]) and is_output(shown[1:], printed[1:])


def commands_of(page):
    """[commands, what they print or None] of each block of commands."""
    found = []
    is_next = False  # the last block was of commands
    for language, name, lines in markdown_code.blocks(page):
        if language == "text" and name is None and is_next:
            found[-1][1] = lines
        is_next = language == "sh" and name is not None
        if is_next:
            found.append(["\n".join(lines), None])
    return found


def write_files(page, folder):
    scripts = {name for language, name, _ in markdown_code.blocks(page) if language == "sh"}
    for name, code in markdown_code.files_of(page).items():
        if name not in scripts:
            (folder / name).write_text(code, encoding="utf-8")


def check(page, folder, programs):
    """What differs, in one text; "" for nothing."""
    for name in ("bin", "out", "work"):
        (folder / name).mkdir()
    for path in programs:
        (folder / "bin" / path.name).symlink_to(path.absolute())
    write_files(page, folder / "work")
    commands = commands_of(page)
    script = [f"exec > {folder}/out/{i}\n{code}" for i, (code, _) in enumerate(commands)]
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    environment.pop("TF_CONFIG", None)
    done = subprocess.run(["bash", "-euxo", "pipefail", "-c", "\n".join(script)], check=False,
                          cwd=folder / "work", env=environment, stdin=subprocess.DEVNULL)
    said = ""
    for i, (code, shown) in enumerate(commands):
        out = folder / "out" / str(i)
        printed = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
        # The last one that has begun is where it failed.
        failed = done.returncode != 0 and out.exists() and not (out.parent / str(i + 1)).exists()
        if failed or (done.returncode == 0 and shown is not None and not is_output(shown, printed)):
            said += f"commands:\n{code}\n\nprint:\n" + "\n".join(printed) + "\n"
            said += f"and fail with {done.returncode}\n" if failed else (
                "\nbut the page shows:\n" + "\n".join(shown) + "\n")
    return said


def main():
    flags = program.Parser(__doc__)
    flags.add_argument("page", metavar="PAGE", type=pathlib.Path)
    flags.add_argument("programs", metavar="PROGRAM", nargs="*", type=pathlib.Path, default=[])
    args = flags.parse_args()
    page = args.page.read_text(encoding="utf-8")
    if not commands_of(page):
        flags.error(f"argument PAGE: must have a block of commands, got none in '{args.page}'")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="page_", dir=os.environ.get("TEST_TMPDIR")))
    said = check(page, folder, args.programs)
    if said:
        print(f"{args.page}: commands must do what the page shows\n{said}", file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
