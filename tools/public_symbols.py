#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the linker's version script of the shared library: what programs outside may use.

HEADERS_DIR holds the public headers (public_headers.py), each FILE is an object file or archive of
the library. Exported is what the headers declare and the files define: functions, classes with
their members, vtables and types, variables; nothing else has a name outside. What a header defines
itself (inline functions, templates with their body) every program makes on its own. Messages
(namespace tensorflow) are exported whole: their headers are generated.

OUT_FLAGS is a file of flags for the linker: the library's soname, libmillrace.so.MAJOR.MINOR, and
the exported symbols as ones that are wanted, so that archives are asked for them.
"""

import os
import re
import subprocess
import sys

import program

NAMESPACE = re.compile(r"^(?:inline )?namespace([\w: ]*)$")
EXTERN_C = re.compile(r'^extern "C(\+\+)?"$')
TYPE = re.compile(r"^(?:class|struct|union|enum(?: class| struct)?) "
                  r"(?:(?:[A-Z_]+|alignas)(?: ?\(.*?\))? )?(\w+)\b(?!.*\()")
# Comments, raw strings, strings, characters: whichever begins first ends first.
LITERAL = re.compile(r"""//[^\n]*|/\*.*?\*/|R"(?P<end>[^ ()\\]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*\""""
                     r"""|(?<!\w)'(?:\\[^\n]|[^'\\\n])[^'\n]*'""", re.S)

MACRO = re.compile(r"\b(?:ABSL|MR|MILLRACE)_[A-Z0-9_]+\b(?:\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))?")


def code_of(text):
    """Without comments, contents of strings, preprocessor lines, attributes and macros, which need
    no semicolon."""
    def short(match):
        literal = match[0]
        if literal.startswith("/"):
            return " "
        if literal.startswith("'"):
            return "' '"
        return literal if literal in ('"C"', '"C++"') else '""'

    text = LITERAL.sub(short, re.sub(r"\\\n", " ", text))
    text = re.sub(r"^[ \t]*#[^\n]*", "", text, flags=re.M)
    text = MACRO.sub(" ", text)
    return re.sub(r"\[\[.*?\]\]", " ", text, flags=re.S)


def without_angles(text):
    """"StatusOr<std::vector<T>> Run" -> "StatusOr Run"."""
    before = None
    while before != text:
        before, text = text, re.sub(r"<[^<>()]*>|<[^<>]*\([^()<>]*\)[^<>]*>", "", text)
    return text


def without_template_head(words):
    """"template <typename T = int> requires(X<T>) T F()" -> "T F()"."""
    while re.match(r"template ?<", words):
        angles = parentheses = 0
        for at, char in enumerate(words):
            parentheses += {"(": 1, ")": -1}.get(char, 0)
            if parentheses == 0:
                angles += {"<": 1, ">": -1}.get(char, 0)
                if angles == 0 and char == ">":
                    break
        words = words[at + 1:].lstrip()
    return re.sub(r"^requires ?\((?:[^()]|\([^()]*\))*\) ?", "", words)


def is_variable(words):
    """Whether "= " of a variable (or an alias) comes before a parenthesis of parameters."""
    head = re.sub(r"\boperator ?[^\w\s(]+", "operator", without_template_head(words))
    return "=" in without_angles(head).split("(")[0]


def function_name(statement):
    """The function that a statement declares; None when it declares none."""
    if re.match(r"(using|typedef|friend|class|struct|union|enum|static_assert|return)\b", statement):
        return None
    if re.search(r"\boperator\b", statement.split("(")[0]):
        return "operator"
    found = re.search(r"(\w+) ?\(", without_angles(statement))
    return found[1] if found else None


class Declarations:
    """What headers declare, by name."""

    def __init__(self):
        self.types = set()      # defined at the level of a namespace
        self.functions = set()  # declared there and not defined
        self.c_functions = set()
        self.variables = set()
        self.defined_types = set()  # anywhere
        self.words = set()

    def add(self, text):
        """All that a header says."""
        text = code_of(text)
        self.words |= set(re.findall(r"\w+", text))
        self.defined_types |= set(re.findall(r"\b(?:class|struct|union|enum) (?:[A-Z_]+ )?(\w+)"
                                             r"(?: final)?(?: ?:[^;{}()]*)? ?\{", " ".join(text.split())))
        stack, statement, parentheses = [], "", 0  # stack: of "namespace", "c", "other"
        for char in text:
            if stack and stack[-1] == "other":
                stack += ["other"] if char == "{" else []
                if char == "}":
                    stack.pop()
                continue
            parentheses += {"(": 1, ")": -1}.get(char, 0)
            if char == "{":
                words = " ".join(statement.split())
                if parentheses > 0 or is_variable(words):
                    stack.append("other")  # a value, a default argument's too: the statement goes on
                    continue
                if NAMESPACE.match(words):
                    stack.append("namespace")
                elif EXTERN_C.match(words):
                    stack.append("c")
                else:
                    stack.append("other")  # a body
                    # Without the bases of a class, which may have parentheses.
                    found = TYPE.match(re.split(r"(?<!:):(?!:)", without_template_head(words))[0])
                    if found:
                        self.types.add(found[1])
                statement = ""
            elif char == "}":
                if stack:
                    stack.pop()
                statement = ""
            elif char == ";":
                self.add_statement(" ".join(statement.split()), "c" in stack)
                statement = ""
            else:
                statement += char

    def add_statement(self, words, is_c):
        words = without_template_head(words)
        name = function_name(words)
        if name is not None and not is_variable(words):
            (self.c_functions if is_c else self.functions).add(name)
        elif words.startswith("extern "):
            self.variables.add(re.findall(r"\w+", words)[-1])


