#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a C++ program that uses everything that headers declare and do not define.

HEADERS_DIR is a folder for -I; HEADER..., relative to it, are all headers in it where none is
named. OUT gets the program. It takes the address of every function, method and variable, and calls
virtual methods by their class, constructors and destructors where the compiler cannot know that it
never happens. The linker names what the library does not export. Left out is what no program can
use: private and protected members, templates (they have no address before they are instantiated),
constructors of abstract classes; and the headers of messages (*.pb.h).

public_symbols.py decides what is exported by names alone; this program reads declarations on its
own, so that a mistake in one of the two is found.
"""

import os
import re
import sys
from dataclasses import dataclass, field

import program
import public_symbols

TOKEN = re.compile(r"""[A-Za-z_]\w*|\d[\w.']*|::|->|&&|<<|[<=!]=|\.\.\.|"[^"]*"|' '|\S""")
CLOSES = {"(": ")", "[": "]", "{": "}"}
SPECIFIERS = {"static", "virtual", "explicit", "inline", "constexpr", "consteval", "constinit",
              "extern", "thread_local", "mutable"}
CLASS_KEYS = ("class", "struct", "union")


# --- Tokens --------------------------------------------------------------------------------------


def tokens_of(text):
    tokens, result, at = TOKEN.findall(public_symbols.code_of(text)), [], 0
    while at < len(tokens):
        if tokens[at] in ("__attribute__", "alignas") and tokens[at + 1] == "(":
            at = matching(tokens, at + 1)
        else:
            result.append(tokens[at])
        at += 1
    return result


def is_name(token):
    return re.match(r"[A-Za-z_]", token) is not None


def matching(tokens, at):
    """The place of the bracket that closes the one at `at`."""
    depth = 0
    for place in range(at, len(tokens)):
        if tokens[place] in CLOSES:
            depth += 1
        elif tokens[place] in CLOSES.values():
            depth -= 1
            if depth == 0:
                return place
    raise ValueError(f"'{tokens[at]}' must be closed, got {' '.join(tokens[at:at + 12])}")


def past_angles(tokens, at):
    """The place behind the ">" that closes the "<" at `at`."""
    depth = 0
    while at < len(tokens):
        if tokens[at] in CLOSES:
            at = matching(tokens, at)
        elif tokens[at] in "<>":
            depth += 1 if tokens[at] == "<" else -1
            if depth == 0:
                return at + 1
        at += 1
    raise ValueError(f"'<' must be closed, got {' '.join(tokens[-12:])}")


def without_template_head(tokens):
    while tokens[:2] == ["template", "<"]:
        tokens = tokens[past_angles(tokens, 1):]
    if tokens[:2] == ["requires", "("]:
        tokens = tokens[matching(tokens, 1) + 1:]
    return tokens


def top_level(tokens):
    """(place, token) of those that are in no bracket; the opening ones are listed."""
    at = 0
    while at < len(tokens):
        yield at, tokens[at]
        at = matching(tokens, at) + 1 if tokens[at] in CLOSES else at + 1


def statements(tokens):
    """(tokens, body) of each statement. The body is what its braces hold; None before a semicolon."""
    start = 0
    for at, token in top_level(tokens):
        if at < start:
            continue
        if token == ";":
            yield tokens[start:at], None
            start = at + 1
        elif token == "{":
            words = tokens[start:at]
            declared = declaration_of(words)
            if declared is None and "=" in (word for _, word in top_level(
                    without_template_head(words))):
                continue  # the value of a variable: the statement goes on
            end = matching(tokens, at)
            yield words, tokens[at + 1:end]
            start = end + 1


# --- Declarations --------------------------------------------------------------------------------


@dataclass
class Function:
    name: str
    result: list
    parameters: list  # tokens of each, without defaults
    qualifiers: list  # const, &, &&
    is_static: bool = False
    is_virtual: bool = False
    is_missing: bool = False  # declared and not defined here


@dataclass
class Class:
    path: list
    access: str  # of the next member
    is_reachable: bool  # by a program
    bases: list = field(default_factory=list)
    outer: object = None
    types: dict = field(default_factory=dict)  # name -> access


def parameters_of(tokens):
    """[["const", "X", "&", "x"], ["int", "i"]] of "const X& x, int i = 3"."""
    result, at, is_default = [[]], 0, False
    while at < len(tokens):
        token = tokens[at]
        end = at + 1
        if token in CLOSES:
            end = matching(tokens, at) + 1
        elif token == "<":
            end = past_angles(tokens, at)
        if token == ",":
            result.append([])
            is_default = False
        elif token == "=":
            is_default = True
        elif not is_default:
            result[-1] += tokens[at:end]
        at = end
    return [] if result in ([[]], [["void"]]) else result


def declaration_of(words):
    """The function that a statement declares; None when it declares none."""
    words = without_template_head(words)
    specifiers = set()
    while words and words[0] in SPECIFIERS:
        specifiers.add(words[0])
        words = words[matching(words, 1) + 1 if words[:2] == ["explicit", "("] else 1:]
    at, name = 0, None
    while at < len(words):
        if words[at] == "operator":
            begin = at + 3 if words[at + 1:at + 3] == ["(", ")"] else at + 1
            if "(" not in words[begin:]:
                return None
            parenthesis = words.index("(", begin)
            name, result = "operator" + (" " if is_name(words[at + 1]) else "") + "".join(
                words[at + 1:parenthesis]), words[:at]
            break
        if words[at] == "<":
            at = past_angles(words, at)
            continue
        if words[at] == "(":
            if at == 0 or not is_name(words[at - 1]):
                return None
            if words[at - 1] not in ("decltype", "noexcept"):
                parenthesis, name, result = at, words[at - 1], words[:at - 1]
                break
        if words[at] == "=":
            return None
        at = matching(words, at) + 1 if words[at] in CLOSES else at + 1
    if name is None or result[-1:] == ["::"]:  # of a class that is declared elsewhere
        return None
    if result[-1:] == ["~"]:
        name, result = "~" + name, result[:-1]
        if result[-1:] == ["::"]:
            return None
    end = matching(words, parenthesis)
    tail = words[end + 1:]
    qualifiers, is_virtual, value = [], "virtual" in specifiers, None
    for place, token in top_level(tail):
        if token in (":", "->", "="):
            value = tail[place + 1] if token == "=" else None
            if token == "->":
                result = tail[place + 1:]
            break
        if token in ("const", "&", "&&"):
            qualifiers.append(token)
        is_virtual |= token in ("override", "final")
    return Function(name, result, parameters_of(words[parenthesis + 1:end]), qualifiers,
                    "static" in specifiers, is_virtual, value is None)


class Uses:
    """Lines of C++ that use what headers declare."""

    def __init__(self):
        self.classes = {}    # name -> Class, of all headers
        self.functions = []  # (namespace, Class or None, Function), of all headers
        self.names = {}      # (path, function) -> how many there are
        self.variables = []  # paths

    def add(self, text):
        """All that a header says."""
        self.read(tokens_of(text), [], None)

    def read(self, tokens, namespace, within):
        for words, body in statements(tokens):
            while within and len(words) > 1 and words[1] == ":" and words[0] in (
                    "public", "private", "protected"):
                within.access = words[0]
                words = words[2:]
            if words[:2] in (["extern", '"C"'], ["extern", '"C++"']):
                if body is not None:
                    self.read(body, namespace, within)
                    continue
                words = words[2:]
            if words[:1] == ["inline"] and words[1:2] == ["namespace"]:
                words = words[1:]
            if words[:1] == ["namespace"] and body is not None:
                self.read(body, namespace + [word for word in words[1:] if is_name(word)], within)
            elif words:
                self.read_declaration(words, body, namespace, within)

    def read_declaration(self, words, body, namespace, within):
        path = within.path if within else namespace
        is_template = words[0] == "template"
        words = without_template_head(words)
        if not words or words[0] in ("template", "friend", "static_assert"):
            return
        if words[0] in ("using", "typedef"):
            if within and "=" in words:
                within.types[words[1]] = within.access
            elif within:
                within.types.setdefault(words[-1], within.access)
                self.names[(*path, words[-1])] = 2  # functions of a base class with this name
            return
        if words[0] in CLASS_KEYS + ("enum",) and (body is not None or "(" not in words):
            self.read_type(words, body, namespace, within, is_template)
            return
        function = declaration_of(words)
        if function is not None:
            key = (*path, function.name)
            self.names[key] = self.names.get(key, 0) + 1
            if (body is None and function.is_missing and not is_template
                    and (within is None or within.is_reachable and within.access == "public")):
                self.functions.append((namespace, within, function))
        elif body is None and not is_template and words[0] == ("static" if within else "extern"):
            tops = [word for _, word in top_level(words)]
            if not {"=", "constexpr", "inline", "("} & set(tops) and (
                    within is None or within.is_reachable and within.access == "public"):
                self.variables.append([*path, [word for word in tops if is_name(word)][-1]])

    def read_type(self, words, body, namespace, within, is_template):
        names = [word for word in words[1:] if word not in CLASS_KEYS + ("final",)]
        if not names or not is_name(names[0]):
            return  # without a name
        name = names[0]
        if within:
            within.types[name] = within.access
        if body is None or words[0] == "enum" or is_template or "<" in words[:words.index(name) + 2]:
            return
        made = Class([*(within.path if within else namespace), name],
                     "private" if words[0] == "class" else "public",
                     within is None or within.is_reachable and within.access == "public", outer=within)
        if ":" in words:
            made.bases = [word for word in words[words.index(":") + 1:]
                          if is_name(word) and word not in ("public", "protected", "private", "virtual")]
        self.classes[name] = made
        self.read(body, namespace, made)

    # --- C++ ---

    def type_within(self, name, within):
        """Path and access of a type that members of a class call `name`; None of another."""
        while within:
            if within.outer and name == within.path[-1]:
                return within.path, "public"
            if name in within.types:
                return [*within.path, name], within.types[name]
            for base in within.bases:
                found = base in self.classes and base != name and self.classes[base] is not within and (
                    self.type_within(name, self.classes[base]))
                if found:
                    return found
            within = within.outer
        return None

    def text(self, tokens, within):
        """C++ of a type; None when it has the name of a type that programs may not use."""
        result = []
        for at, token in enumerate(tokens):
            found = (self.type_within(token, within)
                     if is_name(token) and (at == 0 or tokens[at - 1] not in ("::", ".", "->")) else None)
            if found is not None and found[1] != "public":
                return None
            result.append("::" + "::".join(found[0]) if found else token)
        return " ".join(result)

    def use(self, within, namespace, function):
        """A line that uses a function; None when no program can."""
        path = within.path if within else namespace
        owner = "::" + "::".join(path)
        parameters = [self.text(one, within) for one in function.parameters]
        result = self.text(function.result, within)
        if None in parameters or result is None:
            return None
        taken = ", ".join(parameters)
        if within and function.name == path[-1]:
            return f"UseConstructor<{owner}>(static_cast<void (*)({taken})>(nullptr));"
        if function.name.startswith("~"):
            return f"UseDestructor<{owner}>();"
        address = f"&{owner}::{function.name}" if path else f"&::{function.name}"
        if self.names[(*path, function.name)] > 1 or function.name.startswith("operator"):
            if function.name.startswith("operator ") and not result:
                result = function.name[len("operator "):]  # a conversion
            is_method = within and not function.is_static
            pointer = f"{owner}::*" if is_method else "*"
            qualifiers = "".join(" " + one for one in function.qualifiers)
            address = f"static_cast<{result} ({pointer})({taken}){qualifiers}>({address})"
        if not function.is_virtual:
            return f"Use({address});"
        return (f"UseVirtual({address}, [](auto* self, auto&&... with) -> decltype(auto) {{ return self->"
                f"{owner}::{function.name}(std::forward<decltype(with)>(with)...); }});")

    def program(self, headers):
        """The program, and how many uses it has."""
        parts, count = {}, len(self.variables)
        for namespace, within, function in self.functions:
            line = self.use(within, namespace, function)
            if line is not None:
                parts.setdefault("::".join(namespace), []).append(line)
        parts.setdefault("", []).extend(f"Use(&::{'::'.join(one)});" for one in self.variables)
        count = sum(len(lines) for lines in parts.values())
        text = "".join(f"#include <{header}>\n" for header in headers) + PRELUDE
        calls = []
        for number, (namespace, lines) in enumerate(sorted(parts.items())):
            body = "".join(f"  {line}\n" for line in lines)
            function = f"UseAll{number}"
            text += (f"namespace {namespace} {{\n" if namespace else "") + (
                f"void {function}() {{\n  using namespace declared_uses;\n{body}}}\n") + (
                    "}\n" if namespace else "")
            calls.append(f"  ::{namespace + '::' if namespace else ''}{function}();\n")
        return (text + f'int main() {{\n{"".join(calls)}  std::printf("{count} uses\\n");\n}}\n'), count


PRELUDE = """
#include <cstdio>
#include <type_traits>
#include <utility>

namespace declared_uses {
// What the compiler cannot know: nothing is called, and everything is linked.
volatile bool never = false;
void* volatile nothing = nullptr;

template <typename T>
void Use(T pointer) {
  asm volatile("" : : "g"(&pointer) : "memory");
}
template <typename T>
T&& Any() {
  return static_cast<T&&>(*static_cast<std::remove_reference_t<T>*>(nothing));
}
template <typename C, typename... P>
void UseConstructor(void (*)(P...)) {
  if constexpr (!std::is_abstract_v<C>) {
    if (never) static_cast<void>(new C(Any<P>()...));
  }
}
template <typename C>
void UseDestructor() {
  if (never) static_cast<C*>(nothing)->C::~C();
}
template <typename R, typename C, typename... P, typename F>
void UseVirtual(R (C::*)(P...), F call) {
  if (never) static_cast<void>(call(static_cast<C*>(nothing), Any<P>()...));
}
template <typename R, typename C, typename... P, typename F>
void UseVirtual(R (C::*)(P...) const, F call) {
  if (never) static_cast<void>(call(static_cast<const C*>(nothing), Any<P>()...));
}
}  // namespace declared_uses
"""


def main():
    parser = program.Parser(__doc__)
    parser.add_argument("headers_dir", metavar="HEADERS_DIR")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("headers", metavar="HEADER", nargs="*")
    args = parser.parse_args()
    headers = sorted(args.headers) or sorted(
        os.path.relpath(os.path.join(folder, name), args.headers_dir)
        for folder, _, names in os.walk(args.headers_dir, followlinks=True)
        for name in names if name.endswith(".h") and not name.endswith(".pb.h"))
    uses = Uses()
    for header in headers:
        try:
            with open(os.path.join(args.headers_dir, header), encoding="utf-8") as text:
                uses.add(text.read())
        except (OSError, ValueError) as error:
            sys.exit(f"declared_uses: {header}: {error}")
    text, count = uses.program(headers)
    with open(args.out, "w", encoding="utf-8") as out:
        out.write(text)
    print(f"{count} uses of {len(headers)} headers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
