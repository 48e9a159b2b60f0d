#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ABI of the C API: its header declares, and its library exports, what the list names.

    c_api_symbols_test.py C_API_H SYMBOLS_TXT LIBRARY

A function that was added goes into the list. One that left it breaks programs that are there.
"""

# covers: c api: no function goes away, no field of a struct moves; programs of other versions are
#   taken or refused by name

import re
import subprocess
import sys

DECLARED = re.compile(r"^MILLRACE_EXPORT\s[^;]*?\b(millrace_\w+)\(", re.M)


def differences(listed, declared, exported):
    """A line for each function that is not the same everywhere."""
    for name in sorted(listed - declared):
        yield f"{name}: a released function must stay, got none in the header; programs use it"
    for name in sorted(listed - exported):
        yield f"{name}: a released function must stay, got none in the library; programs use it"
    for name in sorted(declared - listed):
        yield f"{name}: must stand in api/c_api_symbols.txt, got a declaration only; add it"
    for name in sorted(exported - declared):
        yield f"{name}: must be declared in api/c_api.h, got a definition only"


def main():
    header, symbols, library = sys.argv[1:]
    with open(header, encoding="utf-8") as text:
        declared = set(DECLARED.findall(text.read()))
    with open(symbols, encoding="utf-8") as text:
        lines = [line.strip() for line in text if not line.startswith("#")]
    nm = subprocess.check_output(["nm", "-D", "--defined-only", library], text=True)
    exported = {line.split()[-1] for line in nm.splitlines()
                if line.split()[-1].startswith("millrace_")}
    # What the test cannot miss: a gone function, a new one, one that nobody declares.
    planted = list(differences({"a", "b"}, {"b", "c"}, {"b", "c", "d"}))
    assert len(planted) == 4, planted
    assert lines == sorted(set(lines)), "api/c_api_symbols.txt: must be sorted, each name once"
    assert len(declared) > 50, f"{header}: must declare functions, got {len(declared)}"
    found = list(differences(set(lines), declared, exported))
    print("\n".join(found) or f"{len(lines)} functions")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