# --- Mangled names (Itanium C++ ABI) -------------------------------------------------------------

# Vtables, VTTs, type information and its name, thunks.
SPECIAL = re.compile(r"^_Z(?:TV|TT|TI|TS|Th\w*?_|Tv\d+_n?\d+_|Tc(?:h\w*?_|v\d+_n?\d+_){2})(?=N)")


def components(symbol):
    """["millrace", "Scope", "WithName"] of a function, variable or type in a namespace, and whether
    it is made of a template; operators are "operator"; [] for other symbols."""
    text = SPECIAL.sub("_Z", symbol)
    if not text.startswith("_ZN"):
        return [], False
    at, names, is_template = 3, [], False
    while at < len(text) and text[at] in "rVKRO":
        at += 1
    while at < len(text):
        number = re.match(r"\d+", text[at:])
        if number:
            at += len(number[0])
            names.append(text[at:at + int(number[0])])
            at += int(number[0])
        elif text[at] == "B":  # ABI tag
            number = re.match(r"B(\d+)", text[at:])
            at += len(number[0]) + int(number[1])
        elif text[at] in "CD" and text[at + 1:at + 2].isdigit():  # constructor, destructor
            return names, is_template
        elif text[at] == "I":
            is_template = True
            break  # arguments of a template: what follows is not looked at
        elif text[at] == "E":
            break
        elif text[at].islower():
            names.append("operator")
            break
        else:
            return [], False
    return names, is_template


def is_public(symbol, kind, declared):
    """Whether a symbol, of a kind as nm prints it, is one that programs use."""
    if kind not in "TDRBGSWVu":
        return False
    if not symbol.startswith("_Z"):
        return kind == "T" and symbol in declared.c_functions or (
            kind in "DRB" and symbol.startswith("descriptor_table_proto_2f"))
    if re.match(r"_ZN6google8protobuf5Arena18CreateMaybeMessageIN10tensorflow", symbol):
        return kind == "T"
    names, is_template = components(symbol)
    if len(names) < 2:
        return False
    if any(n.startswith("_GLOBAL__N") for n in names):
        return False
    describes_type = re.match(r"_ZT[VIST]N", symbol) is not None  # weak, in every object
    if names[0] == "tensorflow":
        return kind in "TDRB" or describes_type
    if names[0] != "millrace":
        return False
    # Past namespaces inside of ours.
    names = names[1:]
    while len(names) > 1 and names[0] not in declared.types and names[0] in declared.words:
        names = names[1:]
    if kind in "WVu" and not describes_type:
        # Weak: made wherever it is used, but for templates whose body is in a source.
        return is_template and len(names) == 1 and names[0] in declared.functions
    if names[0] in declared.types:
        return (all(n in declared.defined_types for n in names[1:-1])
                and (len(names) == 1 or names[-1] == "operator" or names[-1] in declared.words))
    return len(names) == 1 and (names[0] in declared.functions or names[0] in declared.variables)


def defined_symbols(files):
    """(symbol, kind) of what object files and archives define for others."""
    listed = subprocess.run(["nm", "-g", "--defined-only", "--format=posix"] + files, check=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    for line in listed.splitlines():
        words = line.split()
        if len(words) >= 2 and len(words[1]) == 1:
            yield words[0], words[1]


def read_headers(directory):
    declared = Declarations()
    for folder, _, names in sorted(os.walk(directory, followlinks=True)):
        for name in sorted(names):
            if name.endswith(".h") and not name.endswith(".pb.h"):
                with open(os.path.join(folder, name), encoding="utf-8") as source:
                    declared.add(source.read())
    return declared


def version_of(text):
    return re.search(r'^#define MILLRACE_VERSION "(\d+\.\d+\.\d+)"$', text, re.M)[1]


def main():
    parser = program.Parser(__doc__)
    for name in ("HEADERS_DIR", "VERSION_H", "OUT_SCRIPT", "OUT_FLAGS"):
        parser.add_argument(name.lower(), metavar=name)
    parser.add_argument("files", metavar="FILE", nargs="+")
    args = parser.parse_args()
    version_h, script, flags, files = args.version_h, args.out_script, args.out_flags, args.files
    declared = read_headers(args.headers_dir)
    exported = sorted({symbol for symbol, kind in defined_symbols(files)
                       if is_public(symbol, kind, declared)})
    with open(script, "w", encoding="utf-8") as out:
        out.write("{\nglobal:\n" + "".join(f"{symbol};\n" for symbol in exported)
                  + "local:\n*;\n};\n")
    with open(version_h, encoding="utf-8") as text:
        major, minor, _ = version_of(text.read()).split(".")
    with open(flags, "w", encoding="utf-8") as out:
        out.write(f"-soname=libmillrace.so.{major}.{minor}\n")
        out.write("".join(f"--undefined={symbol}\n" for symbol in exported))
    return 0


if __name__ == "__main__":
    sys.exit(main())
